"""Reads configurations: YAML files, recipes, overrides from the command line, variants and seeds."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from .errors import ConfigError, nearest

Source = str | Path | Mapping[str, Any]
"""A YAML file, a recipe's name, or the configuration itself."""

RESERVED = frozenset({"checkpoint", "arrays", "tensorboard", "model.safetensors"})
"""What a run's folder holds besides its text files."""
_SAFE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._=,+-]*$")


def recipes() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = Path(__file__).parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


class _Strict(yaml.SafeLoader):
    """YAML's safe loader, but a key that is given twice is an error, not the last one wins."""


def _mapping(loader: _Strict, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        raise yaml.constructor.ConstructorError(
            None, None, f"{', '.join(twice)}: given more than once", node.start_mark
        )
    return loader.construct_mapping(node, deep=True)


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _parse(text: str) -> Any:
    return yaml.load(text, _Strict)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as a mapping; raises `ConfigError` with the place of a fault."""
    try:
        raw = _parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"cannot read {path}: {reason}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a configuration is a mapping of names to settings; got {type(raw).__name__}")
    return {name: value for name, value in raw.items() if value is not None}


def load(source: Source) -> dict[str, Any]:
    """The raw configuration behind a path, a recipe's name, or a mapping."""
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source))
    path = Path(source)
    if path.is_file():
        return read_yaml(path)
    known = recipes()
    if str(source) in known:
        return read_yaml(known[str(source)])
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give a YAML file or a recipe, or go on with: shoal resume {path}")
    raise ConfigError(f"no file and no recipe is called {str(source)!r}; {nearest(str(source), known)}")


def parse_overrides(items: Iterable[str]) -> dict[str, Any]:
    """``["local.lr=0.1", "seeds=[0, 1]"]`` -> ``{"local.lr": 0.1, "seeds": [0, 1]}``; values are YAML."""
    found: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"an override looks like key=value, such as local.lr=0.1; got {item!r}")
        found[key.strip()] = parse_value(key, text)
    return found


def parse_value(key: str, text: str) -> Any:
    """The value that a text means in YAML; nothing is ``None``. ``key`` says in errors what it is for."""
    try:
        return _parse(text) if text else None
    except yaml.YAMLError as error:
        raise ConfigError(f"{key}: {text!r} is not valid YAML: {error}") from None


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` laid on top, mappings merged; a mapping with another ``kind`` replaces the old one."""
    result = dict(base)
    for name, value in over.items():
        old = result.get(name)
        if (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and value.get("kind", old.get("kind")) == old.get("kind")
        ):
            result[name] = merged(old, value)
        else:
            result[name] = value
    return result


def overridden(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with dotted keys set: ``{"method.server.lr": 0.5}``; a word becomes a part."""
    result = copy.deepcopy(dict(raw))
    for dotted, value in changes.items():
        names = str(dotted).split(".")
        place = result
        for i, name in enumerate(names[:-1]):
            inner = place.get(name)
            if isinstance(inner, str):
                inner = {"kind": inner}
            elif inner is None:
                inner = {}
            elif not isinstance(inner, dict):
                raise ConfigError(f"{dotted}: {'.'.join(names[: i + 1])} is {inner!r}, which has no settings inside")
            place[name] = inner
            place = inner
        place[names[-1]] = copy.deepcopy(value)
    return result


class Single(NamedTuple):
    """One run of a configuration: its place below the common folder, and its own raw configuration."""

    variant: str
    seed: int
    raw: dict[str, Any]

    @property
    def place(self) -> Path:
        """``VARIANT/SEED``."""
        return Path(self.variant) / str(self.seed)


def _laid_over(raw: Mapping[str, Any], dotted: str, value: Any) -> Any:
    """What a variant's change makes of a section: a mapping changes the settings that it names, and no others."""
    old: Any = raw
    for name in str(dotted).split("."):
        old = old.get(name) if isinstance(old, Mapping) else None
    old = {"kind": old} if isinstance(old, str) else old
    if not isinstance(old, Mapping) or not isinstance(value, Mapping):
        return value
    return merged({"": old}, {"": value})[""]


def is_many(raw: Mapping[str, Any]) -> bool:
    """Whether a configuration describes several runs (``variants`` or ``seeds``)."""
    return bool(raw.get("variants")) or bool(raw.get("seeds"))


def expand(raw: Mapping[str, Any]) -> list[Single]:
    """All runs of a configuration with ``variants`` or ``seeds``: every variant with every seed."""
    variants = raw.get("variants") or {str(raw.get("name", "run")): {}}
    seeds = raw.get("seeds") or [raw.get("seed", 0)]
    if not isinstance(variants, Mapping) or not all(isinstance(v, Mapping | None) for v in variants.values()):
        raise ConfigError("variants: a mapping of names to mappings, such as {slow: {method.server.lr: 0.1}}")
    if not isinstance(seeds, list) or not all(isinstance(s, int) and not isinstance(s, bool) for s in seeds):
        raise ConfigError(f"seeds: a list of whole numbers, such as [0, 1, 2]; got {seeds!r}")
    doubled = sorted({s for s in seeds if seeds.count(s) > 1})
    if doubled:
        raise ConfigError(f"seeds: {doubled} listed more than once; every seed is one run")
    odd = [name for name in variants if not isinstance(name, str) or not _SAFE_NAME.match(name)]
    if odd:
        raise ConfigError(
            f"variants: names become folders: text of letters, digits and '._-+=,'; got {odd} "
            f"(YAML reads on, off, yes, no and numbers as something else: quote them)"
        )
    taken = [name for name in variants if name in RESERVED or name.endswith((".yaml", ".json", ".jsonl", ".html"))]
    if taken:
        raise ConfigError(f"variants: {taken} are names of a run's own files; choose others")
    plain = {name: value for name, value in raw.items() if name not in ("variants", "seeds", "grid")}
    runs = []
    for name, changes in variants.items():
        for seed in seeds:
            own = copy.deepcopy(plain)
            for key, value in (changes or {}).items():
                own = overridden(own, {key: _laid_over(own, key, value)})
            inside = sorted({"variants", "seeds", "seed", "grid"} & set(changes or {}))
            if inside:
                raise ConfigError(
                    f"variants.{name}: {inside} cannot vary by variant; seeds and a grid stand beside variants"
                )
            own["seed"] = seed
            runs.append(Single(str(name), seed, own))
    return runs


def leaves(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every setting by its dotted name, as JSON writes it."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= leaves(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return found
