"""`sweep`: every combination of settings with several values, and the choice of the best by validation rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .choice import VALIDATION, Choice, parse_choice
from .config import Config, Evaluation
from .data.dataset import Dataset
from .errors import ConfigError, RunError
from .folder import RunFolder
from .grid import grids_of, ordered
from .loading import Single, Source, expand, leaves, load, overridden
from .many import Data, checked, clear_runs, for_data, play_many
from .progress import Quiet
from .results import Sweep
from .running import changed_settings, dumped
from .setup import assemble, resolve_config


def sweep(
    source: Source,
    grid: Mapping[str, Any],
    *,
    seeds: int | Sequence[int] | None = None,
    best: str | None = None,
    out: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    force: bool = False,
    data: Dataset | None = None,
    progress: Quiet | None = None,
) -> Sweep:
    """Runs a configuration with every combination of some settings, and chooses the best.

    ``grid`` maps dotted settings to lists of values; a value that is no list, or in ``overrides``, is the same for
    all. If the configuration has ``variants``, each of them is run with every combination; settings under the name of a
    variant, ``{"adam": {"method.server.lr": [0.01, 0.1]}}``, are its own. Without a list the configuration's ``grid``
    is taken. With several cells of a variant its best one is chosen too, and ``tuned.yaml`` has each variant with the
    settings that were best for it. ``seeds`` is a number of
    seeds, counted from 0, or a list. ``best`` is a number of ``summary.json``: ``validation_accuracy`` (the
    largest), ``validation_loss`` (the smallest), or another one with its better end, ``min:client_drift``; numbers
    of test rows are refused. The best cell is written as ``best.yaml``, all of them as ``sweep.json``.

    ``out`` is by default ``runs/NAME-sweep``. The same call again goes on where an interrupted one stopped, and a
    grid with more cells or seeds adds them; other settings are an error. ``force`` starts again.

    Raises `ShoalError`, for anything that is wrong with any cell before the first one runs.
    """
    raw = load(source)
    given, single = _given(raw, grid)
    raw = for_data(overridden(raw, {**(overrides or {}), **single}), data)
    given = given or raw.get("grid") or {}
    raw.pop("grid", None)
    if seeds is not None:
        raw["seeds"] = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
        if not raw["seeds"]:
            raise ConfigError("seeds: a sweep needs at least one")
    choice = None if best is None else parse_choice(best)
    if choice is not None and choice.needs_validation:
        raw = _measuring(raw)
    path = Path(out) if out is not None else Path("runs") / f"{raw.get('name', 'run')}-sweep"
    folder = RunFolder(path)
    if not force:
        given = ordered(given, folder.sweep().get("grid", {}))
    cells = _cells(raw, given)
    raw["variants"] = {cell["cell"]: cell["changes"] for cell in cells}
    found, store = checked(raw), Data(data)
    if best is not None:
        parse_choice(best, dict.fromkeys(kind for _, config in found for kind in config.evaluate.measures))
    _assembled(found, path, store, choice, force)
    begun = {
        "grid": given,
        "seeds": sorted({one.seed for one, _ in found}, key=[one.seed for one, _ in found].index),
        "best": None if choice is None else {"number": choice.number, "take": choice.take},
        "cells": cells,
        "chosen": None,
        "finished": False,
    }
    with folder.locked():
        if force:
            clear_runs(folder, raw)
            folder.prepare(raw, True)
        elif folder.exists:
            _extend(folder, raw, found)
        else:
            folder.prepare(raw, False)
        folder.write_json("sweep.json", begun)
        play_many(raw, path, store, progress)
    return Sweep(path)


def _measuring(raw: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the measure of validation rows."""
    evaluate = raw.get("evaluate") or {}
    measures = evaluate.get("measures", Evaluation().measures) if isinstance(evaluate, Mapping) else []
    if VALIDATION in measures:
        return raw
    return overridden(raw, {"evaluate.measures": [*measures, VALIDATION]})


def _given(raw: Mapping[str, Any], grid: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is swept over, for all variants or by variant, and what is the same for all."""
    variants = raw.get("variants") or {}
    swept = {
        key: value
        for key, value in grid.items()
        if isinstance(value, list | tuple) or (isinstance(value, Mapping) and key in variants)
    }
    return swept, {key: value for key, value in grid.items() if key not in swept}


def _cells(raw: Mapping[str, Any], given: Any) -> list[dict[str, Any]]:
    """Every cell with its name and changes: each variant of the configuration with each combination of its grid.

    With variants ``settings`` are the changes that come from the grid.
    """
    variants = raw.get("variants") or {"": {}}
    expand(raw)  # raises for what are no variants
    grids = grids_of(given, list(variants))
    found: list[dict[str, Any]] = []
    for variant, changes in variants.items():
        for cell, more in grids[variant].cells().items():
            made = {
                "cell": ",".join(part for part in (variant, cell) if part),
                "changes": {**(changes or {}), **more},
            }
            found.append({**made, "variant": variant, "settings": more} if variant else made)
    told = [str(cell["cell"]) for cell in found]
    doubled = sorted({name for name in told if told.count(name) > 1})
    if doubled:
        raise ConfigError(f"variants: {', '.join(doubled)} would name two cells of the sweep; choose other names")
    if len(found) < 2:
        raise ConfigError(
            "nothing to sweep over: give a setting several values, such as local.lr=0.1,0.2 (several seeds alone are "
            "a run: shoal run CONFIG seeds=[0,1,2])"
        )
    return found


def _assembled(
    found: Sequence[tuple[Single, Config]], path: Path, data: Data, choice: Choice | None, force: bool
) -> None:
    """Tries the first seed of each cell that is not finished: models that do not fit, streams without what is needed.

    Raises `ConfigError`, naming the cell.
    """
    seen: set[str] = set()
    for single, config in found:
        if single.variant in seen or (not force and RunFolder(path / single.place).finished):
            continue
        seen.add(single.variant)
        dataset = data.of(config)
        try:
            setup = assemble(config, dataset)
        except ConfigError as error:
            raise ConfigError(f"{single.variant}: {error}") from None
        if choice is None or not choice.needs_validation:
            continue
        if not any(len(target.validation) for target in setup.stream.targets(max(1, config.rounds))):
            raise ConfigError(
                f"{single.variant}: --best {choice.number} needs validation rows, but no target of the stream has any; "
                f"set stream.validation, such as stream.validation=0.1"
            )
        if choice.number == "validation_accuracy" and setup.dataset.is_regression:
            raise ConfigError(
                f"{single.variant}: --best {choice.number}: the models learn real values, which are neither right nor "
                f"wrong; use --best validation_loss"
            )
        if not config.evaluate.every:
            raise ConfigError(
                f"{single.variant}: --best {choice.number} needs measuring, but evaluate.every is 0; set it to 1"
            )


def _extend(folder: RunFolder, raw: dict[str, Any], found: Sequence[tuple[Single, Config]]) -> None:
    """Goes on with the sweep that is in a folder; its grid and its seeds may have grown. Raises `RunError`."""
    path = folder.path
    if not folder.sweep():
        raise RunError(f"{path} holds a run that is no sweep; choose another --out, or --force to replace it")
    now = {single.place: config for single, config in found}
    before = {single.place: single for single in expand(folder.config())}
    lost = [str(place) for place in before if place not in now]
    if lost:
        others = f" and {len(lost) - 5} others" if len(lost) > 5 else ""
        raise RunError(
            f"{path} holds a sweep with runs that this one lacks: {', '.join(lost[:5])}{others}. A sweep may only "
            f"grow: keep all its values and seeds, choose another --out, or --force to replace it"
        )
    for place, single in before.items():
        changed = changed_settings(leaves(dumped(resolve_config(single.raw))), leaves(dumped(now[place])))
        if changed:
            raise RunError(
                f"{path} holds a sweep of another configuration: {', '.join(changed[:5])}. Choose another --out, or "
                f"--force to replace it"
            )
    for name in ("comparison.json", "report.html", "best.yaml", "tuned.yaml"):
        (path / name).unlink(missing_ok=True)
    folder.write_yaml("config.yaml", raw)
