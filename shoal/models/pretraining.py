"""What a weights file tells of its pre-training, and whether a run has rows that the model was pre-trained on."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from ..data.dataset import Dataset
from ..data.duplicates import marks
from ..files import write_atomically
from .hub_weights import HUB, hub_file

ABOUT = "pretraining"
"""The entry of the file's metadata with what is told, JSON."""
MARKS = "_pretraining/rows"
"""The tensor with the marks of the rows that were trained on, int64 ``[rows]``; see `shoal.data.duplicates.marks`."""


def write(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], rows: np.ndarray | None) -> None:
    """Writes a file for ``model.weights``: the tensors by the model's names, ``about``, and the marks of the rows.

    The same content gives the same bytes.
    """
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
    if rows is not None:
        arrays[MARKS] = np.sort(rows)
    write_atomically(path, save(arrays, {ABOUT: json.dumps(about, ensure_ascii=False)}))


def told(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """What a file tells of its pre-training, from its metadata; ``None`` where it tells nothing."""
    try:
        about = json.loads(metadata.get(ABOUT, "null"))
    except json.JSONDecodeError:
        return None
    return about if isinstance(about, dict) else None


def read_about(path: Path) -> dict[str, Any] | None:
    """What a safetensors file tells of its pre-training; ``None`` for any other file."""
    try:
        with safe_open(path, framework="numpy") as file:
            return told(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, struct.error):
        return None


def sentence(about: Mapping[str, Any]) -> str:
    """``"pre-trained on 18,000 rows of cifar10 (data.rows 0 to 20000), 10 classes, validation accuracy 70.9%"``."""
    said = f"pre-trained on {int(about.get('training_rows') or 0):,} rows of {about.get('data')}"
    span = about.get("data_rows")
    if isinstance(span, list) and len(span) == 2:
        said += f" (data.rows {span[0]} to {span[1]})"
    classes = about.get("classes")
    if isinstance(classes, list):
        said += f", {len(classes)} classes"
    accuracy = about.get("validation_accuracy")
    return said + (f", validation accuracy {accuracy:.1%}" if isinstance(accuracy, float) else "")


def shared(
    settings: Mapping[str, Any], data: Dataset, tested: Callable[[], Sequence[Tensor]], normalize: str | None
) -> list[str]:
    """What must be said of the weights files in the settings of a model, and of those inside it, for a run on ``data``.

    A warning if the run is measured on rows that a file's model was trained on (``tested`` gives the rows of each
    target); a remark if it trains on such rows, if that cannot be told because the images have another size, or if the
    inputs were normalised in another way.
    """
    notes: list[str] = []
    for path in _files(settings):
        about = read_about(path)
        if about is None:
            continue
        theirs = about.get("normalize")
        if normalize not in (None, "source") and theirs not in (None, normalize):
            notes.append(f"{path.name} was pre-trained with data.normalize: {theirs}, here it is {normalize}")
        known = _marks(path)
        if known is None or not data.is_image:
            continue
        test = np.unique(np.concatenate([np.empty(0, np.int64), *(r.cpu().numpy() % len(data) for r in tested())]))
        train = np.setdiff1d(data.train.cpu().numpy(), test)
        for (part, of_test), (_, of_train) in zip(data.by_part(test), data.by_part(train), strict=True):
            notes += _common(path.name, about, known, part, of_test, of_train)
    return notes


def _common(
    file: str, about: Mapping[str, Any], known: np.ndarray, part: Dataset, test: np.ndarray, train: np.ndarray
) -> list[str]:
    """What must be said of the rows that a file's model was trained on, in data of one shape."""
    if list(part.shape) != about.get("shape"):
        if part.name != about.get("data"):
            return []
        return [
            f"{file} was pre-trained on {part.name}, too, with images of another shape ({about.get('shape')}, here "
            f"{list(part.shape)}): whether rows are shared cannot be told"
        ]
    pixels = part.features.cpu().numpy()
    tested, trained = (int(np.isin(marks(pixels, rows), known).sum()) for rows in (test, train))
    said = []
    if tested:
        said.append(
            f"warning: {file} was pre-trained on {tested} of the {len(test)} rows that this run is tested on, so its "
            f"accuracies are too good; data.rows keeps the rows of two runs apart"
        )
    if trained:
        said.append(f"{file} was pre-trained on {trained} of the {len(train)} training rows of this run, too")
    return said


def _files(settings: Mapping[str, Any]) -> list[Path]:
    """The safetensors files that resolved settings of a model, and of the models inside it, start from or are taught
    by, each once."""
    found = [path for given in _named(settings) if (path := _path(given)).suffix == ".safetensors" and path.is_file()]
    return list(dict.fromkeys(found))


def _named(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _named(value)
        elif name in ("weights", "teacher"):
            yield from (given for given in ([value] if isinstance(value, str) else value or ()))


def _path(given: str) -> Path:
    """``FILE``, ``FILE#KEY`` or a file of the hub; a key names a part of what a file holds, and is no matter here."""
    if given.startswith(HUB):
        return hub_file(given)[0]
    whole = Path(given).expanduser()
    return whole if whole.is_file() else Path(given.rpartition("#")[0]).expanduser()


def _marks(path: Path) -> np.ndarray | None:
    with safe_open(path, framework="numpy") as file:
        return np.asarray(file.get_tensor(MARKS)) if MARKS in file.keys() else None  # noqa: SIM118 (it is no mapping)
