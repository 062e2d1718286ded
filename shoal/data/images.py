"""Encoded images (PNG, JPEG, whatever pillow reads) to one uint8 array."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable

import numpy as np
from PIL import Image, UnidentifiedImageError

from ..errors import DataError

_GREY = ("1", "L", "LA", "La")
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


class _Colour(Exception):
    """A coloured image among grey ones."""


def decode_images(images: Callable[[], Iterable[bytes | None]], rows: int, size: int | None, what: str) -> np.ndarray:
    """All images as uint8 ``[rows, height, width, channels]``: one channel if every image is grey, else three (RGB).

    ``images`` is asked for an iterator, a second time only if colours come after grey images. ``size`` resizes to
    ``size x size`` (bilinear over the whole footprint of a pixel, so without aliasing); without it all images must
    have the same size. ``what`` names the source in errors. Raises `DataError`, naming the row.
    """
    try:
        return _decode(images(), rows, size, what, "L")
    except _Colour:
        return _decode(images(), rows, size, what, "RGB")


def _decode(images: Iterable[bytes | None], rows: int, size: int | None, what: str, mode: str) -> np.ndarray:
    out: np.ndarray | None = None
    for row, data in enumerate(images):
        if data is None:
            raise DataError(f"{what}, row {row}: no image bytes (only a path?); store the images' bytes in the file")
        pixels = _pixels(data, size, mode, f"{what}, row {row}")
        if out is None:
            out = np.empty((rows, *pixels.shape), dtype=np.uint8)
        if pixels.shape != out.shape[1:]:
            first, this = "x".join(map(str, out.shape[1:3])), "x".join(map(str, pixels.shape[:2]))
            raise DataError(
                f"{what}, row {row}: {this} pixels, but row 0 has {first}; set data.size, such as size: 32, to bring "
                f"all images to one size"
            )
        out[row] = pixels
    if out is None:
        raise DataError(f"{what}: there is no row")
    return out


def _pixels(data: bytes, size: int | None, mode: str, where: str) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode in _DEEP:
                raise DataError(f"{where}: pixels of more than 8 bits (mode {image.mode}); convert them to 8 bits")
            if mode == "L" and image.mode not in _GREY:
                raise _Colour
            plain = image if image.mode == mode else image.convert(mode)
            if size is not None and plain.size != (size, size):
                plain = plain.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{where}: no image that pillow can read: {error}") from None
    return pixels[..., None] if pixels.ndim == 2 else pixels
