"""`Grid`: settings with several values each, and the cells that they span, with a folder name for every cell."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from .errors import ConfigError, nearest
from .loading import parse_value

LONGEST = 80
"""The longest name of a cell; longer ones are cut, and end in a hash."""
_NOT_SWEPT = ("name", "seed", "seeds", "variants", "grid")
_PLAIN = re.compile(r"[A-Za-z0-9._+-]+")


@dataclass(frozen=True)
class Grid:
    """Values by dotted setting. ``cells`` are all combinations; the first setting changes slowest."""

    values: Mapping[str, tuple[Any, ...]]

    def __post_init__(self) -> None:
        for key, values in self.values.items():
            if key.split(".")[0] in _NOT_SWEPT:
                hint = "use --seeds (in Python seeds=)" if key.startswith("seed") else "it names runs"
                raise ConfigError(f"{key}: cannot be swept over; {hint}")
            if not values:
                raise ConfigError(f"{key}: a sweep needs at least one value")
            written = [_canonical(value) for value in values]
            doubled = sorted({text for text in written if written.count(text) > 1})
            if doubled:
                raise ConfigError(f"{key}: {', '.join(doubled)} listed more than once; every value is one cell")

    def cells(self) -> dict[str, dict[str, Any]]:
        """The changes of each cell by its name; one cell without a name and without changes for an empty grid."""
        if not self.values:
            return {"": {}}
        short = short_names(list(self.values))
        words = {key: [_word(value) for value in values] for key, values in self.values.items()}
        found: dict[str, dict[str, Any]] = {}
        taken: set[str] = set()
        for places in itertools.product(*(range(len(values)) for values in self.values.values())):
            changes = {key: self.values[key][place] for key, place in zip(self.values, places, strict=True)}
            parts = [f"{short[key]}={words[key][place]}" for key, place in zip(self.values, places, strict=True)]
            name = ",".join(parts)
            if len(name) > LONGEST or name.lower() in taken:  # some file systems take A and a for the same name
                name = f"{name[: LONGEST - 9]}-{_hash(changes)}"
            taken.add(name.lower())
            found[name] = changes
        return found


def grids_of(given: Any, variants: Sequence[str]) -> dict[str, Grid]:
    """The grid of each variant: settings with lists of values, and under a variant's name those that are its own.

    A variant's own list takes the place of the list for all. Raises `ConfigError`.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"grid: a mapping of settings to lists of values, such as {{local.lr: [0.1, 1]}}; got {given!r}"
        )
    common = {key: value for key, value in given.items() if not isinstance(value, Mapping)}
    own = {key: value for key, value in given.items() if isinstance(value, Mapping)}
    unknown = [str(key) for key in own if key not in variants]
    if unknown:
        known = nearest(unknown[0], variants) if any(variants) else "the configuration has no variants"
        raise ConfigError(f"grid.{unknown[0]}: settings with lists of values belong to a variant; {known}")
    found = {}
    for variant in variants:
        values = {**common, **own.get(variant, {})}
        for key, listed in values.items():
            if not isinstance(listed, list | tuple):
                where = f"grid.{variant}.{key}" if key in own.get(variant, {}) else f"grid.{key}"
                raise ConfigError(f"{where}: needs a list of values to try; got {listed!r}")
        found[variant] = Grid({str(key): tuple(listed) for key, listed in values.items()})
    return found


def ordered(given: Any, before: Any) -> Any:
    """A grid with its settings in the order of an earlier one, if they are the same: it is also that of names."""
    if not isinstance(given, Mapping) or not isinstance(before, Mapping) or set(given) != set(before):
        return given
    return {key: ordered(given[key], before[key]) for key in before}


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The shortest ending of every dotted name that no other one has: ``local.lr``, ``server.lr``, ``tau``."""
    found = {}
    for key in keys:
        parts = key.split(".")
        for count in range(1, len(parts) + 1):
            ending = parts[-count:]
            others = [other for other in keys if other != key and other.split(".")[-count:] == ending]
            if not others:
                break
        found[key] = re.sub(r"[^A-Za-z0-9._-]+", "-", ".".join(ending)).lstrip("._-") or _hash(key)
    return found


def _word(value: Any) -> str:
    """A value as a part of a folder's name. What the word does not tell apart, a hash does."""
    if isinstance(value, Mapping) and set(value) == {"kind"}:
        value = value["kind"]
    text = value if isinstance(value, str) else _canonical(value)
    faithful = bool(_PLAIN.fullmatch(text)) and (not isinstance(value, str) or yaml.safe_load(text) == value)
    if faithful:
        return text
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")
    return f"{slug[:40]}-{_hash(value)}".lstrip("-")


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _hash(value: Any) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:8]


def split_values(text: str) -> list[str]:
    """The values of a list, separated by commas outside of brackets, braces and quotes."""
    pieces, current, depth, quote, before = [], "", 0, "", ""
    for char in text:
        if quote:
            quote = "" if char == quote and before != "\\" else quote
        elif char in "'\"" and (not current.strip() or current.rstrip()[-1] in ",[{:'\""):
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        if char == "," and depth == 0 and not quote:
            pieces.append(current)
            current = ""
        else:
            current += char
        before = "" if before == "\\" else char  # an escaped backslash escapes nothing
    return [*pieces, current]


def parse_grid(items: Iterable[str]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """``["local.lr=0.1,0.2", "rounds=5"]`` -> the settings with several values, and those with one."""
    several: dict[str, list[Any]] = {}
    single: dict[str, Any] = {}
    for item in items:
        key, equals, text = (part.strip() for part in item.partition("="))
        if not equals or not key:
            raise ConfigError(
                f"a setting looks like local.lr=0.1 or, with several values, local.lr=0.1,0.2; got {item!r}"
            )
        if key in several or key in single:
            raise ConfigError(f"{key}: given more than once; list all its values in one place")
        pieces = split_values(text)
        if len(pieces) > 1 and not all(piece.strip() for piece in pieces):
            raise ConfigError(f"{key}: {text!r} has an empty value; write null for none")
        values = [parse_value(key, piece) for piece in pieces]
        if len(values) > 1:
            several[key] = values
        else:
            single[key] = values[0]
    return several, single


def parse_seeds(text: str) -> list[int]:
    """``"3"`` -> 0, 1 and 2; ``"0,4"`` or ``"[4]"`` -> these."""
    try:
        found = parse_value("--seeds", text if "," not in text or text.startswith("[") else f"[{text}]")
    except ConfigError:
        found = None
    if isinstance(found, int) and not isinstance(found, bool) and found > 0:
        return list(range(found))
    if isinstance(found, list) and found and all(isinstance(s, int) and not isinstance(s, bool) for s in found):
        return found
    raise ConfigError(f"--seeds: a number of seeds, or seeds such as 0,1,2; got {text!r}")
