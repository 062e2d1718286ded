"""Local optimisers on flat vectors: the arithmetic of ``torch.optim``, a few operations per step.

The order of operations is torch's, so that a fit equals the same loop with ``torch.optim`` to rounding. One body
serves one client, ``[P]``, and a stack of them, ``[clients, P]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..parameters import ParameterSpace
from ..requests import Optimizer

Number = float | Tensor
"""A setting: one number for all, or a column ``[clients, 1]``."""


class Stepper:
    """One local optimiser for one fit, or for the fits of a stack; ``slots`` continue kept ones.

    Trains the given slices only. Of a ``stack`` of so many clients, ``columns`` has the settings that differ between
    them; a step may be of the first clients alone, when the others have ended.
    """

    def __init__(
        self,
        settings: Optimizer,
        space: ParameterSpace,
        slices: Sequence[slice],
        device: torch.device,
        slots: Mapping[str, Tensor] | None = None,
        stack: int | None = None,
        columns: Mapping[str, Tensor] | None = None,
    ) -> None:
        columns = columns or {}
        self.settings = settings
        self.lr: Number = columns.get("lr", settings.lr)
        self.momentum: Number = columns.get("momentum", settings.momentum)
        self.bound: Number | None = columns.get("clip", settings.clip)
        self.slices = slices
        self.whole = len(slices) == 1 and slices[0] == slice(0, space.size)
        self.slots: dict[str, Tensor] = {}
        self.steps = 0
        if slots is not None:
            self.steps = int(slots.get("steps", torch.tensor(0)))
            self.slots = {name: slots[name].to(device).clone() for name in self._names() if name in slots}
        for name in self._names():
            if name not in self.slots:
                shape = (space.size,) if stack is None else (stack, space.size)
                self.slots[name] = torch.zeros(shape, device=device)
            elif self.slots[name].shape[-1] != space.size:
                raise ValueError(
                    f"kept moment {name!r} has {self.slots[name].numel()} numbers for a model of {space.size}"
                )
        self.decay = self._decay(columns.get("weight_decay", settings.weight_decay), space, device)
        decays = isinstance(self.decay, Tensor) or bool(self.decay)
        self.plain = self.whole and stack is None and not (self.slots or decays or self.bound is not None)
        """Whether a step is nothing but ``- lr`` times the gradient; `descend` may then take it."""

    def _names(self) -> tuple[str, ...]:
        if self.settings.kind == "sgd":
            return ("momentum",) if self.settings.momentum else ()
        if self.settings.kind in ("adam", "adamw"):
            return ("m", "v")
        raise ValueError(f"local optimizer {self.settings.kind!r} is unknown; known: sgd, adam, adamw")

    def _decay(self, decay: Number, space: ParameterSpace, device: torch.device) -> Number:
        """The weight decay: one number, or numbers ``[..., P]`` that are 0 where a parameter is not decayed."""
        undecayed = dict.fromkeys((*self.settings.undecayed, *space.undecayed))
        if isinstance(decay, float | int) and not (decay and undecayed):
            return decay
        spread = torch.as_tensor(decay, dtype=torch.float32, device=device)
        spread = spread.expand(*spread.shape[:-1], space.size).clone()
        for name in undecayed:
            if name not in space.slots:
                raise ValueError(f"undecayed parameter {name!r} does not exist; the model has {list(space.names)}")
            slot = space.slots[name]
            spread[..., slot.offset : slot.offset + slot.size] = 0
        return spread

    def clip(self, gradient: Tensor) -> None:
        """Scales the trained slices of each gradient down to the norm ``clip`` (as ``clip_grad_norm_`` does)."""
        if self.bound is None:
            return
        parts = [gradient[..., s] for s in self.slices]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p, dim=-1) for p in parts]), dim=0)
        # A number divided by a tensor is this product; a column divided by one is another number in its last bit.
        factor = torch.clamp((norm.unsqueeze(-1) + 1e-6).reciprocal() * _first(self.bound, gradient), max=1.0)
        for part in parts:
            part.mul_(factor)

    def step(self, vector: Tensor, gradient: Tensor) -> None:
        """One step, in place; ``gradient`` may be overwritten."""
        self.steps += 1
        for s in self.slices:
            # A slice of everything costs as much as the arithmetic of a small model.
            w, g = (vector, gradient) if self.whole else (vector[..., s], gradient[..., s])
            decay = _first(self.decay, vector)
            if self.settings.kind == "adamw":
                if isinstance(decay, Tensor):
                    w.mul_(1 - _first(self.lr, vector) * decay[..., s])
                elif decay:
                    w.mul_(1 - _first(self.lr, vector) * decay)
            elif isinstance(decay, Tensor):
                g.addcmul_(decay[..., s], w)
            elif decay:
                g.add_(w, alpha=decay)
            if self.settings.kind == "sgd":
                self._sgd(w, g, s)
            else:
                self._adam(w, g, s)

    def descend(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """One plain step of each parameter along its own gradient, in place, as `step` takes it along the flat one: a
        large gradient is then read once, where autograd left it. ``None`` is a gradient of zero."""
        self.steps += 1
        pairs = [(w, g) for w, g in zip(weights, gradients, strict=True) if g is not None]
        torch._foreach_add_([w for w, _ in pairs], [g for _, g in pairs], alpha=-self.settings.lr)

    def _slot(self, name: str, like: Tensor, s: slice) -> Tensor:
        slot = self.slots[name]
        return slot[s] if slot.dim() == 1 else slot[: len(like), s]

    def _sgd(self, w: Tensor, g: Tensor, s: slice) -> None:
        if self.settings.momentum:
            g = self._slot("momentum", w, s).mul_(_first(self.momentum, w)).add_(g)
        lr = _first(self.lr, w)
        if isinstance(lr, Tensor):
            w.addcmul_(g, -lr)
        else:
            w.add_(g, alpha=-lr)

    def _adam(self, w: Tensor, g: Tensor, s: slice) -> None:
        beta1, beta2 = self.settings.betas
        m = self._slot("m", w, s).lerp_(g, 1 - beta1)
        v = self._slot("v", w, s).mul_(beta2).addcmul_(g, g, value=1 - beta2)
        unbias = 1 - beta1**self.steps
        denominator = (v.sqrt() / (1 - beta2**self.steps) ** 0.5).add_(self.settings.eps)
        lr = _first(self.lr, w)
        if isinstance(lr, Tensor):
            w.addcmul_(m.div(denominator), lr / -unbias)
        else:
            w.addcdiv_(m, denominator, value=-lr / unbias)

    def kept(self, client: int | None = None, steps: int | None = None) -> dict[str, Tensor]:
        """The moments, for a client that keeps its local optimiser; of one client of a stack, after its ``steps``."""
        own = {name: value if client is None else value[client] for name, value in self.slots.items()}
        return {
            **{name: value.detach().cpu().clone() for name, value in own.items()},
            "steps": torch.tensor(self.steps if steps is None else steps),
        }


def _first(value: Number, like: Tensor) -> Number:
    """A setting for the clients of ``like``: a column is cut to as many."""
    return value[: len(like)] if isinstance(value, Tensor) and value.dim() == 2 else value
