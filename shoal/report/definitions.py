"""What the numbers mean, in plain words; only of those that the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .load import Runs
from .numbers import NUMBERS, SCOPES
from .parts import Section, esc

TERMS = {
    "Round": "The clients that take part receive models, train them on their own rows, and send back what changed.",
    "Phase, boundary": "In a phase every client keeps its task; at the boundary between two phases clients go on to "
    "their next one. The dashed lines in the charts are the boundaries.",
    "Target": "What an accuracy is measured on: the test rows of a task, a concept, or a client.",
    "Points": "Differences of percentages: from 81 % to 77 % are 4 points.",
    "± (spread of the seeds)": "The sample standard deviation over the seeds. A difference of two variants is called "
    "beyond the spread if it is larger than the root of the sum of their variances: the standard deviation that the "
    "difference of two single runs would have. It is a reading aid, not a test.",
    "Drop, dip": "A drop is a mean change of at least one point downwards in the first round after a boundary. A "
    "later dip is a worst of 5 rounds that is at least two points, and by half, below the worst of 1 round.",
}


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Terms, then numbers."""
    present = {key for variant in comparison["variants"].values() for key in variant["numbers"]}
    present |= {key.rpartition(".")[0] for key in present if key.rpartition(".")[2] in SCOPES}
    seeds = any(len(variant["seeds"]) > 1 for variant in comparison["variants"].values())
    tasks = any(run.boundaries for run in runs.runs)
    skipped = set() if seeds else {"± (spread of the seeds)"}
    skipped |= set() if tasks else {"Phase, boundary", "Drop, dip"}
    items = [(name, text) for name, text in TERMS.items() if name not in skipped]
    items += [(number.label, number.meaning) for key, number in NUMBERS.items() if key in present and number.meaning]
    body = "".join(f"<dt>{esc(name)}</dt><dd>{esc(text)}</dd>" for name, text in items)
    return Section("definitions", "Definitions", f"<dl>{body}</dl>")
