"""Tables of fractions in whole numbers: rows and columns keep their sums."""

from fractions import Fraction

import numpy as np
import pytest

from shoal.randomness import generator
from shoal.streams.rounding import rounded


def exact(numerators, divisors):
    """The table in exact fractions."""
    return [[Fraction(int(n), int(d)) for n in row] for row, d in zip(numerators, divisors, strict=True)]


def check(numerators, divisors, seed=0):
    numerators, divisors = np.asarray(numerators), np.asarray(divisors)
    found = rounded(numerators, divisors, generator(seed, "rounding"))
    table = exact(numerators, divisors)
    for row, numbers in zip(table, found.tolist(), strict=True):
        assert sum(numbers) == sum(row)
        for fraction, number in zip(row, numbers, strict=True):
            assert abs(number - fraction) < 1
    for column in range(numerators.shape[1]):
        total = sum(row[column] for row in table)
        assert abs(int(found[:, column].sum()) - total) < 1
    return found


@pytest.mark.parametrize("seed", range(30))
def test_random_tables(seed):
    rng = generator(seed, "tables")
    rows, columns, total = rng.integers(1, 9), rng.integers(1, 9), int(rng.integers(1, 40))
    held = rng.integers(0, 12, (rows, columns)) * rng.integers(0, 2, (rows, columns))
    held[held.sum(axis=1) == 0, 0] = 1
    check(held * total, held.sum(axis=1), seed)


def test_whole_numbers_stay():
    table = np.array([[3, 0, 7], [0, 0, 4]])
    assert rounded(table * 6, np.array([6, 6]), generator(0, "x")).tolist() == table.tolist()


def test_sums_of_rows_and_columns_are_exact_where_they_are_whole():
    # Halves everywhere: every row and every column of the 4 x 4 table sums to 2.
    found = [check(np.ones((4, 4), dtype=int), np.full(4, 2), seed) for seed in range(200)]
    for table in found:
        assert table.sum(axis=0).tolist() == table.sum(axis=1).tolist() == [2, 2, 2, 2]
    # Lots decide: every place is 1 in about half of the tables (standard deviation 0.035).
    assert np.abs(np.mean(found, axis=0) - 0.5).max() < 0.15


def test_greedy_rounding_would_fail_here():
    # Row by row 1/2 + 1/2; only two of the four tables with whole rows have whole columns.
    tables = {tuple(check([[1, 1], [1, 1]], [2, 2], seed).reshape(-1)) for seed in range(40)}
    assert tables == {(1, 0, 0, 1), (0, 1, 1, 0)}


def test_nothing():
    assert rounded(np.zeros((0, 3), dtype=int), np.zeros(0, dtype=int), generator(0, "x")).shape == (0, 3)
    assert rounded(np.zeros((2, 3), dtype=int), np.array([1, 1]), generator(0, "x")).tolist() == [[0] * 3] * 2
