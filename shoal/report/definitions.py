"""What the numbers mean, in plain words; only of those that the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .groups import grouped
from .lead import lead_metric
from .load import Runs
from .numbers import METRICS, NUMBERS, OVER_TARGETS, SCOPES, SHIFTED, describe
from .pairs import ALPHA
from .parts import Section, esc
from .series import further_metrics

TERMS = {
    "Round": "The clients that take part receive models, train them on their own rows, and send back what changed.",
    "Phase, boundary": "In a phase every client keeps what it holds (its task, its concept); at the boundary between "
    "two phases that changes. The dashed lines in the charts are the boundaries.",
    "Target": "What an accuracy is measured on: the test rows of a task, a concept, or a client.",
    "Points": "Differences of percentages: from 81 % to 77 % are 4 points.",
    "± (spread of the seeds)": "The sample standard deviation over the seeds. Where two variants have fewer than two "
    "seeds in common there is no test; a difference is then called beyond the spread if it is larger than the root of "
    "the sum of their variances. That is a reading aid, not a test.",
    "Paired t-test": "For every seed that two variants share, the difference of their final numbers; the "
    "test asks whether the mean of these differences could be 0. p is the chance of a mean at least as far from 0 if "
    "there were no difference. The interval holds the true mean difference in 95 of 100 such comparisons.",
    "Within noise, not separated": "A test with a corrected p of 0.05 or more separates nothing. The difference is "
    "called within noise only where its 95 % interval lies inside plus or minus two points (of a loss: two hundredths "
    "of the better one), so that there is little to separate. Otherwise it is left open: with two or three seeds even "
    "a large difference is not separated.",
    "Holm's correction": "Of many comparisons some look large by chance. The smallest p is multiplied by the number of "
    "pairs, the next by one less, and so on (Holm 1979).",
    "Wilcoxon": "The signed-rank test on the same differences, from six seeds on: it looks at their order alone, so "
    "that a single odd seed counts less.",
    "Shared rank": "Variants share a rank if no corrected test separates them from the best of that rank.",
    "Entry": "One model that the server keeps. A method may keep one for everyone, one per task, one per client.",
    "Confusion matrix": "How many test rows of each true class (rows) the model takes for each class (columns). The "
    "diagonal is right.",
    "Drop, dip": "A drop is a mean change of at least one point downwards in the first round after a boundary. A "
    "later dip is a worst of 5 rounds that is at least two points, and by half, below the worst of 1 round.",
}


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Terms, then numbers."""
    present = {key for variant in comparison["variants"].values() for key in variant["numbers"]}
    present |= {key.rpartition(".")[0] for key in present if key.rpartition(".")[2] in SCOPES}
    present |= {"forward_transfer"} if any(key.startswith("forward_transfer.") for key in present) else set()
    several = any(len(variant["seeds"]) > 1 for variant in comparison["variants"].values())
    tests = [test for group in grouped(comparison) for test in group["tests"]]
    shown = {
        "± (spread of the seeds)": several,
        "Paired t-test": bool(tests),
        "Within noise, not separated": any(test["p_holm"] >= ALPHA for test in tests),
        "Holm's correction": bool(tests),
        "Wilcoxon": any("wilcoxon" in test for test in tests),
        "Shared rank": any(len(group["ranking"].get("rows", ())) > 1 for group in grouped(comparison)),
        "Phase, boundary": any(run.boundaries for run in runs.runs),
        "Drop, dip": any(run.boundaries and run.stream.get("tasks") for run in runs.runs),
        "Confusion matrix": any(run.records.get("confusion") for run in runs.runs),
    }
    items = [(name, text) for name, text in TERMS.items() if shown.get(name, True)]
    items += [(number.label, number.meaning) for key, number in NUMBERS.items() if key in present and number.meaning]
    items += _of_shifts(present)
    measured = dict.fromkeys((lead_metric(runs.runs), *further_metrics(runs.runs)))
    items += [(METRICS[m].label, METRICS[m].meaning) for m in measured if m in METRICS and METRICS[m].meaning]
    statistics = {key.rpartition(".")[2] for key in present if key.startswith("over_targets.")}
    items += [(f"Over the targets: {name}", meaning) for s, (name, meaning) in OVER_TARGETS.items() if s in statistics]
    # A name that is measured in several ways is explained once.
    items = list({name: (name, text) for name, text in reversed(items)}.values())[::-1]
    body = "".join(f"<dt>{esc(name)}</dt><dd>{esc(text)}</dd>" for name, text in items)
    return Section("definitions", "Definitions", f"<dl>{body}</dl>")


def _of_shifts(present: set[str]) -> list[tuple[str, str]]:
    """One item for each number of shifts and contacts; the groups of clients are explained by their names."""
    found: dict[str, str] = {}
    for key in sorted(present):
        if key.partition(".")[0] in ("drop_after_shift", "recovery_rounds", "contact_purity", "alarms"):
            label, _, meaning = describe(key)
            group = next((f" ({words})" for words in SHIFTED.values() if label.endswith(f"({words})")), "")
            label = label.removesuffix(group)
            label = label.partition(",")[0] if key.startswith("drop") else label
            found.setdefault(label, meaning)
    return list(found.items())
