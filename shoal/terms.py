"""Correction terms of a local step. Elementwise: one body serves one client ``[P]`` and a stack ``[clients, P]``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shift:
    """Adds ``by`` to the gradient (SCAFFOLD's ``c - c_i``, SVRG's anchor gradient)."""

    by: Tensor

    def gradient(self, w: Tensor, g: Tensor, s: slice) -> None:
        g.add_(self.by[..., s].to(g.device))

    def after(self, w: Tensor, s: slice, lr: float) -> None:
        pass


@dataclass(frozen=True)
class Pull:
    """Adds the gradient of ``strength / 2 * |w - anchor|^2`` before the step (FedProx).

    ``strength`` is a number or one per coordinate. Explicit, so it is stable only while ``lr * strength < 2``;
    use `Hold` for strong penalties.
    """

    strength: float | Tensor
    anchor: Tensor

    def gradient(self, w: Tensor, g: Tensor, s: slice) -> None:
        away = w - self.anchor[..., s].to(w.device)
        if isinstance(self.strength, Tensor):
            g.addcmul_(self.strength[..., s].to(g.device), away)
        else:
            g.add_(away, alpha=self.strength)

    def after(self, w: Tensor, s: slice, lr: float) -> None:
        pass


@dataclass(frozen=True)
class Hold:
    """Solves the same penalty implicitly after the step: ``w <- (w + k anchor) / (1 + k)``, ``k = lr * strength``.

    Stable at any strength. As a gradient the penalty explodes for ``k > 2``, with every value finite.
    """

    strength: float | Tensor
    anchor: Tensor

    def gradient(self, w: Tensor, g: Tensor, s: slice) -> None:
        pass

    def after(self, w: Tensor, s: slice, lr: float) -> None:
        k = self.strength[..., s].to(w.device) * lr if isinstance(self.strength, Tensor) else self.strength * lr
        w.add_(self.anchor[..., s].to(w.device) * k).div_(1 + k)


@dataclass(frozen=True)
class Lasso:
    """Adds the sub-gradient of ``strength * |w|_1`` before the step; ``strength`` is a number or one per coordinate."""

    strength: float | Tensor

    def gradient(self, w: Tensor, g: Tensor, s: slice) -> None:
        if isinstance(self.strength, Tensor):
            g.addcmul_(self.strength[..., s].to(g.device), torch.sign(w))
        else:
            g.add_(torch.sign(w), alpha=self.strength)

    def after(self, w: Tensor, s: slice, lr: float) -> None:
        pass


@dataclass(frozen=True)
class Capped:
    """Adds the gradient of ``strength / 2 * |scale * w - anchor|^2`` before the step, no coordinate of it beyond
    ``scale * most``: of the Huber function, which is what is left of a squared distance when a second vector with the
    price ``most * |.|_1`` takes its best part of it (FedWeIT's past tasks).

    ``scale`` and ``anchor`` have one number per coordinate.
    """

    strength: float
    most: float
    scale: Tensor
    anchor: Tensor

    def gradient(self, w: Tensor, g: Tensor, s: slice) -> None:
        scale = self.scale[..., s].to(w.device)
        away = (scale * w - self.anchor[..., s].to(w.device)).mul_(self.strength)
        g.addcmul_(scale, away.clamp_(-self.most, self.most))

    def after(self, w: Tensor, s: slice, lr: float) -> None:
        pass
