"""Numbers for TensorBoard, in the run's folder."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import ConfigError
from ..metrics.base import Line
from .base import Tracker

_NO_LABELS = frozenset(
    {"round", "metric", "value", "rows", "targets", "clients", "entries", "n", "excluded", "quantiles"}
    | {"contacts", "loss", "sd", "worst_decile"}
)
"""Fields of a line that count something, or tell more of it, and are no part of a number's name."""


def tag_of(line: Line) -> str:
    """The name of a number: its metric and its labels, such as ``accuracy/task=3``.

    The entry that served a target (a line with ``rows``) is no label: it changes from round to round.
    """
    skipped = _NO_LABELS | ({"entry"} if "rows" in line else set())
    labels = [f"{name}={value}" for name, value in line.items() if name not in skipped and value is not None]
    return "/".join([str(line["metric"]), ",".join(labels)]).rstrip("/")


def scalars(lines: Sequence[Line]) -> Iterator[tuple[str, float, int]]:
    """Tag, value and round of every number; the items of a list are numbered. What is missing gives none."""
    for line in lines:
        if "metric" not in line:
            continue
        value = line.get("value")
        listed = isinstance(value, list)
        for place, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, int | float):
                yield f"{tag_of(line)}/{place}" if listed else tag_of(line), float(item), int(line["round"])


class TensorBoard(Tracker):
    """Every number of ``metrics.jsonl`` as a scalar over the rounds, in ``DIR/tensorboard``.

    The labels are part of the tag (``accuracy/task=3``). Each round is on disk when it is finished. A resumed run
    writes all rounds anew and declares what was there before as void (TensorBoard's ``purge_step``), so that no point
    is doubled and none is missing, however the run was stopped.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        super().__init__(folder, config)
        self._writer: Any = None

    @classmethod
    def check(cls) -> None:
        """Raises `ConfigError` without the package ``tensorboard``."""
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError(
                "track: tensorboard needs the package tensorboard; install it with: pip install 'shoal[track]', "
                "or leave track out"
            )

    def begin(self, round: int, lines: Sequence[Line]) -> None:
        """Opens a new file of events, and writes what is known already."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what tensorboard imports warns of its own future
            from torch.utils.tensorboard import SummaryWriter

        place = self.folder / "tensorboard"
        again = place.is_dir() and any(place.iterdir())
        self._writer = SummaryWriter(str(place), purge_step=0 if again else None)
        self.write(round, lines)

    def write(self, round: int, lines: Sequence[Line]) -> None:
        """The scalars of these lines."""
        for tag, value, at in scalars(lines):
            self._writer.add_scalar(tag, value, at)
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()
