"""In what runs differ beside what was to be compared: what makes a ranking of them say little, or forbids it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..loading import leaves
from .groups import basis
from .load import Run, Runs
from .words import join

MOST = 12
"""How many differences between runs are named."""
PLURAL = ("the data", "the test rows")
"""Reasons of which there are several."""
MORE = "These runs differ in more than a method"
"""How the line begins that says that a ranking means little."""


def unlike(runs: Runs, reasons: Sequence[str] = ()) -> list[str]:
    """What differs between variants so that a ranking of them means little, or none: data, stream, rounds, seeds.

    ``reasons`` are those of `groups.groups_of`: why there is no common number. Other seeds alone are no more than
    that: a test pairs those that are common.
    """
    if runs.single:
        return []
    said = _settings(runs)
    if reasons:
        quantity = [line for name in reasons for line in _quantity(runs, name)]
        opening = f"These runs have no number in common, as {join(list(reasons))} {_is(reasons)} not the same for all: "
        opening += "nothing is ranked or tested between them, only within groups of comparable ones."
        said = [opening, *quantity, *said]
    elif said:
        said = [f"{MORE}: a ranking of runs of other data, streams or rounds says little about methods.", *said]
    return said + _seeds(runs)


def _is(reasons: Sequence[str]) -> str:
    return "is" if len(reasons) == 1 and reasons[0] not in PLURAL else "are"


def _quantity(runs: Runs, reason: str) -> list[str]:
    """What the variants have of that which makes their numbers other quantities; the data have a line already."""
    facts: dict[str, list[str]] = {}
    for variant, members in runs.variants.items():
        if reason == "what is learned":
            found = next((str(v) for run in members if (v := run.stream.get("learns"))), "")
        elif reason == "the loss function":
            found = basis(members, {}).loss
        elif reason == "the number of classes to choose from":
            found = ", ".join(map(str, sorted(basis(members, {}).choices)))
        elif reason == "the test rows":
            found = next((_targets(run) for run in members if run.metrics), "")
        else:
            return []
        if found:
            facts[variant] = [found]
    return [f"{reason}: {_unlike(facts)}"] if facts else []


def _targets(run: Run) -> str:
    tasks, targets = next(iter(basis([run], {}).rows.values()), ((), ()))
    labels = sorted({label for target, _ in targets for label, _ in target})
    what = f"{len(targets)} targets ({', '.join(labels)})" if labels else "all test rows together"
    rows = sum(int(count) for _, count in targets if isinstance(count, int))
    return f"{what}, {rows:,} rows" + (f", {', '.join(tasks[:4])}{', ...' if len(tasks) > 4 else ''}" if tasks else "")


def _settings(runs: Runs) -> list[str]:
    facts: dict[str, dict[str, list[str]]] = {}
    for variant, members in runs.variants.items():
        prints = sorted({str(p) for run in members if (p := run.environment.get("data_fingerprint"))})
        if prints:
            facts.setdefault("the data (their fingerprint)", {})[variant] = prints
        if members[0].config:
            parts = {k: v for k, v in members[0].config.items() if k in ("stream", "rounds", "data")}
            settings = {k: v for k, v in leaves(parts).items() if k not in ("data.path", "data.root", "data.cache")}
            for name, value in settings.items():
                facts.setdefault(name, {})[variant] = [value]
    configured = sum(bool(members[0].config) for members in runs.variants.values())
    said, partly = [], []
    for name, by_variant in facts.items():
        if len({tuple(found) for found in by_variant.values()}) > 1:
            said.append(f"{name}: {_unlike(by_variant)}")
        elif len(by_variant) < configured and not name.startswith("the "):
            partly.append(f"{name}: {_unlike(by_variant)} alone")
    # Of other kinds of streams nearly every setting is there only in some: the kinds say it.
    said += [] if any(line.startswith(("stream.kind", "data.kind")) for line in said) else partly
    return [*said[:MOST], f"and {len(said) - MOST} settings more"] if len(said) > MOST else said


def _seeds(runs: Runs) -> list[str]:
    """A run of the configuration that is not there yet is missing, and named as such; here are folders of others."""
    if runs.config.get("seeds"):
        return []
    seeds = {variant: [run.seed for run in members] for variant, members in runs.variants.items()}
    if len({tuple(found) for found in seeds.values()}) < 2:
        return []
    return [f"The runs have other seeds, and a test pairs those in common: {_unlike(seeds)}."]


def _unlike(by_variant: Mapping[str, Sequence[str]]) -> str:
    groups: dict[str, list[str]] = {}
    for variant, found in by_variant.items():
        groups.setdefault(", ".join(found[:10]) + (", ..." if len(found) > 10 else ""), []).append(variant)
    shown = [f"{_short(value)} ({_few(names)})" for value, names in list(groups.items())[:6]]
    return "; ".join(shown) + ("; ..." if len(groups) > 6 else "")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} others"
