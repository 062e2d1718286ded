"""`Result`: what a run, or several of one configuration, left in their folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from .folder import RunFolder
from .loading import expand, is_many
from .report.page import write_report


@dataclass(frozen=True)
class Result:
    """A finished run, or several of one configuration. Reads everything from its folder."""

    folder: Path

    @cached_property
    def runs(self) -> dict[str, Result]:
        """The runs below this folder by ``VARIANT/SEED``; empty for a single run."""
        raw = RunFolder(self.folder).config()
        if not is_many(raw):
            return {}
        return {str(single.place): Result(self.folder / single.place) for single in expand(raw)}

    @cached_property
    def summary(self) -> dict[str, Any]:
        """``summary.json`` of a single run, ``comparison.json`` of several."""
        name = "comparison.json" if self.runs else "summary.json"
        value = json.loads((self.folder / name).read_text(encoding="utf-8"))
        assert isinstance(value, dict)
        return value

    def frame(self) -> pd.DataFrame:
        """The lines of ``metrics.jsonl`` that have a ``metric``; of several runs with ``variant`` and ``seed``."""
        if self.runs:
            frames = []
            for place, run in self.runs.items():
                variant, _, seed = place.rpartition("/")
                frames.append(run.frame().assign(variant=variant, seed=int(seed)))
            return pd.concat(frames, ignore_index=True)
        lines = [line for line in RunFolder(self.folder).lines() if "metric" in line]
        return pd.DataFrame(lines, columns=None if lines else ["round", "metric", "value"])

    @property
    def report(self) -> Path:
        """The report, one HTML file. One of several runs has it from the first time that it is asked for."""
        path = self.folder / "report.html"
        return path if path.exists() else write_report(self.folder)


@dataclass(frozen=True)
class Sweep(Result):
    """A finished sweep: the runs of all its cells, the choice, and the chosen cell as a configuration."""

    @cached_property
    def sweep(self) -> dict[str, Any]:
        """``sweep.json``: ``grid``, ``seeds``, ``best``, ``cells``, ``left_out``, ``untrained`` and ``chosen``; with
        several cells of a variant ``variants``, the best of each."""
        return RunFolder(self.folder).sweep()

    @property
    def chosen(self) -> str | None:
        """The name of the best cell; ``None`` where nothing was to be chosen, or nothing could be."""
        found = self.sweep.get("chosen")
        return None if found is None else str(found)

    @property
    def best(self) -> Path | None:
        """``best.yaml``, the chosen cell as a configuration that can be run."""
        return None if self.chosen is None else self.folder / "best.yaml"

    @property
    def tuned(self) -> Path | None:
        """``tuned.yaml``, every variant with the settings that were best for it; ``None`` without such a choice."""
        path = self.folder / "tuned.yaml"
        return path if self.sweep.get("variants") and path.exists() else None

    def by_variant(self) -> pd.DataFrame:
        """One row per variant: its best cell, that cell's ``settings``, of the number that was chosen by ``mean``,
        ``sd`` and ``n``, the ``cells`` that it was chosen from, and its final accuracy ``acc`` on the test rows
        (``acc_sd``). Without rows where no variant had several cells, or nothing was to be chosen."""
        names = ("variant", "chosen", "settings", "mean", "sd", "n", "cells", "acc", "acc_sd")
        rows = []
        for variant, best in self.sweep.get("variants", {}).items():
            tested = self.summary["variants"].get(best["chosen"], {}).get("numbers", {}).get("acc") or {}
            rows.append({"variant": variant, **best, "acc": tested.get("mean"), "acc_sd": tested.get("sd")})
        return pd.DataFrame(rows, columns=list(names))

    def table(self) -> pd.DataFrame:
        """One row per cell: its name, its settings, and of the number that was chosen by ``mean``, ``sd``, ``n``."""
        rows = []
        for cell in self.sweep["cells"]:
            numbers = {name: cell.get(name) for name in ("mean", "sd", "n")} if self.sweep["best"] else {}
            rows.append({"cell": cell["cell"], **cell["changes"], **numbers})
        return pd.DataFrame(rows)
