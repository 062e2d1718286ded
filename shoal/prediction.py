"""`predict`: what a run's model says of further rows. Needs the run's folder, and none of its data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from torch import Tensor

from .bank import Bank, Key
from .config import Config
from .data.dataset import Dataset, inputs
from .engine import one_torch_thread
from .engine.kernel import EVALUATION_ROWS, Workspace
from .errors import ConfigError, RunError
from .export import read_bank, read_constants, read_serving
from .folder import RunFolder
from .loading import is_many
from .messages import World
from .methods.base import Method
from .models.base import Model
from .models.factory import build_models, without_files
from .rows import Rows, read_rows
from .serving import name_of
from .setup import build_method


def predict(
    folder: str | Path,
    rows: Any,
    *,
    entry: str | None = None,
    target: str | Mapping[str, Any] | None = None,
    column: str | None = None,
    source: str | None = None,
) -> pd.DataFrame:
    """Predictions of a run's model for further rows, one row each.

    ``rows`` is a path, an array, a data frame or a `Dataset`, see `shoal.rows.read_rows`. Rows are taken as they are:
    a task that was made by turning images wants turned images. A run with several models needs ``entry``, a key of
    its bank, or ``target``, such as ``"task=3"``: then it is the model that served this target when it was measured
    last. ``column`` names the images of a parquet file that has several such columns. ``source`` says as whose rows
    these are read, where the model serves several sources that keep their images each in its own way.

    Columns: ``row`` (a number) or ``file``; ``prediction``, the original name of a class or a value in its units;
    and for classes ``confidence`` and ``p:NAME`` each (softmax of the outputs). Several values are ``prediction:0``,
    ``prediction:1`` and so on. ``frame.attrs`` has the ``entry`` and the ``round`` that its model is of, how many
    ``rounds`` there should be, and as ``notes`` what was missing or new in the rows of a table, which images were left
    out because they cannot be read (where the run's own were, ``data.unreadable: skip``), and whether no client's
    update has ever reached the model. In float32, batches of 512, on the CPU. Raises `ShoalError`.
    """
    model = Predictor(Path(folder))
    keys, classes = model.chosen(entry, target)
    about = model.reading(keys, target, source)
    read = read_rows(rows, about, column)
    frame = _frame(read, model.outputs(keys, read.features, about), classes, about)
    frame.attrs = {
        "entry": "+".join(keys),
        "round": model.round,
        "rounds": model.serving["rounds"],
        "notes": [*model.untrained(keys), *read.notes],
    }
    return frame


class Predictor:
    """The models of a run's folder, finished or not."""

    def __init__(self, path: Path) -> None:
        folder = RunFolder(path)
        if not folder.exists:
            raise RunError(f"{path} holds no run (there is no config.yaml in it)")
        raw = folder.config()
        if is_many(raw):
            raise RunError(f"{path} holds several runs; give one of them, such as {path}/VARIANT/SEED")
        self.folder = folder
        # The configuration of a run is resolved: what training alone needs (its source, its measures) may be missing.
        self.config = Config(**{**raw, "track": None})
        file = path / "model.safetensors"
        self.finished = folder.ended and file.is_file()
        self.serving = read_serving(file) if self.finished else folder.serving()
        if not self.serving:
            raise RunError(f"{path}: the run was started by a version of Shoal that kept nothing for predictions")
        with _explained(path):
            models, task_models = self._models()
            self.models = models
            self.method = self._method(task_models)
        self.round = int(folder.summary().get("rounds") or 0)
        self.constants: dict[str, dict[str, Tensor]] = {}
        if self.finished:
            self.constants = {name: read_constants(file, name) for name in models}
        self.bank = self._bank(file)

    def _models(self) -> tuple[dict[str, Model], tuple[str, ...]]:
        about, settings = self.serving, self.config.model
        if self.finished:
            # All numbers are in model.safetensors, constants too: the file that they started from may be gone.
            settings = without_files(settings)
        shapes = [tuple(shape) for shape in about.get("task_shapes", ())]
        return build_models(
            settings, tuple(about["shape"]), about["outputs"], about["task_outputs"], self.config.seed, shapes
        )

    def _method(self, task_models: tuple[str, ...]) -> Method:
        about = self.serving
        world = World(
            self.config.seed,
            about["clients"],
            about["rounds"],
            self.models,
            about["tasks"],
            len(about["classes"]),
            task_models,
        )
        return build_method(self.config, world)

    def _bank(self, file: Path) -> Bank:
        """The exported entries where they are enough; else the last checkpoint, which has all numbers."""
        if self.finished and type(self.method).compose is Method.compose:
            return read_bank(file, self.serving["entries"], self.models)
        state, _ = self.folder.checkpoints.load()
        if state is None and self.finished:
            return read_bank(file, self.serving["entries"], self.models)
        if state is None:
            raise RunError(f"{self.folder.path}: no round is finished yet; go on with: shoal resume {self.folder.path}")
        self.round = state.round
        return state.bank

    # ---- which model ------------------------------------------------------------------------------------------

    def chosen(self, entry: str | None, target: str | Mapping[str, Any] | None) -> tuple[tuple[Key, ...], list[str]]:
        """The keys of the model that is asked for, and the names of its outputs."""
        if entry is not None and target is not None:
            raise ConfigError("give an entry or a target, not both")
        if target is not None:
            labels = self._target(target)
            return self._serving(labels), self._classes(labels)
        whole = [key for key in self.bank.entries if self._is_whole(key)]
        parts = [key for key, found in self.bank.entries.items() if found.segments and not self._is_whole(key)]
        if entry is None and (len(whole) != 1 or parts):
            raise ConfigError(f"this run has several models; {self._listed()}")
        keys = tuple((entry or whole[0]).split("+"))
        missing = [key for key in keys if key not in self.bank.entries]
        if missing:
            raise ConfigError(f"no entry is called {missing[0]!r}; {self._listed()}")
        if len(keys) == 1 and not self._is_whole(keys[0]):
            covers = self.bank[keys[0]].segments
            raise ConfigError(
                f"the entry {keys[0]!r} is only a part of a model ({list(covers or ())}); join entries with '+', or "
                f"give a target; {self._listed()}"
            )
        return keys, self._classes_of(keys)

    def _is_whole(self, key: Key) -> bool:
        """Whether an entry is a model by itself."""
        entry = self.bank[key]
        if entry.model not in self.models or entry.segments == ():
            return False
        return entry.segments is None or set(entry.segments) == set(self.models[entry.model].space.segments)

    def _listed(self) -> str:
        targets = [name_of(labels) for labels in self.serving["targets"] if labels]
        shown = f"--entry KEY, one of {_few(list(self.bank.entries))}"
        return f"{shown}; or --target, one of {_few(targets)}" if targets else shown

    def _target(self, given: str | Mapping[str, Any]) -> dict[str, Any]:
        """The target that is meant; a client or a task may be called by its name."""
        wanted = _labels(given) if isinstance(given, str) else dict(given)
        for key, names in (("client", self.serving["client_names"]), ("task", self.serving["task_names"])):
            if key in wanted and not isinstance(wanted[key], int) and str(wanted[key]) in names:
                wanted[key] = names.index(str(wanted[key]))
        found = [labels for labels in self.serving["targets"] if labels == wanted]
        if not found:
            raise ConfigError(f"the run has no target {name_of(wanted)!r}; {self._listed()}")
        return dict(found[0])

    def _serving(self, labels: Mapping[str, Any]) -> tuple[Key, ...]:
        """The keys that served a target when it was measured last."""
        for line in reversed(self.folder.lines()):
            if line.get("metric") not in ("accuracy", "loss") or line["round"] > self.round:
                continue
            if not line.get("entry") or any(name not in line or line[name] != v for name, v in labels.items()):
                continue
            keys = tuple(str(line["entry"]).split("+"))
            if all(key in self.bank.entries for key in keys):
                return keys
            break
        groups = [
            keys for keys in self.method.candidates(self.bank, labels) if all(k in self.bank.entries for k in keys)
        ]
        if len(groups) == 1:
            return tuple(groups[0])
        raise ConfigError(
            f"{name_of(labels)} was not measured, so it is not known which of {len(groups)} models serves it; "
            f"{self._listed()}"
        )

    def _classes(self, labels: Mapping[str, Any]) -> list[str]:
        return list(self.serving["classes_by_target"].get(name_of(labels), self.serving["classes"]))

    def _classes_of(self, keys: tuple[Key, ...]) -> list[str]:
        """The names of a model's outputs: those of the targets that it may serve."""
        found = {tuple(self._classes(labels)) for labels in self._served(keys)}
        if len(found) > 1:
            raise ConfigError(f"{'+'.join(keys)} serves targets with different classes; {self._listed()}")
        return list(found.pop()) if found else list(self.serving["classes"])

    def _served(self, keys: tuple[Key, ...]) -> list[dict[str, Any]]:
        """The targets that a model may serve."""
        return [t for t in self.serving["targets"] if keys in [tuple(k) for k in self.method.candidates(self.bank, t)]]

    def reading(
        self, keys: tuple[Key, ...], target: str | Mapping[str, Any] | None, source: str | None
    ) -> Mapping[str, Any]:
        """How further rows are read for a model, see `shoal.serving`: as those of its source, where it has its own."""
        sources = self.serving.get("sources", {})
        if not sources:
            if source is not None:
                raise ConfigError(f"source: {source!r} is not needed, the run reads all rows in one way; leave it out")
            return self.serving
        by_target = self.serving["sources_by_target"]
        targets = self._served(keys) if target is None else [self._target(target)]
        known = list(dict.fromkeys(name for labels in targets for name in by_target.get(name_of(labels), ())))
        known = known or list(sources)
        if source is None and len(known) > 1:
            raise ConfigError(f"this model serves rows of several sources; give --source, one of {_few(known)}")
        if source is not None and source not in known:
            raise ConfigError(f"source: this model has no rows of {source!r}; it serves {_few(known)}")
        return {**self.serving, **sources[source or known[0]]}

    def untrained(self, keys: tuple[Key, ...]) -> list[str]:
        """A note if no update of a client has reached these entries; nothing where it is not known."""
        summary = self.folder.summary() if self.finished else {}
        done = summary.get("updates")
        done = done or summary.get("warmup_updates", done)  # a model of the warm-up is a trained one
        if done and len(self.bank.entries) == 1:
            return []  # without reading all lines
        rounds = [line for line in self.folder.lines() if line.get("record") == "round" and line["round"] <= self.round]
        if done != 0 and not rounds:
            return []
        reached = {key for line in rounds for key in line.get("trained", {})}
        never = [key for key in keys if key not in reached and self.bank[key].vector.numel()]
        if not never:
            return []
        return [f"untrained: no client's update has reached {' or '.join(never)} in any round"]

    # ---- what it says -----------------------------------------------------------------------------------------

    def outputs(self, keys: tuple[Key, ...], features: np.ndarray, about: Mapping[str, Any]) -> Tensor:
        """The outputs for rows that were read as `reading` says, float32 ``[rows, outputs]``; of a regression float64,
        in the source's units."""
        served = self.method.compose(self.bank, keys)
        work = Workspace(self.models[served.model], torch.device("cpu"))
        self._place(work, served.model)
        data = _dataset(features, about)
        found = []
        with one_torch_thread(), torch.no_grad(), work.holding(served, training=False) as module:
            for begin in range(0, len(features), EVALUATION_ROWS):
                chosen = torch.arange(begin, min(begin + EVALUATION_ROWS, len(features)))
                answer = module(inputs(data.batch(chosen)))
                if not isinstance(answer, Tensor) or answer.dim() != 2:
                    raise RunError(f"the model gives no outputs [rows, outputs] but a {type(answer).__name__}")
                found.append(data.in_units(answer.float()))
        return torch.cat(found) if found else torch.zeros(0, 0)

    def _place(self, work: Workspace, name: str) -> None:
        """The constants of the run instead of those that this machine made."""
        places: dict[str, Tensor] = {**dict(work.module.named_parameters()), **dict(work.module.named_buffers())}
        with torch.no_grad():
            for leaf, value in self.constants.get(name, {}).items():
                if leaf in places and places[leaf].shape == value.shape:
                    places[leaf].copy_(value)
        work.defaults = work.model.buffers.read(work.module)


def _dataset(features: np.ndarray, about: Mapping[str, Any]) -> Dataset:
    """Features as the rows of a data set that is normalised as ``about`` says."""

    def vector(name: str, kind: torch.dtype = torch.float32) -> Tensor | None:
        return None if about[name] is None else torch.tensor(about[name], dtype=kind)

    scale, offset = vector("scale"), vector("offset")
    assert scale is not None
    assert offset is not None
    return Dataset(
        name=about["data"],
        features=torch.from_numpy(features),
        labels=torch.zeros(len(features), dtype=torch.int64),
        classes=tuple(about["classes"]),
        train=torch.arange(0),
        test=torch.arange(len(features)),
        scale=scale,
        offset=offset,
        peak=about["peak"],
        value_scale=vector("value_scale", torch.float64),
        value_offset=vector("value_offset", torch.float64),
    )


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Says that the run's models cannot be built, where a part of its own code is missing."""
    try:
        yield
    except ConfigError as error:
        raise RunError(f"{path}: the run's model cannot be built: {error}") from error


def _labels(text: str) -> dict[str, Any]:
    """``"task=3"`` -> ``{"task": 3}``; several labels are separated by commas. ``all`` is a target of all rows."""
    if text == "all":
        return {}
    labels: dict[str, Any] = {}
    for item in text.split(","):
        key, equals, value = item.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ConfigError(f"a target looks like task=3 or client=17; got {text!r}")
        try:
            labels[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            labels[key.strip()] = value.strip()
    return labels


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} others" if len(names) > 12 else "")


def _frame(rows: Rows, outputs: Tensor, classes: Sequence[str], serving: Mapping[str, Any]) -> pd.DataFrame:
    n = len(rows.features)
    places = np.arange(n) if rows.places is None else rows.places
    columns: dict[str, Any] = {"row": places} if rows.names is None else {"file": list(rows.names)}
    if serving["learns"] == "values":
        width = outputs.shape[1] if n else serving["outputs"]
        for place in range(width):
            name = "prediction" if width == 1 else f"prediction:{place}"
            columns[name] = outputs[:, place].numpy() if n else np.zeros(0)
        return pd.DataFrame(columns)
    if n and outputs.shape[1] != len(classes):
        raise RunError(f"the model has {outputs.shape[1]} outputs, but its target has {len(classes)} classes")
    shares = outputs.double().softmax(1).numpy() if n else np.zeros((0, len(classes)))
    best = outputs.argmax(1).numpy() if n else np.zeros(0, np.int64)
    columns["prediction"] = np.asarray(classes, dtype=object)[best]
    columns["confidence"] = shares[np.arange(n), best]
    for place, name in enumerate(classes):
        columns[f"p:{name}"] = shares[:, place]
    return pd.DataFrame(columns)
