"""What sentences are made of: counts in words, lists of names, points; and the few questions that all of them ask."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

DROP = 0.01
"""A loss of at least one point at a boundary is called a drop; in a mean over many events less is noise."""
LISTED = 4
"""How many variants a sentence names before it says "and 3 others"."""
NOTHING = "Nothing was trained"
"""How the sentence begins that is more important than all others."""
LONGEST = 240
"""How much of an error message a sentence quotes."""

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def values_of(numbers: Mapping[str, Any], key: str) -> dict[str, float]:
    """A number by seed."""
    return dict(numbers.get(key, {}).get("values", {}))


def lost(variant: Mapping[str, Any]) -> float:
    """How many updates failed or were rejected, over all seeds."""
    return sum(sum(values_of(variant["numbers"], f"problems.{kind}").values()) for kind in ("failed", "rejected"))


def untrained(variants: Mapping[str, Any]) -> list[str]:
    """A sentence for every variant in which no update was accepted, in all seeds or in some."""
    said = []
    for name, variant in variants.items():
        updates = values_of(variant["numbers"], "updates")
        empty = [seed for seed, count in updates.items() if count == 0]
        if not empty or variant.get("rounds") == 0:
            continue
        reason = f"; the first reason: {quoted(variant['first_problem'])}" if variant.get("first_problem") else ""
        which = f" with {name}" if name else ""
        if any(values_of(variant["numbers"], "warmup_updates").get(seed) for seed in empty):
            which += " after the warm-up"
        if len(empty) == len(updates):
            said.append(f"{NOTHING}{which}: no update was accepted in any round{reason}.")
        else:
            said.append(f"{NOTHING}{which}, seed {', '.join(empty)}: no update was accepted{reason}.")
    return said


def quoted(text: object) -> str:
    """Somebody else's message inside a sentence: on one line, not too long, without a full stop at its end."""
    line = re.sub(r"\s+", " ", str(text)).strip().rstrip(".")
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def names_of(numbers: Mapping[str, Any]) -> str:
    """What the targets are, in the plural: ``clients``, ``tasks``, or ``targets`` where they are of several kinds."""
    stem = "accuracy_by_target."
    labels = {key.removeprefix(stem).partition("=")[0] for key in numbers if key.startswith(stem) and "=" in key}
    return f"{labels.pop()}s" if len(labels) == 1 else "targets"


def reaches(value: float, threshold: float) -> bool:
    """``value >= threshold``, forgiving the last bits."""
    return value >= threshold - 1e-12


def mean(values: Sequence[float]) -> float:
    """The plain mean."""
    return math.fsum(values) / len(values)


def points(value: float) -> str:
    """``"6.1 points"``."""
    text = f"{100 * value:.1f}"
    return f"{text} point" if text == "1.0" else f"{text} points"


def number(count: int) -> str:
    """``"three"``; numbers above ten in digits."""
    return _WORDS[count] if 0 <= count < len(_WORDS) else f"{count:,}"


def counted(count: int, noun: str) -> str:
    """``"three seeds"``, ``"one run"``."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def with_names(names: Sequence[str], bare: bool = False) -> str:
    """``" with a, b and c"``; nothing for a run on its own, whose name is empty; ``bare``: only how many."""
    if bare:
        return f" with {counted(len(names), 'other')}"
    return f" with {listed(names)}" if names[0] else ""


def listed(names: Sequence[str]) -> str:
    """``"a, b and c"``; of many the first few and how many others."""
    if len(names) > LISTED:
        return join([*names[: LISTED - 1], f"{number(len(names) - LISTED + 1)} others"])
    return join(list(names))


def join(parts: Sequence[str]) -> str:
    """``"a, b and c"``."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
