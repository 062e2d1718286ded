"""Flash's server, against the equations coordinate by coordinate in plain floats, and against FedAdam."""

from __future__ import annotations

import math

import pytest
import torch
from server_steps import walk

from shoal import registry
from shoal.bank import Entry
from shoal.errors import ConfigError
from shoal.randomness import Moment
from shoal.server.adaptive import Adam
from shoal.server.flash import Flash


def by_hand(changes: list[float], lr: float, b1: float, b2: float, tau: float, v: float) -> list[tuple[float, float]]:
    """The paper's lines for one coordinate from 0, with a denominator of at least tau: ``x`` and ``d``."""
    x = m = d = 0.0
    found = []
    for delta in changes:
        m = b1 * m + (1 - b1) * delta
        last, v = v, b2 * v + (1 - b2) * delta**2
        gap = delta**2 - v
        b3 = last / (abs(gap) + last) if abs(gap) + last > 0 else 1.0
        d = b3 * d + (1 - b3) * gap
        x += lr * m / max(math.sqrt(v) - d + tau, tau)
        found.append((x, d))
    return found


@pytest.mark.parametrize("v_init", ["tau-squared", "zero"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_equations(v_init: str, sign: float) -> None:
    changes = [0.01, 0.02, -0.01, 0.3, 0.3, -0.5, 0.0, 4.0, 0.1, 0.0]
    server = Flash(lr=0.05, beta1=0.8, beta2=0.9, tau=0.02, v_init=v_init)  # type: ignore[arg-type]
    found = walk(server, [0.0, 5.0], [[sign * c, 0.0] for c in changes])
    expected = by_hand([sign * c for c in changes], 0.05, 0.8, 0.9, 0.02, 0.0004 if v_init == "tau-squared" else 0.0)
    assert found.x == pytest.approx([x for x, _ in expected], rel=1e-5)
    assert found.number("d") == pytest.approx([d for _, d in expected], rel=1e-4, abs=1e-9)
    assert [float(e.vector[1]) for e in found.entries] == [5.0] * len(changes)  # frozen: to the bit


def test_the_first_round_by_hand() -> None:
    # v = 0.01 * 4, gap 3.96, nothing before: d = 3.96 > sqrt(v) = 0.2, so the denominator is tau.
    found = walk(Flash(lr=1.0, tau=0.5, v_init="zero"), [0.0], [[2.0]])
    assert found.number("d") == pytest.approx([3.96])
    assert found.x == pytest.approx([0.1 * 2 / 0.5])


def test_the_share_of_cut_denominators() -> None:
    # sqrt(v) = |Delta| / 10 and d = .99 Delta^2: cut above 0.101. Nothing moved is nothing cut.
    found = walk(Flash(tau=0.5, v_init="zero"), [0.0] * 5, [[2.0, -2.0, 0.102, 0.1, 0.0]])
    assert Flash().clamped_of(found.last) == pytest.approx(3 / 5)
    assert Flash().clamped_of(Entry(torch.zeros(5))) is None
    assert Adam().clamped_of(walk(Adam(), [0.0], [[2.0]]).last) is None


def test_small_changes_are_fedadam() -> None:
    changes = [[1e-5, -2e-5], [1.5e-5, -1e-5], [1e-5, 2e-5]]
    flash, adam = (walk(kind(v_init="zero"), [0.0, 0.0], changes) for kind in (Flash, Adam))
    assert flash.last.vector.tolist() == pytest.approx(adam.last.vector.tolist(), rel=1e-5)


def test_a_jump_lengthens_the_step_and_never_turns_it() -> None:
    calm = [[0.05]] * 30
    for jump in (0.5, 5.0, 1e3, 1e25):
        flash, adam = walk(Flash(), [0.0], [*calm, [jump]]), walk(Adam(), [0.0], [*calm, [jump]])
        moved = [w.x[-1] - w.x[-2] for w in (flash, adam)]
        assert moved[0] > moved[1] > 0
        assert all(torch.isfinite(number).all() for number in flash.last.server.values())
        assert float(Flash().denominator(flash.last.server)) > 0.00999


def test_nothing_at_all_stays_at_nothing() -> None:
    found = walk(Flash(v_init="zero"), [1.0], [[0.0], [0.0]])
    assert found.x == [1.0, 1.0]
    assert found.number("d") == found.number("v") == [0.0, 0.0]


def test_a_grown_entry_starts_anew() -> None:
    old = walk(Flash(), [0.0], [[1.0], [2.0]]).last
    grown = old.new(vector=torch.tensor([0.0, 0.0]))
    vector, numbers = Flash().step(grown, torch.tensor([1.0, 1.0]), Moment(0, 3), math.nan)
    fresh, first = Flash().step(Entry(torch.zeros(2)), torch.tensor([1.0, 1.0]), Moment(0, 3), math.nan)
    assert torch.equal(vector, fresh)
    assert torch.equal(numbers["d"], first["d"])


def test_what_is_told_and_what_it_has_not() -> None:
    told = registry.build("server", registry.resolve("server", "flash")).describe()
    assert told == {
        "class": "Flash",
        "lr": 0.1,
        "beta1": 0.9,
        "beta2": 0.99,
        "tau": 0.01,
        "v_init": "tau-squared",
        "v0": pytest.approx(1e-4),
        "first_effective_step": pytest.approx(5.0),
    }
    with pytest.raises(ConfigError, match="no such setting"):
        registry.resolve("server", {"kind": "flash", "bias_correction": True})
