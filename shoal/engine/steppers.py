"""Local optimisers on the flat vector: the arithmetic of ``torch.optim``, a few operations per step.

The order of operations is torch's, so that a fit equals the same loop with ``torch.optim`` to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..parameters import ParameterSpace
from ..requests import Optimizer


class Stepper:
    """One local optimiser for one fit; ``slots`` continue a kept one. Trains the given slices only."""

    def __init__(
        self,
        settings: Optimizer,
        space: ParameterSpace,
        slices: Sequence[slice],
        device: torch.device,
        slots: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.settings = settings
        self.slices = slices
        self.slots: dict[str, Tensor] = {}
        self.steps = 0
        if slots is not None:
            self.steps = int(slots.get("steps", torch.tensor(0)))
            self.slots = {name: slots[name].to(device).clone() for name in self._names() if name in slots}
        for name in self._names():
            if name not in self.slots:
                self.slots[name] = torch.zeros(space.size, device=device)
            elif self.slots[name].numel() != space.size:
                raise ValueError(
                    f"kept moment {name!r} has {self.slots[name].numel()} numbers for a model of {space.size}"
                )
        self.decay = self._decay(space, device)

    def _names(self) -> tuple[str, ...]:
        if self.settings.kind == "sgd":
            return ("momentum",) if self.settings.momentum else ()
        if self.settings.kind in ("adam", "adamw"):
            return ("m", "v")
        raise ValueError(f"local optimizer {self.settings.kind!r} is unknown; known: sgd, adam, adamw")

    def _decay(self, space: ParameterSpace, device: torch.device) -> Tensor | float:
        """The weight decay: one number, or a vector that is 0 where a parameter is not decayed."""
        if not self.settings.weight_decay or not self.settings.undecayed:
            return self.settings.weight_decay
        decay = torch.full((space.size,), self.settings.weight_decay, device=device)
        for name in self.settings.undecayed:
            if name not in space.slots:
                raise ValueError(f"undecayed parameter {name!r} does not exist; the model has {list(space.names)}")
            slot = space.slots[name]
            decay[slot.offset : slot.offset + slot.size] = 0
        return decay

    def clip(self, gradient: Tensor) -> None:
        """Scales the trained slices of the gradient down to the norm ``clip`` (as ``clip_grad_norm_`` does)."""
        if self.settings.clip is None:
            return
        parts = [gradient[s] for s in self.slices]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p) for p in parts]))
        factor = torch.clamp(self.settings.clip / (norm + 1e-6), max=1.0)
        for part in parts:
            part.mul_(factor)

    def step(self, vector: Tensor, gradient: Tensor) -> None:
        """One step, in place; ``gradient`` may be overwritten."""
        self.steps += 1
        for s in self.slices:
            w, g = vector[s], gradient[s]
            if self.settings.kind == "adamw":
                self._shrink(w, s)
            elif isinstance(self.decay, Tensor):
                g.addcmul_(self.decay[s], w)
            elif self.decay:
                g.add_(w, alpha=self.decay)
            if self.settings.kind == "sgd":
                self._sgd(w, g, s)
            else:
                self._adam(w, g, s)

    def _shrink(self, w: Tensor, s: slice) -> None:
        if isinstance(self.decay, Tensor):
            w.mul_(1 - self.settings.lr * self.decay[s])
        elif self.decay:
            w.mul_(1 - self.settings.lr * self.decay)

    def _sgd(self, w: Tensor, g: Tensor, s: slice) -> None:
        if self.settings.momentum:
            g = self.slots["momentum"][s].mul_(self.settings.momentum).add_(g)
        w.add_(g, alpha=-self.settings.lr)

    def _adam(self, w: Tensor, g: Tensor, s: slice) -> None:
        beta1, beta2 = self.settings.betas
        m = self.slots["m"][s].lerp_(g, 1 - beta1)
        v = self.slots["v"][s].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        unbias = 1 - beta1**self.steps
        denominator = (v.sqrt() / (1 - beta2**self.steps) ** 0.5).add_(self.settings.eps)
        w.addcdiv_(m, denominator, value=-self.settings.lr / unbias)

    def kept(self) -> dict[str, Tensor]:
        """The moments, for a client that keeps its local optimiser."""
        return {
            **{name: value.detach().cpu().clone() for name, value in self.slots.items()},
            "steps": torch.tensor(self.steps),
        }
