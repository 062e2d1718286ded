"""Products and curves for the clients of a stack, in which no client's bits depend on how many others there are.

Only where every client's numbers begin at a multiple of 64 bytes, see `columns` and `Chain.row_step`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ALIGNED = 16
"""Float32 numbers in 64 bytes: the width of the widest registers, and where torch's own memory begins."""
_VECTORS = 64
"""A multiple of the numbers that elementwise functions do at once."""


def room(like: Tensor, rows: int, width: int) -> Tensor:
    """Memory for ``[clients, rows, width]``, in which the numbers of each client begin at a multiple of `ALIGNED`."""
    each = -(-rows * width // ALIGNED) * ALIGNED
    return torch.empty(len(like), each, dtype=like.dtype, device=like.device)[:, : rows * width].view(-1, rows, width)


def roomy(x: Tensor) -> Tensor:
    """``x`` ``[clients, rows, width]`` in such memory: itself, or a copy."""
    return x if len(x) == 1 or x.stride(0) % ALIGNED == 0 else room(x, *x.shape[1:]).copy_(x)


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """``a @ b`` of each client: ``[clients, n, k]`` and ``[clients, k, m]``."""
    if len(a) > 1 or not _is_thin(a, b):
        return torch.bmm(a, b) if out is None else torch.bmm(a, b, out=out)
    a, b = a.expand(2, -1, -1), b.expand(2, -1, -1)
    return torch.bmm(a, b)[:1] if out is None else out.copy_(torch.bmm(a, b, out=_two_like(out))[:1])


def add_product(bias: Tensor, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """``bias + a @ b`` of each client; ``bias`` is ``[clients, 1, m]``, or ``[1, m]`` for all."""
    if len(a) == 1 and _is_thin(a, b):
        bias, a, b = bias.expand(2, 1, -1), a.expand(2, -1, -1), b.expand(2, -1, -1)
        return out.copy_(torch.baddbmm(bias, a, b, out=_two_like(out))[:1])
    return torch.baddbmm(bias, a, b, out=out)


def add_product_(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds ``a @ b`` of each client to ``out``, in place: the product does it, and nothing is written in between."""
    # By the shapes alone: what is thin is another product for a single client.
    if _is_thin(a, b):
        out.add_(product(a, b))
    else:
        out.baddbmm_(a, b)


def _is_thin(a: Tensor, b: Tensor) -> bool:
    """Of a single client these are matrix times vector, which is summed in another order than in a batch."""
    return 1 in (a.shape[1], a.shape[2], b.shape[2])


def _two_like(out: Tensor) -> Tensor:
    """Memory for two of ``out``, ``[1, n, m]``, each of which begins as far from a multiple of `ALIGNED` as it does."""
    begin, size = out.data_ptr() // out.element_size() % ALIGNED, out[0].numel()
    rows = torch.empty(2, -(-(begin + size) // ALIGNED) * ALIGNED, dtype=out.dtype, device=out.device)
    return rows[:, begin : begin + size].view(2, *out.shape[1:])


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        back = product(d, weight) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return back, None
        count, outputs, inputs = weight.shape
        own = torch.empty(count, -(-outputs * inputs // ALIGNED) * ALIGNED, dtype=x.dtype, device=x.device)
        own = own[:, : outputs * inputs]
        return back, product(d.transpose(1, 2), x, own.view(weight.shape))


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` ``[clients, n, inputs]`` through linear layers without bias, ``weight`` ``[clients, outputs, inputs]``.

    Autograd goes backward through it by products of the same kind.
    """
    found: Tensor = _Matmul.apply(x, weight)  # type: ignore[no-untyped-call]
    return found


def gelu(x: Tensor, approximate: str) -> Tensor:
    """GELU. The last numbers of memory, too few for a register, would be done by another formula."""
    return F.gelu(_whole(x), approximate=approximate)[: x.numel()].view(x.shape)


def gelu_back(d: Tensor, x: Tensor, approximate: str) -> Tensor:
    """The derivative of `gelu` at ``x``, times ``d``."""
    found: Tensor = torch.ops.aten.gelu_backward(_whole(d), _whole(x), approximate=approximate)
    return found[: x.numel()].view(x.shape)


def _whole(x: Tensor) -> Tensor:
    """The numbers in one row, with zeros behind them up to a whole number of registers."""
    return F.pad(x.reshape(-1), (0, -x.numel() % _VECTORS))
