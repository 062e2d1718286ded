"""Sentences on concepts and their models: how well they fit, and which concepts have no model of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .numbers import written
from .words import LISTED, counted, join, listed, number, values_of

MATCHED = "concept_matching_accuracy"


def sentences(comparison: Mapping[str, Any]) -> list[str]:
    """How well clusters and models fit the concepts: of one variant in full, of several one clause for each."""
    known = {name: v["numbers"] for name, v in comparison["variants"].items() if "concepts_met" in v["numbers"]}
    if not known:
        return []
    if len(comparison["variants"]) == 1:
        return _one(next(iter(known.values())))
    parts = [_beside(name, numbers) for name, numbers in list(known.items())[:LISTED]]
    more = f" The table has {counted(len(known) - LISTED, 'other')}, too." if len(known) > LISTED else ""
    return [f"Of all matches of a client with a model, a dropped cluster being no error: {'; '.join(parts)}.{more}"]


def _one(numbers: Mapping[str, Any]) -> list[str]:
    said = []
    rounds, perfect = _total(numbers, "ari_rounds"), _total(numbers, "ari_perfect_rounds")
    if rounds:
        rand = f"adjusted Rand index {number_of('ari_mean', numbers)} on average"
        low = min(values_of(numbers, "ari_min").values())
        lowest = "" if perfect == rounds else f", {written('ari_min', low)} at the lowest"
        each = "every round" if perfect == rounds else f"{perfect:,} of {rounds:,} rounds"
        said.append(f"The clusters are the true concepts in {each} ({rand}{lowest}).")
    strict, accepted = number_of(f"{MATCHED}.strict", numbers), number_of(f"{MATCHED}.accepted", numbers)
    if strict == accepted:
        said.append(f"{strict} of the matches are right: the client trains the model of its concept, and updates it.")
    else:
        said.append(
            f"{strict} of the matches are right: the client trains the model of its concept, and its concept's cluster "
            f"updates it; {accepted}, if a cluster that was dropped is no error."
        )
    if not _total(numbers, "concepts_lost"):
        said.append("Every concept has a model of its own.")
    return said


def _beside(name: str, numbers: Mapping[str, Any]) -> str:
    lost, met = _total(numbers, "concepts_lost"), _total(numbers, "concepts_met")
    own = f"{lost:,} of {met:,} concepts without a model of their own" if lost else "every concept has its own model"
    seeds = " over all seeds" if lost and len(values_of(numbers, "concepts_lost")) > 1 else ""
    return f"{number_of(f'{MATCHED}.accepted', numbers)} are right with {name} ({own}{seeds})"


def lost_words(comparison: Mapping[str, Any]) -> str:
    """For the first lines of the page: how many concepts have no model of their own, with whom, and which were never
    met; empty if all have one."""
    return "; ".join(words for words in (_lost_words(comparison), _unmet_words(comparison)) if words)


def _unmet_words(comparison: Mapping[str, Any]) -> str:
    """Which concepts were measured though no client met them, in any run."""
    about = comparison.get("about", {})
    names = dict.fromkeys(
        _named(key.removeprefix("unmet."), about)
        for variant in comparison["variants"].values()
        for key in variant["numbers"]
        if key.startswith("unmet.")
    )
    verb = "was" if len(names) == 1 else "were"
    return f"{listed(list(names))} {verb} measured, but met by no client whose answer counted" if names else ""


def _lost_words(comparison: Mapping[str, Any]) -> str:
    variants = {name: v["numbers"] for name, v in comparison["variants"].items()}
    some = {name: numbers for name, numbers in variants.items() if _total(numbers, "concepts_lost")}
    if not some:
        return ""
    if len(variants) > 1:
        parts = [f"{_lost_of(numbers)} with {name}" for name, numbers in list(some.items())[:LISTED]]
        parts += [f"others with {counted(len(some) - LISTED, 'other')}"] if len(some) > LISTED else []
        return f"concepts without a model of their own: {join(parts)}"
    (numbers,) = some.values()
    lost = values_of(numbers, "concepts_lost")
    which = _which(numbers, comparison.get("about", {}))
    if len(lost) > 1:
        seeds = f"{number(sum(value > 0 for value in lost.values()))} of {number(len(lost))} seeds"
        return f"in {seeds} there are concepts without a model of their own{which}"
    count = _total(numbers, "concepts_lost")
    has, own = ("has", "its") if count == 1 else ("have", "their")
    return f"{_lost_of(numbers)} concepts {has} no model of {own} own{which}"


def _lost_of(numbers: Mapping[str, Any]) -> str:
    """``"one of five"``; of several seeds ``"1.5 of 5 on average"``."""
    lost, met = numbers["concepts_lost"], numbers["concepts_met"]
    if lost["n"] == 1:
        return f"{number(int(lost['mean']))} of {number(int(met['mean']))}"
    return f"{written('concepts_lost', lost['mean'])} of {written('concepts_met', met['mean'])} on average"


def _which(numbers: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    stem = "own_model."
    names = []
    for key in (key for key, found in numbers.items() if key.startswith(stem) and found["mean"] < 1):
        names.append(_named(key.removeprefix(stem), about))
    return f" ({listed(names)})" if names else ""


def _named(key: str, about: Mapping[str, Any]) -> str:
    """What the concept of a key such as ``"concept=2"`` is called."""
    label, _, value = key.partition("=")
    known = about.get("names", {}).get(label, ())
    return str(known[int(value)]) if value.isdecimal() and int(value) < len(known) else f"{label} {value}"


def _total(numbers: Mapping[str, Any], key: str) -> int:
    return int(sum(values_of(numbers, key).values()))


def number_of(key: str, numbers: Mapping[str, Any], unit: bool = True) -> str:
    found = numbers.get(key, {})
    return written(key, found.get("mean"), found.get("sd"), unit)
