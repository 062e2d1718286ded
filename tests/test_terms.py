"""Terms are elementwise: one body for one client and for a stack, with numbers or a strength per coordinate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shoal.requests import Term
from shoal.terms import Hold, Lasso, Pull, Shift

W = torch.tensor([[1.0, -2.0, 0.0, 4.0], [0.5, 3.0, -1.0, 0.0]])
G = torch.tensor([[0.1, 0.2, 0.3, 0.4], [1.0, -1.0, 2.0, -2.0]])
ANCHOR = torch.tensor([[0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]])
STRENGTH = torch.tensor([[0.0, 1.0, 2.0, 0.5], [0.1, 0.2, 0.3, 0.4]])
LR = 0.1


def applied(term: Term, w: Tensor, g: Tensor, s: slice) -> tuple[Tensor, Tensor]:
    w, g = w[..., s].clone(), g[..., s].clone()
    term.gradient(w, g, s)
    term.after(w, s, LR)
    return w, g


CASES = {
    "shift": (lambda i: Shift(ANCHOR[i]), W, G + ANCHOR),
    "pull": (lambda i: Pull(0.7, ANCHOR[i]), W, G + 0.7 * (W - ANCHOR)),
    "pull by coordinate": (lambda i: Pull(STRENGTH[i], ANCHOR[i]), W, G + STRENGTH * (W - ANCHOR)),
    "hold": (lambda i: Hold(5.0, ANCHOR[i]), (W + 0.5 * ANCHOR) / 1.5, G),
    "hold by coordinate": (
        lambda i: Hold(STRENGTH[i], ANCHOR[i]),
        (W + LR * STRENGTH * ANCHOR) / (1 + LR * STRENGTH),
        G,
    ),
    "lasso": (lambda i: Lasso(0.3), W, G + 0.3 * torch.sign(W)),
    "lasso by coordinate": (lambda i: Lasso(STRENGTH[i]), W, G + STRENGTH * torch.sign(W)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("s", [slice(0, 4), slice(1, 3)])
def test_terms_follow_their_formulas_alone_and_stacked(name: str, s: slice) -> None:
    make, w, g = CASES[name]
    stacked = applied(make(slice(None)), W, G, s)
    torch.testing.assert_close(stacked, (w[:, s], g[:, s]))
    for i in (0, 1):
        torch.testing.assert_close(applied(make(i), W[i], G[i], s), (w[i, s], g[i, s]))
