"""Who takes part: exact counts, both ways of drawing, and the fates of those drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.config import Participation
from shoal.errors import ConfigError
from shoal.participation import Selection, count_of
from shoal.randomness import Moment


def selection(clients: int, rows: dict[int, int] | None = None, **settings: Any) -> Selection:
    return Selection(Participation(**settings), clients, lambda c: (rows or {}).get(c, 1))


@pytest.mark.parametrize(
    ("clients", "fraction", "expected"),
    # 100 * 0.29 is 28.999999999999996 in floating point; a third of 1 is 0 when it is cut off.
    [(3, 0.1, 1), (10, 0.29, 3), (100, 0.29, 29), (1, 1 / 3, 1), (10, 1.0, 10), (1000, 0.001, 1), (7, 0.5, 4)],
)
def test_fraction_is_rounded_and_never_zero(clients: int, fraction: float, expected: int) -> None:
    assert count_of(Participation(fraction=fraction), clients) == expected
    drawn = selection(clients, fraction=fraction).draw(Moment(0, 1))
    assert len(drawn) == expected
    assert [s.client for s in drawn] == sorted({s.client for s in drawn})


@pytest.mark.parametrize("bad", [{"fraction": 0}, {"fraction": 1.5}, {"count": 0}, {"straggler_probability": 1.1}])
def test_impossible_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Participation(**bad)


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="5 different clients a round, but only 4"):
        selection(4, count=5)
    with pytest.raises(ConfigError, match="only 2 can be drawn"):
        selection(4, count=3, probabilities=[0.5, 0.5, 0, 0], replacement=False)
    with pytest.raises(ConfigError, match="minimum"):
        selection(4, count=2, minimum=3)
    with pytest.raises(ConfigError, match="one number per client"):
        selection(4, probabilities=[1.0])
    with pytest.raises(ConfigError, match="not all zero"):
        selection(2, probabilities=[0.0, 0.0])


def test_rounds_and_seeds_differ_and_repeat() -> None:
    chosen = selection(50, count=5)
    ids = [tuple(s.client for s in chosen.draw(Moment(seed, r))) for seed in (0, 1) for r in (1, 2, 3)]
    assert len(set(ids)) == 6
    assert tuple(s.client for s in chosen.draw(Moment(1, 2))) == ids[4]


def test_with_replacement_a_client_may_count_several_times() -> None:
    chosen = selection(4, count=200, probabilities=[0.1, 0.2, 0.3, 0.4])
    assert chosen.replacement
    times = np.zeros(4)
    for r in range(20):
        drawn = chosen.draw(Moment(0, r + 1))
        assert sum(s.times for s in drawn) == 200
        for s in drawn:
            times[s.client] += s.times
    # 4,000 draws: a share has a standard error of at most 0.008.
    np.testing.assert_allclose(times / 4000, [0.1, 0.2, 0.3, 0.4], atol=0.03)


def test_probabilities_in_proportion_to_rows() -> None:
    chosen = selection(3, rows={0: 10, 1: 0, 2: 30}, count=1, probabilities="rows")
    assert chosen.probabilities is not None
    np.testing.assert_allclose(chosen.probabilities, [0.25, 0, 0.75])
    assert all(s.client != 1 for r in range(30) for s in chosen.draw(Moment(0, r + 1)))


def test_fates_have_their_probabilities() -> None:
    chosen = selection(100, straggler_probability=0.3, crash_probability=0.1)
    fates = [s for r in range(40) for s in chosen.draw(Moment(0, r + 1))]
    # 4,000 draws: standard errors 0.007 and 0.005.
    assert np.mean([s.straggler for s in fates]) == pytest.approx(0.3, abs=0.03)
    assert np.mean([s.crash for s in fates]) == pytest.approx(0.1, abs=0.02)
    sure = selection(3, straggler_probability=1.0, crash_probability=1.0).draw(Moment(0, 1))
    assert all(s.straggler and s.crash for s in sure)


def test_a_million_clients_cost_nothing() -> None:
    drawn = selection(1_000_000, count=10).draw(Moment(0, 1))
    assert len({s.client for s in drawn}) == 10


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("clients", [3, 40])
def test_draws_by_probability_are_numpys(clients: int, replacement: bool) -> None:
    p = np.random.default_rng(clients).random(clients) ** 6
    chosen = selection(clients, count=3, probabilities=p.tolist(), replacement=replacement)
    for r in range(50):
        plain = Moment(0, r).random("participation").choice(clients, 3, replacement, chosen.probabilities)
        assert [(s.client, s.times) for s in chosen.draw(Moment(0, r))] == sorted(
            (int(c), int((plain == c).sum())) for c in set(plain.tolist())
        )


def test_rows_that_are_known_at_once_are_not_asked_for() -> None:
    def never(client: int) -> int:
        raise AssertionError

    chosen = Selection(Participation(probabilities="rows", count=1), 3, never, lambda: np.array([1, 0, 3]))
    np.testing.assert_allclose(chosen.probabilities, [0.25, 0, 0.75])
