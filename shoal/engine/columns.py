"""What the clients of a stack bring, as tensors of all: vectors ``[clients, P]``, settings ``[clients, 1]``, terms.

A client's numbers must not depend on its company, not even in their last bit. Therefore each client's vector begins at
a multiple of `ALIGNED` numbers, as a fresh tensor does (matrix products round differently by where memory begins), and
a setting that enters the arithmetic in another precision as a tensor is always one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..placing import placed
from ..records import changed
from ..requests import Fit
from ..terms import Hold, Lasso, Pull, Shift
from .batches import Scratch
from .products import ALIGNED

LONG = 2**13
"""Inner products of vectors with so many numbers are taken one after another on a CPU: one call for all of them would
write the products down first."""
VARYING = ("lr", "momentum", "weight_decay", "clip")
"""Settings of the local optimiser that may differ inside a stack."""
KNOWN_TERMS = (Shift, Pull, Hold, Lasso)
"""Terms whose numbers may differ inside a stack: their arithmetic is the same with tensors."""


def blank(count: int, size: int, device: torch.device) -> Tensor:
    """Zeros ``[count, size]``, each row of which begins at a multiple of `ALIGNED`."""
    return torch.zeros(count, -(-size // ALIGNED) * ALIGNED, device=device)[:, :size]


class Memory(threading.local):
    """Memory that the stacks of a thread use one after another: every page of fresh memory would be cleared first."""

    MOST = 2**24
    """Bytes up to which it is kept."""

    def __init__(self) -> None:
        self._kept = Scratch()

    def room(self, name: str, count: int, size: int, device: torch.device) -> Tensor:
        """``[count, size]`` as `blank`, with any numbers; what was there under this name before is overwritten."""
        shape = count, -(-size // ALIGNED) * ALIGNED
        kept = device.type == "cpu" and 4 * math.prod(shape) <= self.MOST
        return (self._kept.take(name, shape, device) if kept else torch.empty(shape, device=device))[:, :size]


def stacked(vectors: Sequence[Tensor], device: torch.device) -> Tensor:
    """``[clients, P]`` on the device, not to be changed: a vector that all share is not copied."""
    first = vectors[0]
    if device.type != "cpu":
        if all(vector is first for vector in vectors):
            return first.to(device).expand(len(vectors), -1)
        return torch.stack(list(vectors)).to(device)
    if all(vector is first for vector in vectors):
        return (first if first.data_ptr() % (4 * ALIGNED) == 0 else first.clone()).expand(len(vectors), -1)
    if first.dtype != torch.float32:
        return torch.stack(list(vectors))
    return torch.stack(list(vectors), out=blank(len(vectors), len(first), device))


def columns(fits: Sequence[Fit], device: torch.device) -> dict[str, Tensor]:
    """The settings of the local optimisers that are not the same for all, as columns ``[clients, 1]``.

    The learning rate of Adam, and one that terms see, is always a column: a number would enter in double precision.
    """
    first = fits[0]
    known = bool(first.terms) and all(isinstance(term, KNOWN_TERMS) for term in first.terms)
    found = {}
    for name in VARYING:
        values = [getattr(fit.optimizer, name) for fit in fits]
        always = name == "lr" and (known or first.optimizer.kind != "sgd")
        if always or any(value != values[0] for value in values):
            found[name] = placed(torch.tensor(values, dtype=torch.float32), device)[:, None]
    return found


def joined(terms: Sequence[Any], size: int, device: torch.device) -> Any:
    """One term for a stack, from the same term of each client."""
    first = terms[0]
    fields: dict[str, Any] = {}
    for name, value in vars(first).items():
        values = [getattr(term, name) for term in terms]
        if isinstance(value, Tensor):
            fields[name] = stacked(values, device)
        elif any(v != value for v in values):
            fields[name] = placed(torch.tensor(values, dtype=torch.float32), device)[:, None].expand(len(terms), size)
    return changed(first, **fields)


def cut(term: Any, count: int) -> Any:
    """The term for the first clients of a stack."""
    return changed(term, **{n: value[:count] for n, value in vars(term).items() if isinstance(value, Tensor)})


def dots(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each row of ``a`` with the row of ``b``."""
    if a.device.type == "cpu" and a.shape[-1] >= LONG:
        return torch.stack([torch.dot(x, y) for x, y in zip(a, b, strict=True)])
    found: Tensor = torch.linalg.vecdot(a, b)
    return found
