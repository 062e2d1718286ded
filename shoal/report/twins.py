"""Runs that are the same twice: equal numbers, bit for bit, for a seed that two variants have in common."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ..loading import leaves
from .load import Run, Runs
from .words import listed

WORDS = frozenset({"name", "description", "execution", "checkpoint", "track", "variants", "seeds"})
"""Settings that change no number."""
WHERE = frozenset({"data.path", "data.root", "data.cache"})
MOST = 6
"""How many pairs are named."""


def twins(runs: Runs, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Pairs of comparable variants with seeds in which every measured line is equal: ``a``, ``b``, ``seeds``,
    and ``settings``, whether these are equal too.

    Files are read only where the final numbers are already equal.
    """
    prints: dict[str, str] = {}
    found = []
    for group in groups:
        by_seed = {name: {run.seed: run for run in runs.variants[name] if run.finished} for name in group["variants"]}
        for a, b in itertools.combinations(by_seed, 2):
            pairs = [(by_seed[a][seed], by_seed[b][seed]) for seed in by_seed[a] if seed in by_seed[b]]
            same = [(one, two) for one, two in pairs if _alike(one, two) and _print(one, prints) == _print(two, prints)]
            if same:
                equal = all(_settings(one) == _settings(two) for one, two in same)
                found.append({"a": a, "b": b, "seeds": [one.seed for one, _ in same], "settings": equal})
    return found


def said_of_twins(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each pair."""
    said = []
    for pair in pairs[:MOST]:
        seeds = f"seed{'' if len(pair['seeds']) == 1 else 's'} {listed(pair['seeds'])}"
        why = (
            "they have the same settings, so that this is one result and not two"
            if pair["settings"]
            else "what their settings differ in has no effect there"
        )
        said.append(f"{pair['a']} and {pair['b']} have the same numbers to the last bit in {seeds}: {why}.")
    return said + ([f"So have {len(pairs) - MOST} further pairs."] if len(pairs) > MOST else [])


def _alike(one: Run, two: Run) -> bool:
    keys = ("acc", "loss")
    known = any(one.summary.get(key) is not None for key in keys)
    return known and all(one.summary.get(key) == two.summary.get(key) for key in keys)


def _print(run: Run, known: dict[str, str]) -> str:
    """A digest of the lines of all rounds, without those of round 0 that tell what was set up."""
    place = str(run.folder)
    if place not in known:
        try:
            lines = (run.folder / "metrics.jsonl").read_bytes().split(b"\n")
        except OSError:
            lines = [place.encode()]  # like no other
        kept = itertools.dropwhile(lambda line: b'"record": "stream"' in line or b'"record": "model"' in line, lines)
        known[place] = hashlib.sha256(b"\n".join(kept)).hexdigest()
    return known[place]


def _settings(run: Run) -> dict[str, str]:
    found = leaves({name: value for name, value in run.config.items() if name not in WORDS})
    return {name: value for name, value in found.items() if name not in WHERE}
