"""What a stack does with gradients of its own, against torch doing the same for one client."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.engine.frozen import Each, Matrix, Pointwise, frozen
from shoal.engine.norms import Moments, mix, norm, normed
from shoal.engine.products import matmul
from shoal.models.backbones import Residual
from shoal.models.efficientnet import MBConv, SameConv2d
from shoal.models.resnet import Subsample
from shoal.models.teacher import flat, unflat

CLIENTS, ROWS, CHANNELS = 3, 7, 5


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("counts", [(7, 7, 7), (7, 2, 5)])
def test_batch_norm_is_torchs_on_the_rows_that_count(counts: tuple[int, ...]) -> None:
    x, scale, shift, d = (
        drawn(CLIENTS, n, CHANNELS, seed=seed) + 1 for seed, n in enumerate((ROWS, 1, 1, ROWS), start=1)
    )
    mask = (torch.arange(ROWS) < torch.tensor(counts)[:, None]).float().unsqueeze(2)
    ours = [t.clone().requires_grad_() for t in (x, scale, shift)]
    whole = all(count == ROWS for count in counts)
    y, moments = norm(*ours, 1e-5, torch.tensor(counts).float(), None if whole else mask)
    found = torch.autograd.grad(y, ours, d * mask)
    for c, count in enumerate(counts):
        theirs = [t[c].clone().requires_grad_() for t in (x, scale, shift)]
        mean, variance = torch.zeros(CHANNELS), torch.zeros(CHANNELS)
        real = theirs[0][:count]
        wanted = nn.functional.batch_norm(real, mean, variance, theirs[1][0], theirs[2][0], True, 1.0, 1e-5)
        torch.testing.assert_close(y[c, :count], wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(moments.mean[c, 0], mean)
        torch.testing.assert_close(moments.variance[c, 0] * count / (count - 1), variance)
        for mine, other in zip(found, torch.autograd.grad(wanted, theirs, d[c, :count]), strict=True):
            torch.testing.assert_close(mine[c], other, rtol=1e-4, atol=2e-5)
        fixed = nn.functional.batch_norm(x[c], mean, variance, scale[c, 0], shift[c, 0], False, 0.0, 1e-5)
        all_means = Moments(mean.expand(CLIENTS, 1, -1), variance.expand(CLIENTS, 1, -1))
        torch.testing.assert_close(normed(x, scale, shift, 1e-5, all_means)[c], fixed, rtol=1e-5, atol=1e-5)


def test_mixtures_and_products_have_autograds_gradients() -> None:
    alphas, weight, x, d = drawn(CLIENTS, 2), drawn(CLIENTS, 16, 4), drawn(CLIENTS, 8, 4), drawn(CLIENTS, 8, 16)
    other = drawn(CLIENTS, 8, 16, seed=1)

    def both(mixed: Any, product: Any) -> tuple[Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in (alphas, weight, x, other)]
        y = mixed(leaves[0], product(leaves[2], leaves[1]), leaves[3])
        return (y, *torch.autograd.grad(y, leaves, d))

    ours = both(lambda a, *ways: mix(a, ways), matmul)
    theirs = both(
        lambda a, first, second: a[:, 0, None, None] * first + a[:, 1, None, None] * second,
        lambda x, weight: torch.einsum("cni,coi->cno", x, weight),
    )
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)


def bottleneck() -> nn.Module:
    return MBConv(4, 4, 3, 1, 2).branch()


MODULES: dict[str, tuple[nn.Module, tuple[int, ...], type | None]] = {
    "3x3 on four pixels": (nn.Conv2d(4, 6, 3, padding=1), (4, 2, 2), Matrix),
    "3x3 with a stride": (nn.Conv2d(4, 6, 3, 2, 1, bias=False), (4, 3, 3), Matrix),
    "3x3 on one pixel": (nn.Conv2d(4, 6, 3, padding=1), (4, 1, 1), Matrix),
    "same padding": (SameConv2d(4, 6, 3, 2), (4, 4, 2), Matrix),
    "3x3 on many pixels": (nn.Conv2d(4, 6, 3, padding=1), (4, 6, 6), Each),
    "by channel": (nn.Conv2d(16, 16, 3, padding=1, groups=16), (16, 2, 2), Each),
    "pixels alone": (nn.Conv2d(4, 6, 1), (4, 3, 3), Pointwise),
    "pixels alone, with a stride": (nn.Conv2d(4, 6, 1, 2, bias=False), (4, 4, 4), Each),
    "linear": (nn.Linear(4, 6), (4,), Matrix),
    "pooling": (nn.MaxPool2d(3, 2, 1), (4, 4, 4), None),
    "a shortcut": (Subsample(2, 2), (4, 4, 4), None),
    "GELU": (nn.GELU(), (4, 2, 2), Each),
    "a bottleneck": (bottleneck(), (4, 2, 2), None),
    "residual": (
        Residual(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU6(), nn.BatchNorm2d(4)), nn.Identity()),
        (4, 2, 2),
        None,
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_frozen_module_for_all_clients_is_itself_for_each(name: str) -> None:
    module, shape, kind = MODULES[name]
    module.requires_grad_(False).eval()
    made = frozen(module, shape)
    assert kind is None or type(made) is kind
    x = flat(drawn(CLIENTS * 4, *shape)).view(CLIENTS, 4, -1).requires_grad_()
    y = made(x)
    wanted = torch.stack([flat(module(unflat(one, shape))) for one in x])
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    d = drawn(*y.shape)
    mine, theirs = (torch.autograd.grad(result, x, d)[0] for result in (y, wanted))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_line_with_nothing_to_gain_is_called_whole() -> None:
    wide = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    assert type(frozen(Residual(wide, nn.Identity()), (4, 8, 8))) is Each
    assert type(frozen(Residual(wide, nn.Identity()), (4, 2, 2))) is not Each
