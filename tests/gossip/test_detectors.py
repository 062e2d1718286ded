"""Detectors on series of losses: limits worked out by hand, false alarms against the t-distribution, river's own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.gossip.detectors import Detector, Jump
from shoal.registry import build, resolve


def made(kind: str, **settings: object) -> Detector:
    detector: Detector = build("detector", resolve("detector", {"kind": kind, **settings}))
    return detector


def alarms(detector: Detector, losses: Sequence[float]) -> list[int]:
    """The places of the alarms in a series that is watched as a client does."""
    found: list[int] = []
    past: list[float] = []
    for place, loss in enumerate(losses):
        if detector.alarm(past[-detector.window :], loss):
            found.append(place)
            past = []
        else:
            past.append(loss)
    return found


def test_the_limit_by_hand() -> None:
    # Mean 2, standard deviation 1 (n - 1), sqrt(1 + 1/3) = 1.1547: the limit is 2 + 3 * 1.1547 = 5.4641.
    jump = Jump(threshold=3.0, rise=0.0, warmup=3)
    assert not jump.alarm([1.0, 2.0, 3.0], 5.46)
    assert jump.alarm([1.0, 2.0, 3.0], 5.47)
    # A rise by 200 % is more: 2 + 4.
    jump = Jump(threshold=3.0, rise=2.0, warmup=3)
    assert not jump.alarm([1.0, 2.0, 3.0], 5.99)
    assert jump.alarm([1.0, 2.0, 3.0], 6.01)


def test_only_rises_after_the_warm_up_count() -> None:
    jump = Jump(warmup=4)
    assert alarms(jump, [1.0, 1.1, 0.9, 50.0]) == []
    assert alarms(jump, [1.0, 1.1, 0.9, 1.0, 50.0]) == [4]
    assert alarms(jump, [9.0, 9.1, 8.9, 9.0, 0.1]) == []


def test_constants_are_no_shift_and_the_smallest_rise_over_them_must_be_a_share() -> None:
    jump = Jump(rise=0.25)
    assert alarms(jump, [0.0] * 30) == alarms(jump, [2.0] * 30) == []
    assert not jump.alarm([2.0] * 6, 2.4)
    assert jump.alarm([2.0] * 6, 2.6)
    # Losses may be negative, as with a likelihood of one's own.
    assert not jump.alarm([-2.0] * 6, -1.6)
    assert jump.alarm([-2.0] * 6, -1.4)


def test_falling_losses_raise_none_and_the_past_begins_anew_after_an_alarm() -> None:
    falling = [2.3 * math.exp(-0.2 * t) + 0.3 for t in range(25)]
    assert alarms(Jump(), [*falling, 6.0, *falling, 6.0]) == [25, 51]
    # Right after an alarm nothing is known: the second jump falls into the warm-up.
    assert alarms(Jump(warmup=5), [1.0] * 6 + [9.0] + [1.0] * 4 + [9.0]) == [6]


@pytest.mark.parametrize(("known", "threshold"), [(5, 2.0), (10, 3.0)])
def test_false_alarms_are_those_of_the_t_distribution(known: int, threshold: float) -> None:
    from scipy.stats import t

    rng = np.random.default_rng(3)
    draws = rng.normal(5.0, 0.3, size=(5_000, known + 1)).tolist()
    jump = Jump(threshold=threshold, rise=0.0, warmup=2, window=10)
    share = sum(jump.alarm(row[:-1], row[-1]) for row in draws) / len(draws)
    expected = t.sf(threshold, known - 1)
    assert share == pytest.approx(expected, abs=4 * math.sqrt(expected / len(draws)))


def test_the_documented_false_alarms() -> None:
    from scipy.stats import t

    assert t.sf(4, 4) == pytest.approx(0.008, abs=0.0005)
    assert t.sf(4, 9) == pytest.approx(0.0016, abs=0.0001)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup": 11}, "at most as many losses as are kept"),
        ({"warmup": 1}, "warmup"),
        ({"threshold": -1}, "threshold"),
        ({"rows": "test"}, "rows"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made("jump", **settings)


def test_without_river_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "river", None)
    with pytest.raises(ConfigError, match=r"^detector\.kind: river needs .* pip install 'shoal\[detect\]'"):
        made("river")


@pytest.mark.parametrize("name", ["ADWIN", "KSWIN", "PageHinkley"])
def test_detectors_of_river(name: str) -> None:
    pytest.importorskip("river")
    detector = made("river", detector=name)
    rng = np.random.default_rng(0)
    calm = (0.3 + 0.02 * rng.normal(size=40)).tolist()
    high = (0.9 + 0.02 * rng.normal(size=20)).tolist()
    assert alarms(detector, [0.4] * 60) == []
    found = alarms(detector, calm + high)
    assert found
    assert 40 <= found[0] < 50
    assert alarms(detector, calm + high) == found
    # One-sided, unless told otherwise.
    falls = [2 - x for x in calm + high]
    assert alarms(detector, falls) == []


def test_rivers_own_settings_win_and_wrong_ones_are_refused() -> None:
    pytest.importorskip("river")
    assert made("river", settings={"threshold": 2.0}).settings["threshold"] == 2.0  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="does not take these"):
        made("river", settings={"patience": 3})
    with pytest.raises(ConfigError, match="twice its stat_size"):
        made("river", detector="KSWIN", settings={"window_size": 8})
    with pytest.raises(ConfigError, match="needs a seed"):
        made("river", detector="KSWIN", settings={"seed": None})
