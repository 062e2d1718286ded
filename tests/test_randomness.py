"""Named randomness: the same name the same numbers, another name others."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from shoal.randomness import Moment, generator, torch_seed


def first(*names: str | int) -> int:
    return int(generator(*names).integers(2**62))


def test_a_generator_is_philox_keyed_by_the_hash_of_its_names() -> None:
    key = int.from_bytes(hashlib.blake2b(b"(7, 'fit')", digest_size=16).digest(), "little")
    expected = np.random.Generator(np.random.Philox(key=key)).integers(2**62, size=3)
    np.testing.assert_array_equal(generator(7, "fit").integers(2**62, size=3), expected)


def test_names_are_told_apart() -> None:
    names = [(1,), ("1",), (1, 1), (11,), (1, "1"), (2**32 + 1,), ("a", "b"), ("a, b",), ("ab",)]
    assert len({first(*n) for n in names}) == len(names)
    assert first(np.int64(3), "x") == first(3, "x")


def test_a_moment_names_seed_round_exchange_client_and_purpose() -> None:
    streams = [
        Moment(0, 1).random("fit", 2),
        Moment(1, 1).random("fit", 2),
        Moment(0, 2).random("fit", 2),
        Moment(0, 1, 1).random("fit", 2),
        Moment(0, 1).random("fit", 3),
        Moment(0, 1).random("fit"),
        Moment(0, 1).random("other", 2),
    ]
    assert len({int(s.integers(2**62)) for s in streams}) == len(streams)


def test_global_generators_are_neither_read_nor_moved() -> None:
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    before = np.random.get_state()[1].copy(), torch.random.get_rng_state()  # type: ignore[index,union-attr]  # noqa: NPY002
    one = first("a")
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    assert first("a") == one
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    first("b")
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(torch.random.get_rng_state(), before[1])


def test_torch_seeds_fit_in_32_bits() -> None:
    seeds = {torch_seed(generator(i)) for i in range(100)}
    assert len(seeds) == 100
    assert max(seeds) < 2**32
    assert max(seeds) > 2**31


def test_every_kind_of_draw_is_that_of_the_key() -> None:
    key = int.from_bytes(hashlib.blake2b(b"(0, 'x')", digest_size=16).digest(), "little")
    ours, theirs = generator(0, "x"), np.random.Generator(np.random.Philox(key=key))
    for _ in range(2):
        np.testing.assert_array_equal(ours.permutation(50), theirs.permutation(50))
        np.testing.assert_array_equal(ours.random(7, dtype=np.float32), theirs.random(7, dtype=np.float32))
        np.testing.assert_array_equal(ours.normal(size=5), theirs.normal(size=5))


def test_generators_of_one_name_share_nothing() -> None:
    one, two = generator(1, "a"), generator(1, "a")
    first_four = one.integers(2**62, size=4)
    generator(2, "b").integers(2**62, size=3)
    np.testing.assert_array_equal(two.integers(2**62, size=4), first_four)
