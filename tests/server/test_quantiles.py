"""Quantiles against numpy, which coordinates are looked at, and what a step notes of its pseudo-gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from server_steps import NAN, group, sent

from shoal import registry
from shoal.bank import Entry
from shoal.config import Local
from shoal.learners.base import Learner
from shoal.messages import Part, World
from shoal.methods.fedavg import FedAvg
from shoal.randomness import Moment, generator
from shoal.server.base import Mean, ServerOptimizer
from shoal.server.means import Weighted
from shoal.server.plain import SGD, Momentum
from shoal.server.quantiles import CHANGE, LIMIT, SHARES, change, quantiles, root, sample, stride
from shoal.server.robust import Clipped, Median

SHAPES: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "both signs": lambda x: x,
    "heavy tails": lambda x: np.sign(x) * np.abs(x) ** 9,
    "many zeros": lambda x: np.where(x > 0, 0.0, x),
    "all equal": lambda x: 0 * x - 0.25,
    "around one value": lambda x: 0.01 + 1e-6 * x,
    "denormal": lambda x: 1e-42 * x,
    "two sizes": lambda x: np.where(x > 0, 1e-30, 1e30),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 3, 20, 21, 4097])
def test_they_are_numpys(size: int, shape: str) -> None:
    x = SHAPES[shape](generator(0, "quantiles", size).normal(size=size)).astype(np.float32)
    expected = np.quantile(np.abs(x).astype(np.float64), SHARES)
    np.testing.assert_allclose(quantiles(torch.from_numpy(x)), expected, rtol=1e-12)
    ends = quantiles(torch.from_numpy(x), (0.0, 1.0))
    assert ends.tolist() == [np.abs(x).min(), np.abs(x).max()]


def test_numbers_of_any_shape_and_none() -> None:
    assert quantiles(torch.tensor(-3.0)).tolist() == [3.0] * 5
    assert quantiles(torch.arange(6.0).reshape(2, 3), (0.5,)).tolist() == [2.5]
    assert quantiles(torch.tensor([-0.0, 0.0])).tolist() == [0.0] * 5
    with pytest.raises(ValueError, match="at least one number"):
        quantiles(torch.zeros(0))


def test_infinities_are_larger_than_every_number() -> None:
    # Five numbers: the shares 0, 1/4, ..., 1 are those numbers themselves, 3/8 lies half-way between 2 and 3.
    found = quantiles(torch.tensor([math.inf, 1.0, 2.0, 3.0, -math.inf]), (0.0, 0.25, 0.375, 0.5, 0.75, 1.0))
    assert found.tolist() == [1.0, 2.0, 2.5, 3.0, math.inf, math.inf]
    assert quantiles(torch.full((4,), math.inf)).tolist() == [math.inf] * 5


def test_nothing_is_changed_in_place() -> None:
    x = torch.tensor([3.0, -1.0, 2.0])
    quantiles(x)
    change(x, 2 * x)
    assert x.tolist() == [3.0, -1.0, 2.0]


def test_up_to_the_limit_every_coordinate_counts() -> None:
    assert [stride(size) for size in (0, 1, LIMIT)] == [1, 1, 1]
    x = torch.zeros(LIMIT)
    x[1::2] = 1.0
    assert quantiles(x, (0.5,)).tolist() == [0.5]


@pytest.mark.parametrize("size", [LIMIT + 1, 10 * LIMIT, 11_173_962])
def test_a_stride_takes_every_place_of_a_layer_alike(size: int) -> None:
    step = stride(size)
    assert -(-size // step) <= LIMIT
    assert all(math.gcd(step, side) == 1 for side in (9, 25, 10, 64))
    # No smaller one does both.
    assert all(math.gcd(s, 30) > 1 for s in range(-(-size // LIMIT), step))


def test_a_sample_is_every_kth_coordinate() -> None:
    x = torch.arange(float(LIMIT + 1))
    assert torch.equal(sample(x), x[::7])
    np.testing.assert_allclose(quantiles(x), np.quantile(x.numpy()[::7].astype(np.float64), SHARES))


# ---- what a step notes ------------------------------------------------------------------------------------------


def merged(server: ServerOptimizer, mean: Mean, old: Entry, *parts: Part, weights: tuple[float, ...]) -> Entry:
    world = World(seed=0, clients=3, rounds=5, models={})
    method = FedAvg(world, Learner(world, Local()), mean, server)
    return method.merge_entry("global", old, group(*parts, weights=weights), Moment(0, 1))


@pytest.mark.parametrize("server", [SGD(), SGD(lr=0.5), Momentum(lr=3.0), registry.build("server", {"kind": "yogi"})])
def test_the_change_is_that_of_the_mean_whatever_the_server_does(server: ServerOptimizer) -> None:
    old = Entry(torch.tensor([1.0, -1.0, 0.5, 0.0]))
    answers = sent([2.0, -1.0, 0.5, -4.0], 0), sent([2.0, -5.0, 0.5, 4.0], 1)
    # The mean is (1 : 3) [2, -4, .5, 2], so |Delta| is [1, 3, 0, 2].
    entry = merged(server, Weighted(), old, *answers, weights=(1.0, 3.0))
    assert entry.server[CHANGE].dtype == torch.float64
    assert entry.server[CHANGE].tolist() == pytest.approx([0.15, 0.75, 1.5, 2.25, 2.85])


def test_the_change_is_that_of_robust_means() -> None:
    old = Entry(torch.zeros(2))
    answers = sent([3.0, 4.0], 0), sent([0.0, 0.0], 1), sent([300.0, -400.0], 2)
    clipped = merged(SGD(lr=0.1), Clipped(bound=1.0), old, *answers, weights=(1.0, 1.0, 1.0))
    # Norms are cut to 1: (.6, .8), (0, 0), (.6, -.8); their mean is (.4, 0).
    assert clipped.server[CHANGE].tolist() == pytest.approx([0.02, 0.1, 0.2, 0.3, 0.38], abs=1e-6)
    median = merged(SGD(lr=0.1), Median(), old, *answers, weights=(1.0, 1.0, 1.0))
    assert median.server[CHANGE].tolist() == pytest.approx([0.15, 0.75, 1.5, 2.25, 2.85])  # of 3 and 0


def test_only_a_step_notes_and_the_last_one_counts() -> None:
    first = merged(SGD(), Weighted(), Entry(torch.zeros(1)), sent([2.0]), weights=(1.0,))
    assert first.server[CHANGE].tolist() == [2.0] * 5
    told = merged(SGD(), Weighted(), first, Part(None, extra={"prior": torch.ones(1)}), weights=(1.0,))
    assert told.server[CHANGE] is first.server[CHANGE]
    second = merged(SGD(), Weighted(), first, sent([-1.0]), weights=(1.0,))
    assert second.server[CHANGE].tolist() == [3.0] * 5
    assert first.server[CHANGE].tolist() == [2.0] * 5


def test_where_there_is_no_number_nothing_is_noted() -> None:
    assert change(torch.zeros(0), torch.zeros(0)) == {}
    assert change(torch.zeros(2), torch.zeros(3)) == {}
    assert change(torch.zeros(2), torch.tensor([NAN, 1.0])) == {}
    # A difference above float32's range is no infinity in Entry.server, which would undo the round.
    huge = torch.finfo(torch.float32).max
    assert change(torch.tensor([-huge]), torch.tensor([huge]))[CHANGE].tolist() == [huge] * 5


# ---- the size of a second moment --------------------------------------------------------------------------------


def test_the_root_is_over_coordinates_that_moved() -> None:
    v = torch.tensor([0.0, 4.0, 0.0, 16.0, 1.0])
    assert root(v, 0.5) == 2.0
    assert root(v, 0.25) == 1.5
    assert (root(v, 0.0), root(v, 1.0)) == (1.0, 4.0)
    assert root(torch.zeros(5), 0.5) is None
    assert root(torch.tensor(9.0), 0.5) == 3.0


def test_a_small_part_of_a_large_entry_is_found() -> None:
    v = torch.zeros(LIMIT + 1)
    v[1] = 9.0  # not in the sample
    v[8] = 1.0
    assert root(v, 0.5) == 2.0
    v[7] = 25.0  # in it
    assert root(v, 0.5) == 5.0
