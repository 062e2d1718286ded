"""``shoal pretrain``: an ordinary run with one client, and its model as a file for ``model.weights``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__, registry
from .config import Config
from .data.dataset import Dataset
from .data.duplicates import marks
from .errors import ConfigError, RunError
from .folder import RunFolder
from .loading import Source, is_many, leaves, load, overridden
from .many import for_data
from .models.pretraining import read_about, write
from .models.weights import Weights, head_names
from .progress import Quiet
from .results import Result
from .running import changed_settings, dumped, is_free, resume_run, start_run
from .setup import Setup, assemble, resolve_config


def pretrain(
    source: Source,
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    folder: str | Path | None = None,
    force: bool = False,
    data: Dataset | None = None,
    progress: Quiet | None = None,
) -> tuple[Path, Result]:
    """Trains the model of a configuration on the rows of its one client, and writes it as a file for ``model.weights``.

    The head is left out: a run that starts from the file has a new one, even where it would fit. (With its head the
    model is in the run's folder, ``model.safetensors``.)

    ``source``, ``overrides`` and ``data`` are those of `shoal.run`. ``out`` is the file, by default
    ``NAME.safetensors``; ``folder`` that of the run, by default ``runs/`` and the file's name without its ending. An
    interrupted run of the same configuration is gone on with; a file that this configuration has made is left as it
    is. ``force`` replaces the run and the file. The file also tells its data, its rows (a mark of each image), and its
    accuracy, see `shoal.models.pretraining`. Gives the file and the run.

    Raises `ConfigError`, before any training, for several runs, several clients, or a method that keeps several
    entries; `RunError` for a file that is there already, and if nothing sound was trained.
    """
    raw = for_data(overridden(load(source), overrides or {}), data)
    if is_many(raw):
        raise ConfigError(
            "shoal pretrain: makes one file of one run, but this configuration has variants or seeds; set variants={} "
            "seeds=[] and what should be changed"
        )
    config = resolve_config(raw)
    path = Path(out) if out is not None else Path(f"{config.name}.safetensors")
    place = Path(folder) if folder is not None else Path("runs") / path.stem
    _check_file(path)
    dataset = registry.build("data", config.data).load() if data is None else data
    setup = assemble(config, dataset)
    _check(setup)
    identity = _identity(setup)
    progress = progress or Quiet()
    if path.exists() and not force:
        if (read_about(path) or {}).get("configuration") != identity:
            raise RunError(f"{path} is there already and not of this configuration; choose another --out, or --force")
        if RunFolder(place).finished:
            progress.say(f"{path} is there already, of this configuration; nothing to do")
            return path, Result(place)
    if _begun(place, setup.config) and not force:
        resume_run(place, dataset=dataset, progress=progress)
    else:
        start_run(config, place, force=force, dataset=dataset, progress=progress)
    found = Result(place)
    _write(path, setup, found, identity)
    return path, found


def _check_file(path: Path) -> None:
    if path.suffix != ".safetensors":
        raise ConfigError(f"--out: is a file that ends in .safetensors; got {path}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "is a folder" if path.is_dir() else "lies in a folder that is not there"
        raise ConfigError(f"--out: {path} {what}; give a file in a folder that exists")


def _check(setup: Setup) -> None:
    """Raises `ConfigError` unless one client holds all rows that are trained on, and one entry is the whole model."""
    clients = setup.stream.clients
    if clients != 1:
        raise ConfigError(
            f"shoal pretrain: trains on the rows of one client, but stream.clients is {clients}; set stream.clients=1"
        )
    module = setup.world.models["main"].build()
    if not {name for name, _ in module.named_parameters()} - head_names(module):
        raise ConfigError(
            f"shoal pretrain: the file is for all of a model but its head, the last linear layer, and model "
            f"{setup.config.model['kind']} is nothing else here; use a model with layers in front of it"
        )
    entries = setup.method.start().entries
    if len(entries) != 1 or any(entry.segments is not None for entry in entries.values()):
        raise ConfigError(
            f"shoal pretrain: makes a file of one model, but method {setup.config.method['kind']} keeps {len(entries)} "
            f"entries here ({', '.join(list(entries)[:5])}); use method=fedavg with method.per=all"
        )


def _begun(place: Path, config: Config) -> bool:
    """Whether a run of this configuration is in the folder, finished or not."""
    before = RunFolder(place).environment().get("configuration") if RunFolder(place).exists else None
    return isinstance(before, dict) and not changed_settings(before, leaves(dumped(config)))


def _identity(setup: Setup) -> str:
    """A hash of the data and of all settings that a number depends on."""
    settings = {k: v for k, v in leaves(dumped(setup.config)).items() if not is_free(k) and k != "execution.kind"}
    return hashlib.sha256(json.dumps([setup.dataset.fingerprint, sorted(settings.items())]).encode()).hexdigest()


def _write(path: Path, setup: Setup, found: Result, identity: str) -> None:
    summary, config = found.summary, setup.config
    if not summary.get("updates"):
        raise RunError(f"{found.folder}: nothing was trained, so no file is written: {summary.get('first_problem')}")
    try:
        tensors = Weights(str(found.folder / "model.safetensors")).tensors
    except ConfigError as error:
        raise RunError(f"{found.folder}: the training went wrong, so no file is written: {error}") from error
    head = head_names(setup.world.models["main"].build())
    tensors = {name: tensor for name, tensor in tensors.items() if name not in head}
    data = setup.stream.dataset
    rows = _trained(setup)
    about = {
        "data": setup.dataset.name,
        "data_fingerprint": setup.dataset.fingerprint,
        "data_rows": config.data.get("rows"),
        "shape": list(data.shape),
        "normalize": config.data.get("normalize"),
        "training_rows": len(rows),
        "classes": [data.classes[label] for label in sorted(set(data.labels[rows].tolist()))],
        "model": {name: value for name, value in config.model.items() if value is not None},
        "rounds": summary["rounds"],
        "validation_accuracy": _validated(found),
        "test_accuracy": summary.get("acc"),
        "configuration": identity,
        "shoal": __version__,
    }
    parts = data.by_part(rows) if data.is_image else []
    known = [marks(part.features.numpy(), inside) for part, inside in parts]
    write(path, tensors, about, np.concatenate(known) if known else None)


def _trained(setup: Setup) -> np.ndarray:
    """The base rows that the client held in some round, ascending."""
    held = [setup.stream.holding(0, number).train.cpu().numpy() for number in range(1, setup.config.rounds + 1)]
    return np.unique(np.concatenate(held) % len(setup.stream.dataset))


def _validated(found: Result) -> float | None:
    """The accuracy on the validation rows after the last round; the summary has the mean of the last five."""
    lines = RunFolder(found.folder).lines()
    values = [x["value"] for x in lines if x.get("metric") == "mean_validation_accuracy" and x["weighting"] == "rows"]
    return values[-1] if values else None
