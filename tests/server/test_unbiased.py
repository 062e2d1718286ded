"""The unbiased mean: its expectation over every possible draw, in exact fractions; its refusals; and in a run."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from server_steps import bits, group, sent

from shoal.bank import Entry
from shoal.checks.case import Case
from shoal.config import Participation
from shoal.errors import ConfigError
from shoal.messages import Part
from shoal.methods.fedavg import FedAvg
from shoal.participation import Selection
from shoal.randomness import Moment
from shoal.server.base import Mean
from shoal.server.means import Uniform, Weighted
from shoal.server.unbiased import Unbiased

ROWS = (1, 1, 2, 4)
CHANGES = ([8.0, -3.0], [-16.0, 5.0], [4.0, -64.0], [-1.0, 0.0])
START = [10.0, -7.0]
Draws = Iterator[tuple[Fraction, Counter[int]]]


class Meeting(FedAvg):
    """A method that says it has no server."""

    serverless = True


def selection(rows: Sequence[int], **settings: Any) -> Selection:
    return Selection(Participation(**settings), len(rows), lambda client: rows[client])


def with_replacement(p: Sequence[Fraction], draws: int) -> Draws:
    for clients in itertools.product(range(len(p)), repeat=draws):
        chance = Fraction(1)
        for client in clients:
            chance *= p[client]
        yield chance, Counter(clients)


def without_replacement(clients: int, draws: int) -> Draws:
    every = list(itertools.combinations(range(clients), draws))
    for some in every:
        yield Fraction(1, len(every)), Counter(some)


def expected(mean: Mean, draws: Draws) -> list[Fraction]:
    """The expectation of the step, from the float32 results; all numbers are chosen to be exact there."""
    total, chances = [Fraction(0), Fraction(0)], Fraction(0)
    old = Entry(torch.tensor(START))
    for chance, drawn in draws:
        parts = [
            sent([x + d for x, d in zip(START, CHANGES[client], strict=True)], client, times=times)
            for client, times in drawn.items()
        ]
        weights = [float(ROWS[part.client] * part.times) for part in parts]
        found = mean.combine(old, group(*parts, weights=weights)) - old.vector
        total = [t + chance * Fraction(float(value)) for t, value in zip(total, found, strict=True)]
        chances += chance
    assert chances == 1
    return total


ALL = [sum(Fraction(n, 8) * Fraction(d[i]) for n, d in zip(ROWS, CHANGES, strict=True)) for i in (0, 1)]
"""The step of all clients together: sum q_i d_i."""
HALVES = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 8)]
"""Not in proportion to the rows: a client with one row is drawn most."""
SCHEMES: dict[str, tuple[dict[str, Any], Callable[[], Draws]]] = {
    "listed": ({"probabilities": [4, 2, 1, 1], "count": 2}, lambda: with_replacement(HALVES, 2)),
    "listed-four": ({"probabilities": [4, 2, 1, 1], "count": 4}, lambda: with_replacement(HALVES, 4)),
    "rows": ({"probabilities": "rows", "count": 2}, lambda: with_replacement([Fraction(n, 8) for n in ROWS], 2)),
    "equal": ({"replacement": True, "count": 2}, lambda: with_replacement([Fraction(1, 4)] * 4, 2)),
    "without": ({"count": 2}, lambda: without_replacement(4, 2)),
    "one": ({"count": 1}, lambda: without_replacement(4, 1)),
    "all": ({}, lambda: without_replacement(4, 4)),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_over_all_draws_it_is_the_step_of_all_clients(scheme: str) -> None:
    settings, draws = SCHEMES[scheme]
    assert expected(Unbiased(selection(ROWS, **settings)), draws()) == ALL


def test_the_others_are_so_in_special_cases_only() -> None:
    by_rows = SCHEMES["rows"][1]
    assert expected(Uniform(), by_rows()) == ALL
    assert expected(Uniform(), SCHEMES["listed"][1]()) != ALL
    for scheme in ("rows", "listed", "without"):
        found = expected(Weighted(), SCHEMES[scheme][1]())
        assert max(abs(a - b) for a, b in zip(found, ALL, strict=True)) > Fraction(1, 10)


def test_awkward_numbers_to_rounding() -> None:
    # Rows 3, 10 and 7, drawn by 5, 1 and 3 of 9, three draws; changes of both signs.
    rows, changes, p = (3, 10, 7), (1.7, -0.3, -5.9), [Fraction(5, 9), Fraction(1, 9), Fraction(3, 9)]
    mean = Unbiased(selection(rows, probabilities=[5, 1, 3], count=3))
    old, total = Entry(torch.tensor([0.25])), 0.0
    for chance, drawn in with_replacement(p, 3):
        parts = [sent([0.25 + changes[client]], client, times=times) for client, times in drawn.items()]
        total += float(chance) * float(mean.combine(old, group(*parts)) - old.vector)
    assert total == pytest.approx((3 * 1.7 - 10 * 0.3 - 7 * 5.9) / 20, abs=1e-6)


def test_with_everybody_it_is_the_weighted_mean() -> None:
    generator = torch.Generator().manual_seed(1)
    parts = [Part(torch.randn(50, generator=generator), client=client) for client in range(4)]
    given = group(*parts, weights=[float(n) for n in ROWS])
    old = Entry(torch.randn(50, generator=generator))
    torch.testing.assert_close(Unbiased(selection(ROWS)).combine(old, given), Weighted().combine(old, given))


def test_what_is_lost_or_not_sent_is_a_change_of_zero() -> None:
    # Client 1 of rows 1 and 3 alone: 3/4 of its change; of the last coordinate nobody sent anything.
    mask = torch.tensor([True, False])
    part = Part(torch.tensor([8.0, float("inf")]), client=1, mask=mask)
    found = Unbiased(selection((1, 3))).combine(Entry(torch.tensor([4.0, -0.0])), group(part))
    assert found[0] == 7.0
    assert bits(found[1:]) == bits(torch.tensor([-0.0]))


def test_who_held_nothing_at_the_start_counts_nothing() -> None:
    old = Entry(torch.tensor([1.5, -2.5]))
    mean = Unbiased(selection((0, 5)))
    assert bits(mean.combine(old, group(sent([9.0, 9.0], 0))).clone()) == bits(old.vector)


def test_draws_by_rows_need_no_count_of_the_rows() -> None:
    asked: list[int] = []
    drawing = Selection(Participation(probabilities="rows", count=2), 4, lambda c: asked.append(c) or ROWS[c])
    before = len(asked)
    Unbiased(drawing)
    assert len(asked) == before


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (ROWS, {"probabilities": [1, 2, 3, 4], "replacement": False, "count": 2}, "no closed form.*replacement: true"),
        (ROWS, {"probabilities": [1, 0, 1, 0], "count": 2}, "0 for 2 of them, the first is client 1"),
        ((0, 0), {}, "nobody holds any"),
    ],
)
def test_what_cannot_be_unbiased_is_refused(rows: Sequence[int], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Unbiased(selection(rows, **settings))


def test_a_client_without_rows_need_not_be_drawn() -> None:
    mean = Unbiased(selection((0, 5, 5), probabilities=[0, 1, 1], count=1))
    assert [mean.factor(client) for client in range(3)] == [0.0, 1.0, 1.0]


def test_a_million_clients_are_not_counted() -> None:
    def never(client: int) -> int:
        raise AssertionError(client)

    with pytest.raises(ConfigError, match=r"all 1,000,000 clients.*mean: uniform"):
        Unbiased(Selection(Participation(count=10), 1_000_000, never))


def test_answers_without_a_client_are_an_error() -> None:
    for mean, message in ((Unbiased(selection(ROWS)), "got client -1"), (Unbiased(), "without a selection")):
        with pytest.raises(ValueError, match=message):
            mean.combine(Entry(torch.zeros(1)), group(sent([1.0], -1)))


def test_a_method_without_a_server_refuses_it() -> None:
    with pytest.raises(ConfigError, match="Unbiased weighs by how a server draws"):
        Case(method={"kind": "test_unbiased:Meeting", "mean": "unbiased"}).setup()


def test_in_a_run_the_step_is_that_of_the_formula() -> None:
    case = Case(method={"kind": "fedavg", "mean": "unbiased"}, stream={"tasks": 0})
    setup = case.setup(participation={"count": 2, "probabilities": [0.4, 0.3, 0.2, 0.1]})
    rows = [len(setup.stream.holding(client, 1).train) for client in range(4)]
    run, ends = case.play(setup, rounds=1), {}
    drawn = {s.client: s.times for s in setup.selection.draw(Moment(0, 1))}
    for client in drawn:  # each client's own end, from a run in which it is the only one
        alone = Case(stream={"tasks": 0})
        p = [float(c == client) for c in range(4)]
        ends[client] = alone.play(alone.setup(participation={"count": 1, "probabilities": p}), rounds=1)
    start = run.states[0].bank["global"].vector.double()
    step = sum(
        times * (rows[c] / sum(rows)) / [0.4, 0.3, 0.2, 0.1][c] / 2 * (ends[c].last.bank["global"].vector - start)
        for c, times in drawn.items()
    )
    torch.testing.assert_close(run.last.bank["global"].vector.double(), start + step, rtol=1e-5, atol=1e-6)
