"""Whole numbers of a few bits as bytes, and back; and how a message is read piece by piece."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]
BLOCK = 1 << 16
"""Numbers that are packed at a time; a multiple of 8, so that every block ends with a whole byte."""


def packed_size(count: int, bits: int) -> int:
    """The bytes of so many numbers of so many bits each."""
    return (count * bits + 7) // 8


def pack(numbers: Array, bits: int) -> bytes:
    """Numbers from 0 to ``2 ** bits - 1`` one after another, lowest bit first; the last byte is filled with zeros."""
    places = np.arange(bits)
    blocks = (numbers[i : i + BLOCK, None] >> places & 1 for i in range(0, len(numbers), BLOCK))
    return b"".join(np.packbits(block.astype(np.uint8), bitorder="little").tobytes() for block in blocks)


def unpack(data: bytes, bits: int, count: int) -> Array:
    """The first ``count`` numbers that `pack` put into the bytes."""
    weights = np.left_shift(1, np.arange(bits), dtype=np.int64)
    found = np.empty(count, dtype=np.int64)
    for i in range(0, count, BLOCK):
        some = min(BLOCK, count - i)
        piece = np.frombuffer(data, np.uint8, packed_size(some, bits), i * bits // 8)
        found[i : i + some] = np.unpackbits(piece, bitorder="little", count=some * bits).reshape(some, bits) @ weights
    return found


class Reader:
    """Reads a message from its beginning to its end; ``ValueError`` where it has too few bytes or too many."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 0

    def numbers(self, count: int, bits: int) -> Array:
        """The next numbers that `pack` put there; they begin with a byte of their own."""
        return unpack(self._take(packed_size(count, bits)), bits, count)

    def floats(self, count: int) -> NDArray[np.float32]:
        """The next float32 numbers."""
        return np.frombuffer(self._take(4 * count), "<f4")

    def _take(self, count: int) -> bytes:
        taken = self._message[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError(f"the message ends after {len(self._message)} bytes; {self._at + count} were expected")
        self._at += count
        return taken

    def end(self) -> None:
        """Raises ``ValueError`` unless everything was read."""
        if self._at != len(self._message):
            raise ValueError(f"the message has {len(self._message)} bytes; {self._at} were expected")
