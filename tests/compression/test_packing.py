"""Numbers of a few bits as bytes: against Python's own integers."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.compression.packing import BLOCK, Reader, pack, packed_size, unpack


@pytest.mark.parametrize("bits", [1, 2, 3, 7, 8, 11, 16, 24])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 1001])
def test_the_bytes_are_those_of_one_long_integer(bits: int, count: int) -> None:
    numbers = np.random.default_rng(bits).integers(0, 2**bits, count)
    if count:
        numbers[-1] = 2**bits - 1
    whole = sum(int(number) << (bits * place) for place, number in enumerate(numbers))
    packed = pack(numbers, bits)
    assert packed == whole.to_bytes(-(-count * bits // 8), "little")
    assert packed_size(count, bits) == len(packed)
    assert unpack(packed, bits, count).tolist() == numbers.tolist()


@pytest.mark.parametrize("bits", [1, 5])
def test_blocks_leave_no_gaps(bits: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 2**bits, 2 * BLOCK + 3)
    packed = pack(numbers, bits)
    assert len(packed) == -(-len(numbers) * bits // 8)
    # The number in the middle of the third block, by hand: it begins at this bit.
    at = (2 * BLOCK + 1) * bits
    assert int.from_bytes(packed[at // 8 : at // 8 + 2], "little") >> at % 8 & (2**bits - 1) == numbers[2 * BLOCK + 1]
    assert np.array_equal(unpack(packed, bits, len(numbers)), numbers)


def test_a_message_is_read_to_its_end_and_no_further() -> None:
    reader = Reader(pack(np.array([5, 2, 7]), 3) + np.array([1.5, -2.0], dtype="<f4").tobytes())
    assert reader.numbers(3, 3).tolist() == [5, 2, 7]
    with pytest.raises(ValueError, match="the message has 10 bytes; 2 were expected"):
        reader.end()
    assert reader.floats(2).tolist() == [1.5, -2.0]
    reader.end()
    with pytest.raises(ValueError, match="the message ends after 10 bytes; 14 were expected"):
        reader.floats(1)
