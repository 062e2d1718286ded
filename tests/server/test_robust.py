"""The median, the trimmed mean and clipped changes, against numpy, scipy and arithmetic by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from server_steps import bits, group, sent

from shoal import registry
from shoal.bank import Entry
from shoal.checks import laws_mean
from shoal.errors import ConfigError
from shoal.messages import Group
from shoal.server import robust
from shoal.server.base import Mean
from shoal.server.robust import Clipped, Median, Trimmed

RANKED: list[Mean] = [Median(), Trimmed(beta=0.0), Trimmed(beta=0.2), Trimmed(beta=0.49)]
OLD = Entry(torch.tensor([7.0, -7.0, 7.0]))


def answers(count: int, size: int, seed: int = 0) -> tuple[np.ndarray, Group]:
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=(count, size)) * 10.0 ** rng.integers(-3, 3, size)).astype(np.float32)
    return values, group(*(sent(v, i) for i, v in enumerate(values)), weights=rng.uniform(1, 100, count).tolist())


def expected(mean: Mean, values: np.ndarray) -> np.ndarray:
    exact = values.astype(np.float64)
    if isinstance(mean, Median):
        return np.asarray(np.median(exact, axis=0))
    assert isinstance(mean, Trimmed)
    return np.asarray(scipy.stats.trim_mean(exact, mean.beta, axis=0))


@pytest.mark.parametrize("mean", RANKED, ids=lambda m: f"{type(m).__name__}{getattr(m, 'beta', '')}")
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 10, 11, 100])
def test_numpy_and_scipy_agree_whatever_the_rows(mean: Mean, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust, "CELLS", 7 * count)  # several blocks, the last one cut off
    values, given = answers(count, 30)
    found = mean.combine(Entry(torch.zeros(30)), given)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected(mean, values), rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize(("beta", "count", "cut"), [(0.29, 100, 29), (0.1, 9, 0), (0.1, 10, 1), (0.3, 10, 3)])
def test_how_many_are_cut_off(beta: float, count: int, cut: int) -> None:
    # Of the squares 0, 1, 4, ... the mean tells how many of them are left.
    values = [float(i * i) for i in range(count)]
    found = Trimmed(beta=beta).combine(Entry(torch.zeros(1)), group(*(sent([v], i) for i, v in enumerate(values))))
    kept = values[cut : count - cut]
    assert float(found) == pytest.approx(sum(kept) / len(kept), rel=1e-6)


def test_a_minority_of_any_size_is_nothing_to_them() -> None:
    good = [sent([1.0, -1.0], 0), sent([2.0, -2.0], 1), sent([3.0, -3.0], 2)]
    bad = [sent([1e30, -1e30], 3), sent([3e38, 3e38], 4)]
    given = group(*good, *bad, weights=(1.0, 1.0, 1.0, 1e9, 1e9))
    old = Entry(torch.zeros(2))
    assert Median().combine(old, given).tolist() == [3.0, -2.0]
    # One of each end of 5: of the first coordinate 2, 3 and 1e30 are left, so 20% were too few for two bad ones.
    assert float(Trimmed(beta=0.2).combine(old, given)[0]) > 1e29
    assert Trimmed(beta=0.4).combine(old, given).tolist() == [3.0, -2.0]


def test_a_client_drawn_twice_is_two_answers() -> None:
    given = group(sent([0.0], 0, times=3), sent([6.0], 1), sent([9.0], 2))
    old = Entry(torch.zeros(1))
    assert float(Median().combine(old, given)) == 0.0
    assert float(Trimmed(beta=0.2).combine(old, given)) == 2.0  # of 0, 0, 0, 6, 9 are left 0, 0, 6
    assert list(Median().weights(given)) == [3, 1, 1]


def test_masks_by_hand() -> None:
    parts = [
        sent([1.0, float("nan"), 1.0], 0, mask=torch.tensor([True, False, False])),
        sent([5.0, float("inf"), 2.0], 1, mask=torch.tensor([True, False, True])),
        sent([9.0, 0.0, 8.0], 2, mask=torch.tensor([True, False, True])),
    ]
    assert Median().combine(OLD, group(*parts)).tolist() == [5.0, -7.0, 5.0]
    assert Trimmed(beta=0.4).combine(OLD, group(*parts)).tolist() == [5.0, -7.0, 5.0]  # 2 of 3, then of 2 none
    single = group(sent([1.0, 2.0, 3.0], 0, mask=torch.tensor([False, True, False])))
    assert Median().combine(OLD, single).tolist() == [7.0, 2.0, 7.0]


@pytest.mark.parametrize("mean", [*RANKED, Clipped(bound=1e39)], ids=lambda m: type(m).__name__)
def test_equal_answers_come_back_bit_for_bit(mean: Mean) -> None:
    awkward = torch.tensor([0.0, -0.0, 1e-45, -1e-38, 0.1, -1 / 3, 3.4028235e38, -3.4028235e38])
    for count in (1, 2, 3, 6):
        given = group(*(sent(awkward.clone(), i) for i in range(count)), weights=[0.1 + i for i in range(count)])
        assert bits(mean.combine(Entry(torch.ones(8)), given)) == bits(awkward)


def test_a_midpoint_does_not_overflow() -> None:
    top = torch.finfo(torch.float32).max
    assert float(Median().combine(Entry(torch.zeros(1)), group(sent([top], 0), sent([top / 2], 1)))) == pytest.approx(
        0.75 * top
    )


def test_clipped_by_hand() -> None:
    # Changes from (1, -1): (3, 4) of norm 5, clipped to 2.5 is (1.5, 2); (-0.6, -0.8) of norm 1 stays; zero stays.
    old = Entry(torch.tensor([1.0, -1.0]))
    parts = [sent([4.0, 3.0], 0), sent([0.4, -1.8], 1), sent([1.0, -1.0], 2)]
    found = Clipped(bound=2.5).combine(old, group(*parts, weights=(1.0, 2.0, 1.0)))
    assert found.tolist() == pytest.approx([1 + (1.5 - 1.2) / 4, -1 + (2.0 - 1.6) / 4])
    alone = Clipped(bound=2.5).combine(old, group(parts[0]))
    assert alone.tolist() == pytest.approx([2.5, 1.0])


def test_a_change_of_exactly_the_bound_is_taken_as_it_is() -> None:
    given = group(sent([3.0, 4.0], 0))
    assert Clipped(bound=5.0).combine(Entry(torch.zeros(2)), given).tolist() == [3.0, 4.0]


def test_a_huge_change_is_clipped_without_overflow() -> None:
    top = torch.finfo(torch.float32).max
    found = Clipped(bound=1.0).combine(Entry(torch.zeros(4)), group(sent([top, -top, top, -top], 0)))
    assert found.tolist() == pytest.approx([0.5, -0.5, 0.5, -0.5])


def test_only_what_was_sent_is_measured() -> None:
    part = sent([10.0, float("nan"), 7.5], 0, mask=torch.tensor([True, False, True]))
    # The changes sent are 3 and 0.5.
    scale = 1.5 / (9.25**0.5)
    assert Clipped(bound=1.5).combine(OLD, group(part)).tolist() == pytest.approx([7 + 3 * scale, -7, 7 + 0.5 * scale])


@pytest.mark.parametrize(
    "law",
    [
        laws_mean.the_order_of_answers_is_no_matter,
        laws_mean.answers_stay_as_they_are,
        laws_mean.only_ratios_of_weights_count,
        laws_mean.a_mean_lies_among_the_answers,
    ],
)
def test_a_tight_bound_keeps_the_laws_that_are_not_about_equal_answers(law: Any) -> None:
    law(Clipped(bound=0.5))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "trimmed", "beta": 0.5}, r"0 <= beta < 0\.5; got 0\.5"),
        ({"kind": "trimmed", "beta": -0.1}, "got -0.1"),
        ({"kind": "clipped", "bound": 0}, "positive and finite"),
        ({"kind": "clipped", "bound": float("inf")}, "positive and finite"),
        ("clipped", r"mean\.bound: this setting is required"),
    ],
)
def test_a_wrong_setting_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.build("mean", registry.resolve("mean", given))


def test_answers_that_do_not_fit_are_refused() -> None:
    for mean in (Median(), Clipped(bound=1.0)):
        with pytest.raises(ValueError, match="client 3 sent a vector of shape"):
            mean.combine(OLD, group(sent([1.0], 3)))
    with pytest.raises(ValueError, match="at least one answer"):
        Median().combine(OLD, Group((), ()))
