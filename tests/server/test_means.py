"""The means, against numpy's float64 average, exact fractions, and the rule that equal answers come back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from server_steps import bits, group, sent

from shoal.bank import Entry
from shoal.errors import ConfigError
from shoal.messages import Group, Part
from shoal.server.means import Listed, Uniform, Weighted, shares
from shoal.server.sums import BLOCK

OLD = Entry(torch.zeros(1))
AWKWARD = torch.tensor([0.0, -0.0, 1e-45, -1e-38, 0.1, -1 / 3, 3.4028235e38, -3.4028235e38, 16777217.0])


def random_parts(clients: int, size: int, seed: int = 0) -> tuple[Part, ...]:
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-6, 6, size)
    return tuple(sent((rng.normal(size=size) * scale).astype(np.float32), i) for i in range(clients))


def assert_nearest(found: torch.Tensor, exact: np.ndarray, values: np.ndarray) -> None:
    """Within one float32 rounding of the exact mean, and of the float64 rounding of the largest value."""
    gap = np.abs(found.numpy().astype(np.float64) - exact)
    assert (gap <= np.spacing(np.abs(exact).astype(np.float32)) + 1e-14 * np.abs(values).max(0)).all()


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_weighted_is_the_float64_average(size: int) -> None:
    parts = random_parts(5, size)
    rows = (1.0, 60_000.0, 17.0, 3.0, 250.0)
    values = np.stack([p.vector.numpy() for p in parts]).astype(np.float64)
    found = Weighted().combine(Entry(torch.zeros(size)), Group(parts, rows))
    assert found.dtype == torch.float32
    assert_nearest(found, np.average(values, axis=0, weights=rows), values)


@pytest.mark.parametrize("clients", [4, 7, 15])
@pytest.mark.parametrize("rows", [60_000, 2**31, 2**53])
def test_many_rows_do_not_overflow(clients: int, rows: int) -> None:
    parts = random_parts(clients, 100, seed=clients)
    weights = tuple(float(rows + i) for i in range(clients))
    values = np.stack([p.vector.numpy() for p in parts]).astype(np.float64)
    found = Weighted().combine(Entry(torch.zeros(100)), Group(parts, weights))
    assert_nearest(found, np.average(values, axis=0, weights=weights), values)


def test_a_client_with_one_row_beside_one_with_two_to_the_31() -> None:
    found = Weighted().combine(OLD, group(sent([2.0**31], 0), sent([0.0], 1), weights=(1.0, 2.0**31)))
    assert float(found) == pytest.approx(2**31 / (2**31 + 1), rel=1e-7)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e308])
def test_only_the_ratio_of_weights_counts(scale: float) -> None:
    found = Weighted().combine(OLD, group(sent([1.0]), sent([2.0]), sent([4.0]), weights=(scale, scale, scale / 2)))
    assert float(found) == 2.0  # (1 + 2 + 4/2) / 2.5


def test_weighted_and_uniform_differ_as_they_should() -> None:
    answers = group(sent([0.0], 0), sent([1.0], 1), weights=(1.0, 99.0))
    assert float(Weighted().combine(OLD, answers)) == pytest.approx(0.99, rel=1e-7)
    assert float(Uniform().combine(OLD, answers)) == 0.5


def test_fractional_weights_of_stale_answers() -> None:
    # One answer of staleness 3 from 100 rows and ten fresh ones from 10 rows each, damped by 1 / (1 + s).
    answers = [sent([1.0], 0), *(sent([0.0], i) for i in range(1, 11))]
    found = Weighted().combine(OLD, group(*answers, weights=(100 / 4, *(10.0,) * 10)))
    assert float(found) == pytest.approx(25 / 125)


def test_draws_count_once_in_each_mean() -> None:
    # Client 1 was drawn three times and has 20 rows; Group.weights hold rows times draws already.
    answers = group(sent([0.0], 0, times=1), sent([8.0], 1, times=3), weights=(10.0, 60.0))
    assert float(Weighted().combine(OLD, answers)) == pytest.approx(8 * 60 / 70)
    assert float(Uniform().combine(OLD, answers)) == 6.0  # 8 * 3 / 4
    assert float(Listed(weights=[5.0, 1.0]).combine(OLD, answers)) == 3.0  # 8 * 3 / (5 + 3)


@pytest.mark.parametrize("weights", [[2.0, 7.0, 6.0], {0: 2.0, 2: 6.0, 99: 1.0}])
def test_listed_weights_are_by_client_id(weights: list[float] | dict[int, float]) -> None:
    found = Listed(weights=weights).combine(OLD, group(sent([0.0], 0), sent([4.0], 2), weights=(9.0, 1.0)))
    assert float(found) == 3.0  # 4 * 6 / (2 + 6): only those who answered


@pytest.mark.parametrize(("weights", "client"), [([1.0, 1.0], 2), ({0: 1.0, 5: 1.0}, 3), ([1.0], -1)])
def test_a_client_without_a_listed_weight_is_named(weights: object, client: int) -> None:
    mean = Listed(weights=weights)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"none for client {client}\. Listed: 0"):
        mean.combine(OLD, group(sent([1.0], 0), sent([1.0], client)))


@pytest.mark.parametrize("weights", [[], {}, [1.0, 0.0], [1.0, -1.0], [float("nan")], {4: float("inf")}])
def test_listed_weights_must_be_positive(weights: object) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        Listed(weights=weights)  # type: ignore[arg-type]


MEANS = [Weighted(), Uniform(), Listed(weights=[1e-3, 1.0, 7.0, 1e9])]


@pytest.mark.parametrize("mean", MEANS, ids=lambda m: type(m).__name__)
@settings(deadline=None, derandomize=True)
@given(weights=st.lists(st.floats(1e-9, 2.0**40), min_size=1, max_size=4), times=st.integers(1, 5), mask=st.booleans())
def test_equal_answers_come_back_bit_for_bit(mean: Weighted, weights: list[float], times: int, mask: bool) -> None:
    everything = torch.ones(len(AWKWARD), dtype=torch.bool) if mask else None
    parts = [Part(AWKWARD.clone(), mask=everything, client=i, times=times) for i in range(len(weights))]
    found = mean.combine(Entry(torch.ones(len(AWKWARD))), group(*parts, weights=weights))
    assert bits(found) == bits(AWKWARD)


def test_the_answer_of_a_single_client_is_copied() -> None:
    part = sent(AWKWARD)
    found = Weighted().combine(Entry(torch.ones(len(AWKWARD))), group(part, weights=(3.0,)))
    assert bits(found) == bits(AWKWARD)
    assert found.data_ptr() != part.vector.data_ptr()


def test_extremes_neither_overflow_nor_leave_their_range() -> None:
    top = torch.finfo(torch.float32).max
    assert float(Weighted().combine(OLD, group(sent([top]), sent([-top]), weights=(1.0, 1.0)))) == 0.0
    assert float(Weighted().combine(OLD, group(sent([-top]), sent([top]), weights=(1.0, 3.0)))) == pytest.approx(
        top / 2
    )


@settings(deadline=None, derandomize=True)
@given(order=st.permutations(range(6)))
def test_the_order_of_clients_changes_a_rounding_at_most(order: list[int]) -> None:
    parts, weights = random_parts(6, 40), (1.0, 2.0, 3.0, 500.0, 7.0, 0.5)
    values = np.stack([p.vector.numpy() for p in parts]).astype(np.float64)
    found = Weighted().combine(
        Entry(torch.zeros(40)), Group(tuple(parts[i] for i in order), tuple(weights[i] for i in order))
    )
    assert_nearest(found, np.average(values, axis=0, weights=weights), values)


def test_a_client_split_in_two_counts_as_before() -> None:
    whole = group(sent([0.3], 0), sent([-1.7], 1), weights=(10.0, 30.0))
    split = group(sent([0.3], 0), sent([-1.7], 1), sent([-1.7], 2), weights=(10.0, 18.0, 12.0))
    assert bits(Weighted().combine(OLD, whole)) == bits(Weighted().combine(OLD, split))


def test_masks_by_hand() -> None:
    old = Entry(torch.tensor([10.0, 20.0, 30.0, 40.0]))
    first = sent([1.0, 2.0, 3.0, 4.0], 0, mask=torch.tensor([True, False, False, True]))
    second = sent([5.0, float("nan"), 7.0, 8.0], 1, mask=torch.tensor([True, False, True, True]))
    found = Weighted().combine(old, group(first, second, weights=(1.0, 3.0)))
    assert found.tolist() == [4.0, 20.0, 7.0, 7.0]  # (1 + 15)/4; nobody; only the second; (4 + 24)/4


def test_an_answer_without_a_mask_sends_everything() -> None:
    masked = sent([3.0, float("inf")], 0, mask=torch.tensor([True, False]))
    found = Weighted().combine(Entry(torch.zeros(2)), group(masked, sent([-1.0, 5.0], 1), weights=(1.0, 3.0)))
    assert found.tolist() == [0.0, 5.0]


def test_masked_means_over_several_blocks() -> None:
    size = BLOCK + 1000
    rng = np.random.default_rng(3)
    values = rng.normal(size=(4, size)).astype(np.float32)
    masks = rng.random((4, size)) < 0.4
    weights = np.array([2.0**31, 1.0, 60_000.0, 5.0])
    old = rng.normal(size=size).astype(np.float32)
    parts = [sent(v, i, mask=torch.from_numpy(m)) for i, (v, m) in enumerate(zip(values, masks, strict=True))]
    found = Weighted().combine(Entry(torch.from_numpy(old)), group(*parts, weights=tuple(weights))).numpy()
    total = (weights[:, None] * masks).sum(0)
    exact = (weights[:, None] * masks * values.astype(np.float64)).sum(0) / np.where(total > 0, total, 1)
    nobody = ~masks.any(0)
    assert nobody.any()
    assert (found[nobody] == old[nobody]).all()
    np.testing.assert_allclose(found[~nobody], exact[~nobody], rtol=1.2e-7, atol=1e-9)


def test_answers_that_do_not_fit_are_refused() -> None:
    old = Entry(torch.zeros(3))
    with pytest.raises(ValueError, match=r"client 7 sent a vector of shape \(2,\) for an entry of shape \(3,\)"):
        Weighted().combine(old, group(sent([1.0, 1.0, 1.0], 0), sent([1.0, 1.0], 7)))
    with pytest.raises(ValueError, match="client 4 sent no vector"):
        Weighted().combine(old, group(Part(None, client=4)))
    with pytest.raises(ValueError, match="a mask is bool"):
        Weighted().combine(old, group(sent([1.0] * 3, mask=torch.ones(3))))
    with pytest.raises(ValueError, match="a mask is bool"):
        Weighted().combine(old, group(sent([1.0] * 3, mask=torch.ones(2, dtype=torch.bool))))
    with pytest.raises(ValueError, match="one weight per part"):
        Weighted().combine(old, group(sent([1.0] * 3), weights=(1.0, 1.0)))


@pytest.mark.parametrize("weights", [[], [1.0, 0.0], [-1.0], [float("nan"), 1.0], [float("inf")]])
def test_shares_refuse_weights_that_are_not_positive(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        shares(weights)


def test_inputs_are_left_alone_and_threads_change_nothing() -> None:
    size = 2 * BLOCK
    parts = random_parts(3, size)
    masked = tuple(Part(p.vector, client=p.client, mask=torch.arange(size) % (i + 2) == 0) for i, p in enumerate(parts))
    before = [bits(p.vector) for p in parts]
    old = Entry(torch.full((size,), 0.25))
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            found.append([bits(Weighted().combine(old, Group(some, (1.0, 2.0, 4.0)))) for some in (parts, masked)])
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2]
    assert [bits(p.vector) for p in parts] == before
    assert (old.vector == 0.25).all()
