"""Encoded images (PNG, JPEG and their like) to one uint8 array, by one rule for every source."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from PIL import Image, ImageOps

from ..errors import ConfigError, DataError
from .memory import check_room

Array = np.ndarray


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number, not true or false")
    return value


Channels = Annotated[Literal[1, 3] | None, pydantic.BeforeValidator(_no_boolean)]
"""``null``: as they are, one channel if all images are grey, else three; 1 makes colours grey, 3 repeats grey."""

_Side = Annotated[int, pydantic.Field(ge=1)]
Size = _Side | Annotated[tuple[_Side, _Side], pydantic.Field(description="[height, width]")] | None
"""The side of a square or ``[height, width]``; ``null``: as they are, which must be one size."""

Fit = Literal["resize", "pad"]
"""``resize``: to exactly ``size``, bilinear over the whole footprint of a pixel; ``pad``: never scaled, on black."""

Unreadable = Literal["error", "skip"]
"""What an image that cannot be read does: it ends the run, or it is left out and noted."""

Data = bytes | Path | None
"""An encoded image, or a file with one; ``None``: the source has none."""

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000")  # not EPS: that starts another program
_GREY = ("1", "L", "LA", "La")
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
_STRAIGHT = {"RGBa": "RGBA", "La": "LA"}  # colours that were multiplied by alpha
_ORIENTATION = 0x0112
NAMED = 10
"""How many of the images that were left out are named."""


@dataclass(frozen=True)
class Rule:
    """What every image becomes.

    Grey is ITU-R 601 luma, ``(299 R + 587 G + 114 B) / 1000`` (pillow's mode ``L``). ``pad`` centres an image on
    black; an odd difference puts the larger border at the bottom and the right, and an image larger than ``size`` is
    an error. Alpha is dropped, not blended with a background: the colours are those that the file stores, as in
    torchvision's ``ImageFolder``. A palette is looked up, and counts as colour. EXIF's orientation is followed: the
    image is as it is meant to be looked at. Of an animation the first frame counts. More than 8 bits per channel are
    an error, whatever ``unreadable`` says.

    Raises `ConfigError` for ``pad`` without a size.
    """

    channels: int | None = None
    size: tuple[int, int] | None = None
    """``(height, width)``."""
    fit: Fit = "resize"
    unreadable: Unreadable = "error"

    @classmethod
    def of(
        cls,
        channels: Channels,
        size: int | tuple[int, int] | None,
        fit: Fit,
        unreadable: Unreadable = "error",
    ) -> Rule:
        """The rule of a source's settings."""
        if fit == "pad" and size is None:
            raise ConfigError("data.fit: pad needs a size to pad to; set data.size, such as size: 32 or [28, 32]")
        return cls(channels, (size, size) if isinstance(size, int) else size, fit, unreadable)

    def settings(self) -> dict[str, Any]:
        """Plain values that decide the decoding, for the cache's key."""
        return asdict(self)

    def reader(self, pixels: Array) -> dict[str, Any]:
        """`Dataset.reader` of images ``[n, height, width, channels]`` made by this rule."""
        _, height, width, channels = pixels.shape
        fit = None if self.size is None else self.fit
        return {
            "kind": "image",
            "size": [height, width],
            "channels": channels,
            "convert": self.channels is not None,
            "fit": fit,
            "unreadable": self.unreadable,
        }


@dataclass(frozen=True)
class Images:
    """Decoded images, uint8 ``[kept, height, width, channels]``; ``kept`` are the positions that could be read."""

    pixels: Array
    kept: Array
    notes: tuple[str, ...] = ()


class _Colour(Exception):
    """A coloured image among grey ones."""


class _Unreadable(Exception):
    """No image that can be read."""


class BrokenImage(DataError):
    """A further image that cannot be read at all; what becomes of it is for the reader's ``unreadable`` to say."""


def decode_images(items: Callable[[], Iterable[tuple[str, Data]]], rows: int, rule: Rule, what: str) -> Images:
    """All images by the rule. ``items`` gives each image's name and data.

    ``items`` is asked for an iterator, a second time only if colours come after grey images and the rule does not say
    how many channels there are. ``what`` names the source in errors. Raises `DataError`, naming the image.
    """
    if rule.size is not None:
        check_room(rows, rule.size, rule.channels or 1, what)
    try:
        return _decode(items(), rows, rule, what, "RGB" if rule.channels == 3 else "L")
    except _Colour:
        return _decode(items(), rows, rule, what, "RGB")


def _decode(items: Iterable[tuple[str, Data]], rows: int, rule: Rule, what: str, mode: str) -> Images:
    out: Array | None = None
    first = ""
    kept: list[int] = []
    skipped: list[str] = []
    fault = ""
    for row, (name, data) in enumerate(items):
        where = f"{what}, {name}"
        try:
            plain = _plain(data, where)
        except _Unreadable as error:
            if rule.unreadable == "error":
                raise DataError(f"{where}: {error}; set data.unreadable: skip to leave such images out") from None
            fault = fault or f"{where}: {error}"
            skipped.append(name)
            continue
        if mode == "L" and plain.mode != "L" and rule.channels is None:
            raise _Colour
        pixels = _pixels(_formed(_in_mode(plain, mode), rule, where))
        if out is None:
            check_room(rows, pixels.shape[:2], pixels.shape[2], what)
            out, first = np.empty((rows, *pixels.shape), dtype=np.uint8), name
        if pixels.shape != out.shape[1:]:
            raise DataError(
                f"{where}: {_shape(pixels.shape)} pixels, but {first} has {_shape(out.shape[1:])}; set data.size, such "
                f"as size: 32, to bring all images to one size"
            )
        out[len(kept)] = pixels
        kept.append(row)
    if out is None and skipped:
        raise DataError(f"none of {len(skipped)} images can be read; the first: {fault}")
    if out is None:
        raise DataError(f"{what}: there is no row")
    notes = (left_out(skipped, rows),) if skipped else ()
    return Images(out[: len(kept)], np.array(kept, dtype=np.int64), notes)


def left_out(names: Sequence[str], rows: int) -> str:
    """A note of the images that cannot be read, ``names`` among ``rows``."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{len(names)} of {rows} images cannot be read and are left out: {', '.join(names[:NAMED])}{more}"


def read_image(data: Data | str, reader: Mapping[str, Any], where: str) -> Array:
    """One further image as the rows of a data set with this ``reader`` were read: uint8 ``[height, width, channels]``.

    The image is resized or padded only if the data set's were; otherwise it must have their size. Grey is repeated
    where the data set has colours. Colours become grey where the data set is grey because the rule made it so
    (``convert``); where all its images were grey by themselves, a coloured one is refused. ``where`` names the image
    in errors. Raises `DataError`, and `BrokenImage` for what is no image that can be read.
    """
    height, width = (int(side) for side in reader["size"])
    fit = reader["fit"]
    try:
        plain = _plain(Path(data) if isinstance(data, str) else data, where)
    except _Unreadable as error:
        raise BrokenImage(f"{where}: {error}") from None
    if reader["channels"] == 1 and plain.mode != "L" and not reader.get("convert"):
        raise DataError(
            f"{where}: an image with colours, but all images of the data set are grey and were read without "
            f"data.channels; make the image grey first, or train with data.channels: 1"
        )
    plain = _in_mode(plain, "L" if reader["channels"] == 1 else "RGB")
    if fit is not None:
        return _pixels(_formed(plain, Rule(size=(height, width), fit=fit), where))
    pixels = _pixels(plain)
    if pixels.shape[:2] != (height, width):
        raise DataError(
            f"{where}: {_shape(pixels.shape)} pixels, but the data set has {height}x{width} and was read without "
            f"data.size; bring the image to that size first"
        )
    return pixels


def fitted(pixels: Array, rule: Rule, where: str) -> Array:
    """Decoded images, uint8 ``[n, height, width, channels]``, brought to the rule's channels and size.

    The array itself where nothing changes. Raises `DataError` for images with another number of channels than 1 or 3
    that would have to change, and for images that are too large to pad.
    """
    n, height, width, channels = pixels.shape
    size = rule.size or (height, width)
    wanted = rule.channels or channels
    if (*size, wanted) == (height, width, channels) or n == 0:
        return pixels if n else pixels.reshape(0, *size, wanted)
    if channels not in (1, 3):
        raise DataError(f"{where}: images of {channels} channels; only those of 1 or 3 can be resized or converted")
    check_room(n, size, wanted, where)
    out = np.empty((n, *size, wanted), dtype=np.uint8)
    mode = "L" if wanted == 1 else "RGB"
    for row, image in enumerate(pixels):
        plain = Image.fromarray(np.ascontiguousarray(image[..., 0] if channels == 1 else image))
        out[row] = _pixels(_formed(_in_mode(plain, mode), rule, f"{where}, row {row}"))
    return out


def _shape(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}x{shape[1]}"


def _pixels(image: Image.Image) -> Array:
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _formed(image: Image.Image, rule: Rule, where: str) -> Image.Image:
    """The image at the rule's size."""
    if rule.size is None or image.size == rule.size[::-1]:
        return image
    height, width = rule.size
    if rule.fit == "resize":
        return image.resize((width, height), Image.Resampling.BILINEAR)
    if image.width > width or image.height > height:
        raise DataError(
            f"{where}: {image.height}x{image.width} pixels do not fit into {height}x{width}; use fit: resize, or a "
            f"larger data.size"
        )
    canvas = Image.new(image.mode, (width, height))
    canvas.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return canvas


def _plain(data: Data, where: str) -> Image.Image:
    """The image as ``L`` if it is grey, else as ``RGB``, upright; raises `_Unreadable`, and `DataError` for 16 bits."""
    if data is None:
        raise _Unreadable("no image bytes (only a path?); store the images' bytes in the file")
    try:
        with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data, formats=_FORMATS) as image:
            deep = _is_deep(image)
            if not deep:
                return _converted(_upright(image))
            mode = image.mode
    except MemoryError:
        raise
    except Exception as error:  # whatever a damaged file makes of one of pillow's many parsers
        raise _Unreadable(f"no image that pillow can read: {error}") from None
    raise DataError(f"{where}: pixels of more than 8 bits (mode {mode}); convert them to 8 bits")


def _is_deep(image: Image.Image) -> bool:
    """Whether a channel has more than 8 bits; pillow would silently keep the upper 8 of coloured ones."""
    for tile in getattr(image, "tile", ()):
        args = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if isinstance(args[0], str) and ";16" in args[0]:
            return True
        if tile[0].startswith("ppm") and isinstance(args[-1], int) and args[-1] > 255:
            return True
    return image.mode in _DEEP


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    try:
        turned = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged EXIF block does not spoil the pixels
        return image
    return ImageOps.exif_transpose(image) if turned in range(2, 9) else image


def _converted(image: Image.Image) -> Image.Image:
    if image.mode in _STRAIGHT:
        image = image.convert(_STRAIGHT[image.mode])
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # pillow warns of losing it otherwise
    return _in_mode(image, "L" if image.mode in _GREY else "RGB")


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    """The image in a mode; pillow would copy one that has it."""
    return image if image.mode == mode else image.convert(mode)
