"""Images in the IDX format of MNIST, Fashion-MNIST, EMNIST and KMNIST: four files in a folder."""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL

from ..errors import DataError
from .cache import cached
from .dataset import Dataset
from .images import Channels, Fit, Rule, Size, fitted
from .source import Cut, Decoded, Limit, Normalize, Source, Span, class_codes, located

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_NAME = re.compile(
    r"(?:.*[-_.])?(?P<split>train|t10k|test)[-_.](?P<what>images?|labels?)(?:[-_.]?idx\d)?(?:[-_.]ubyte)?(?:\.gz)?",
    re.IGNORECASE,
)


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file, plain or gzipped (told by its first bytes, not by its name).

    The header is two zero bytes, the type, the number of dimensions, and each dimension as a big-endian 32-bit
    number. Raises `DataError` for a file that is damaged, cut short, or something else.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip file is cut short or damaged ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES or data[3] == 0:
        raise DataError(
            f"{path}: no IDX file; it must begin with two zero bytes, a type of {[hex(t) for t in _TYPES]} and the "
            f"number of dimensions, but begins with {data[:4].hex(' ') or 'nothing'}"
        )
    begin = 4 + 4 * data[3]
    if len(data) < begin:
        raise DataError(f"{path}: cut short in the header ({len(data)} bytes); fetch it again")
    shape = struct.unpack(f">{data[3]}I", data[4:begin])
    kind = np.dtype(_TYPES[data[2]])
    # Python's integers: a wrong header must not overflow into a size that fits.
    size = kind.itemsize
    for length in shape:
        size *= length
    if len(data) - begin != size:
        fault = "cut short" if len(data) - begin < size else "too long"
        raise DataError(
            f"{path}: {fault}: the header says {' x '.join(map(str, shape))} values of {kind.itemsize} bytes, "
            f"{size} in all, but {len(data) - begin} follow; fetch it again"
        )
    return np.frombuffer(data, kind, offset=begin).reshape(shape)


def find_files(folder: Path) -> dict[tuple[str, str], Path]:
    """The files by (``train`` or ``test``, ``images`` or ``labels``); a plain file wins over its gzipped twin.

    Raises `DataError` when one is missing or two different ones could be meant.
    """
    if not folder.is_dir():
        raise DataError(f"data.path: {folder} is not a folder; give the folder with the four IDX files")
    found: dict[tuple[str, str], Path] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is None or not path.is_file():
            continue
        split = "train" if match["split"].lower() == "train" else "test"
        key = split, match["what"].lower().rstrip("s") + "s"
        twin = found.get(key)
        if twin is not None and twin.name != path.name.removesuffix(".gz"):
            raise DataError(
                f"{folder}: {twin.name} and {path.name} could both be the {split} {key[1]}; "
                f"keep one data set to a folder"
            )
        found.setdefault(key, path)
    needed = [(split, what) for split in ("train", "test") for what in ("images", "labels")]
    missing = [" ".join(key) for key in needed if key not in found]
    if missing:
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            f"{folder}: no file with {' and '.join(missing)}; expected names such as train-images-idx3-ubyte[.gz] "
            f"and t10k-labels-idx1-ubyte[.gz]; there is {there}"
        )
    return {key: found[key] for key in needed}


def _decode(files: dict[tuple[str, str], Path]) -> Decoded:
    arrays = {key: read_idx(path) for key, path in files.items()}
    for split in ("train", "test"):
        images, labels = arrays[split, "images"], arrays[split, "labels"]
        where = files[split, "images"]
        if images.ndim not in (3, 4) or images.dtype != np.uint8:
            raise DataError(
                f"{where}: images are bytes in 3 dimensions (rows, height, width) or 4 (with channels); "
                f"got {images.dtype} in {images.ndim}"
            )
        if images.shape[1:] != arrays["train", "images"].shape[1:]:
            raise DataError(
                f"{where}: {images.shape[1:]} pixels, but the training images have "
                f"{arrays['train', 'images'].shape[1:]}"
            )
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise DataError(
                f"{files[split, 'labels']}: labels are whole numbers in one dimension; got {labels.dtype} in "
                f"{labels.ndim} (are images and labels mixed up?)"
            )
        if len(images) != len(labels):
            raise DataError(f"{where}: {len(images)} images, but {len(labels)} labels in {files[split, 'labels'].name}")
    features = np.concatenate([arrays["train", "images"], arrays["test", "images"]])
    labels, classes = class_codes(
        np.concatenate([arrays["train", "labels"], arrays["test", "labels"]]).astype(np.int64), "labels"
    )
    if features.ndim == 3:
        features = features[..., None]
    return Decoded(features, labels, classes, train_rows=len(arrays["train", "labels"]))


class Idx(Source):
    """A folder with four IDX files: images and labels, for training and test, plain or gzipped.

    ``path`` is the folder, seen from ``root`` (``""``: the working directory). Names such as
    ``train-images-idx3-ubyte.gz``, ``t10k-labels.idx1-ubyte`` or ``emnist-letters-test-images-idx3-ubyte`` are known.
    ``channels``, ``size`` and ``fit`` say what every image becomes, see `shoal.data.images.Rule`.
    """

    def __init__(
        self,
        *,
        path: str,
        root: str = "",
        channels: Channels = None,
        size: Size = None,
        fit: Fit = "resize",
        normalize: Normalize = "channel",
        rows: Span = None,
        limit: Limit = None,
        limit_test: Limit = None,
        split_seed: int = 0,
        cache: str | None = "auto",
    ) -> None:
        self.path = path
        self.root = root
        self.rule = Rule.of(channels, size, fit)
        self.cut = Cut(normalize, split_seed=split_seed, span=rows, limit=limit, limit_test=limit_test)
        self.cache = cache

    def load(self) -> Dataset:
        """The rows, from the cache where they were decoded before. Raises `DataError`."""
        folder = located(self.root, self.path)
        files = find_files(folder)
        settings = {"source": "idx", "rule": self.rule.settings(), "pillow": PIL.__version__}
        rows = cached(self.cache, list(files.values()), settings, lambda: self._formed(files))
        return self.cut.of(rows, folder.resolve().name)

    def _formed(self, files: dict[tuple[str, str], Path]) -> Decoded:
        rows = _decode(files)
        pixels = fitted(rows.features, self.rule, str(files["train", "images"].parent))
        return replace(rows, features=pixels, reader=self.rule.reader(pixels))
