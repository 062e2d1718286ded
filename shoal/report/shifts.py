"""What shifts do to the clients, and whom they meet: accuracy at each stage of a round, drop, recovery, purity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from . import alarms
from .charts import Chart, Key, figure, group, lines, span
from .load import Run, Runs
from .numbers import SHIFTED, STAGES, written
from .parts import Section, note, paragraph, table, tied
from .series import curve, mean_curve, over_seeds
from .similarity import heat_maps
from .words import LISTED, counted, number, points, values_of

PANELS = 12
"""How many variants get a chart of their own."""
BOUNDARIES = 60
"""How many boundaries the table of a single run has."""
AFTER = "after the round"
DRAWN = {
    "similar": "drawn by similarity",
    "random": "drawn at random",
    "chance": "by chance",
    "truth": "drawn by the truth",
}
_MEAN, _DROP, _LEVEL = "recovery_rounds.changed.mean", "drop_after_shift.changed.after", "step_end_accuracy"
_COUNTS = ("recovered", "never", "not_known", "nothing_lost")


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """A sentence, the accuracy at each stage of a round, a table of drops, the purity of contacts, and heat maps."""
    body = _stages(runs) + _table(runs, comparison) + _boundaries(runs) + _purity(runs)
    body += alarms.chart(runs) + heat_maps(runs)
    if body:
        said = [*sentences(comparison), *alarms.sentences(comparison)]
        body = "".join(f"<p>{tied(one)}</p>" for one in said) + body
        unfinished = any(run.boundaries and not run.finished for run in runs.runs)
        if unfinished and not any(run.records.get("shift") for run in runs.runs):
            body = paragraph("No step after a shift is over yet.") + body
    return Section("shifts", "Shifts and contacts", body)


# ---- sentences --------------------------------------------------------------------------------------------------


def sentences(comparison: Mapping[str, Any]) -> list[str]:
    """What the section opens with: of one variant drop, recovery, level and purity; of several the level and the drop
    of each, as a small drop says nothing where there is little to lose."""
    known = {name: v["numbers"] for name, v in comparison["variants"].items() if _DROP in v["numbers"]}
    if not known:
        (only, *others) = comparison["variants"].values() or [{"numbers": {}}]
        said = "" if others else _purity_of(only["numbers"])
        return [f"{said[:1].upper()}{said[1:]}."] if said else []
    if len(comparison["variants"]) == 1:
        return [_one(next(iter(known.values())))]
    parts = [_beside(name, numbers) for name, numbers in list(known.items())[:LISTED]]
    others = counted(len(known) - LISTED, "other") if len(known) > LISTED else ""
    more = f" The table has {others}, too." if others else ""
    return [f"In the first round after a shift, clients that change their cluster {'; '.join(parts)}.{more}"]


def _one(numbers: Mapping[str, Any]) -> str:
    said = f"In the first round after a shift, clients that change their cluster {_moved(numbers[_DROP]['mean'])}"
    stayed = numbers.get("drop_after_shift.stayed.after")
    said += f", those that stay {_moved(stayed['mean'])}" if stayed else ""
    said += f"; {recovery_of(numbers)}" if recovery_of(numbers) else ""
    said += f"; time steps end at {_written(_LEVEL, numbers)}" if _LEVEL in numbers else ""
    purity = _purity_of(numbers)
    return said + (f"; {purity}." if purity else ".")


def _beside(name: str, numbers: Mapping[str, Any]) -> str:
    level = f" (time steps end at {_written(_LEVEL, numbers)})" if _LEVEL in numbers else ""
    return f"{_moved(numbers[_DROP]['mean'])} with {name}{level}"


def _moved(change: float) -> str:
    if abs(change) < 0.0005:
        return "keep their accuracy"
    return f"{'lose' if change < 0 else 'gain'} {points(abs(change))}"


def recovery_of(numbers: Mapping[str, Any], group: str = "changed") -> str:
    """``"the loss is regained after 3.5 rounds on average over the clients, at seven of nine boundaries, and never at
    two"``; over the seeds. Empty where no step is over."""
    counts = {name: _total(numbers, f"recovery_rounds.{group}.{name}") for name in _COUNTS}
    every = sum(counts.values())
    if not every:
        return ""
    lossy, unknown = counts["recovered"] + counts["never"], counts["not_known"]
    if not lossy and unknown:
        what = "the step is" if unknown == 1 else "the steps are"
        return f"whether the loss is regained is not known yet, as the run ends before {what} over"
    if not lossy:
        return "less than a point is lost at every boundary"
    cut = f" (not known yet at {number(unknown)} more, where the run ends before the step is over)" if unknown else ""
    if not counts["recovered"]:
        where = "the one boundary" if lossy == 1 else f"any of {number(lossy)} boundaries"
        return f"the loss is never regained within its step, at {where} with one{cut}"
    rounds = _rounds(numbers, group)
    said = f"90 % of the loss is regained after {rounds} round{'' if rounds == '1' else 's'}"
    said += " on average over the clients" if counts["recovered"] > 1 else ""
    if counts["never"]:
        said += "," if counts["recovered"] > 1 else ""
        said += f" at {number(counts['recovered'])} of {number(lossy)} boundaries, and never within its step at the "
        said += "other" if counts["never"] == 1 else "others"
    return said + cut


def _rounds(numbers: Mapping[str, Any], group: str = "changed") -> str:
    """``"3.5 ± 0.7"``, or ``"6"``: a mean over the clients that recovered."""
    found = numbers[f"recovery_rounds.{group}.mean"]
    mean = f"{found['mean']:.1f}".removesuffix(".0")
    return mean if found.get("sd") is None else f"{mean} ± {found['sd']:.1f}"


def _total(numbers: Mapping[str, Any], key: str) -> int:
    return int(sum(values_of(numbers, key).values()))


def _purity_of(numbers: Mapping[str, Any]) -> str:
    way = next((way for way in ("similar", "truth") if f"contact_purity.{way}" in numbers), None)
    if way is None:
        return ""
    said = f"{_written(f'contact_purity.{way}', numbers)} of the contacts {DRAWN[way]} are of the own cluster"
    chance = numbers.get("contact_purity.chance")
    return said + (f", against {_written('contact_purity.chance', numbers)} by chance" if chance else "")


def _written(key: str, numbers: Mapping[str, Any], unit: bool = True) -> str:
    found = numbers.get(key, {})
    return written(key, found.get("mean"), found.get("sd"), unit)


# ---- charts -----------------------------------------------------------------------------------------------------


def stage_curves(run: Run) -> dict[str, dict[int, float]]:
    """The mean accuracy over the clients at each stage of a round, in the order of the stages; empty without probes.

    Where nothing was measured after training the last stage is the accuracy after the round.
    """
    found = run.metrics.get("mean_probe", [])
    labels = list(dict.fromkeys(str(line["label"]) for line in found if isinstance(line.get("label"), str)))
    curves = {label: one for label in labels if (one := curve(found, label=label))}
    after = {} if "trained" in curves else mean_curve(run)
    return {**curves, AFTER: after} if curves and after else curves


def _stages(runs: Runs) -> str:
    every = {variant: [stage_curves(run) for run in members] for variant, members in runs.variants.items()}
    stages = sorted(dict.fromkeys(s for found in every.values() for one in found for s in one), key=AFTER.__eq__)
    drawn = [pair for pair in runs.variants.items() if any(every[pair[0]])][:PANELS]
    if not drawn:
        return ""
    spreads = {
        variant: {stage: over_seeds(one.get(stage, {}) for one in every[variant]) for stage in stages}
        for variant, _ in drawn
    }
    limits = span([100 * v for each in spreads.values() for s in each.values() for v in s.mean], 0, 100)
    charts = []
    for variant, members in drawn:
        edges = members[0].boundaries
        traces = []
        for place, stage in enumerate(stages):
            traces += lines(spreads[variant][stage], stage_name(stage), stage, place, 100, edges)
        title = "Mean accuracy of the clients at each stage of a round" if runs.single else variant
        chart = figure(traces, "accuracy (%)", boundaries=edges, y_range=limits)
        charts.append(Chart(title, chart, wide=len(drawn) == 1))
    said = (
        "Each client's model on the test rows of its current cluster, as the mean over the clients: what it began the "
        "round with (before communication), after it was mixed with its contacts', and after training. Dashed lines "
        "are shifts."
    )
    return group(charts, [Key(stage, stage_name(stage), i) for i, stage in enumerate(stages)]) + note(said)


def stage_name(stage: str) -> str:
    """A probe's label for people."""
    return STAGES[stage] if stage in ("before", "mixed", "trained") else stage


def _purity(runs: Runs) -> str:
    """Purity over rounds: of one variant by every way of drawing and by chance; of several by similarity."""
    traces: list[Any] = []
    legend: list[Key] = []
    several = len(runs.variants) > 1
    for place, (variant, members) in enumerate(runs.variants.items()):
        for row, drawn in enumerate(DRAWN):
            found = over_seeds(curve(run.metrics.get("contact_purity", []), drawn=drawn) for run in members)
            if not found.rounds or (several and drawn in ("random", "truth")):
                continue
            if several and drawn == "chance":
                if any(key.group == "chance" for key in legend):
                    continue
                name, key, at = DRAWN[drawn], "chance", len(runs.variants)
            else:
                name, key, at = (variant, variant, place) if several else (DRAWN[drawn], drawn, row)
            dashed = "dot" if drawn == "chance" else None
            edges = members[0].boundaries
            traces += lines(found, name, key, at, 100, edges, dashed=dashed, floor=0.0)
            legend.append(Key(key, name, at))
    if not traces:
        return ""
    title = "Contacts drawn by similarity in the own cluster" if several else "Contacts in the own cluster"
    chart = figure(traces, "share of contacts (%)", boundaries=runs.boundaries, y_range=(0, 100))
    return group([Chart(title, chart, wide=True)], legend) + note(
        "By chance: what a uniform draw among all clients that could be met would give. Right after a shift "
        "similarities are stale."
    )


# ---- tables -----------------------------------------------------------------------------------------------------

_COLUMNS = (
    ("Ends of the steps (%)", _LEVEL),
    ("Drop (points)", _DROP),
    ("Drop before communication", "drop_after_shift.changed.before"),
    ("Drop after mixing", "drop_after_shift.changed.mixed"),
    ("Lowest in the step", "drop_after_shift.changed.lowest"),
    ("Drop of those that stay", "drop_after_shift.stayed.after"),
    ("Rounds to recover", _MEAN),
    ("Purity by similarity (%)", "contact_purity.similar"),
    ("At random (%)", "contact_purity.random"),
    ("By the truth (%)", "contact_purity.truth"),
    ("By chance (%)", "contact_purity.chance"),
    ("Models per client and round", "messages_per_round"),
    ("Changes noticed", "alarms.detected"),
    ("Rounds late", "alarms.mean_delay"),
    ("False alarms", "alarms.false"),
)


def _table(runs: Runs, comparison: Mapping[str, Any]) -> str:
    variants = {name: variant["numbers"] for name, variant in comparison["variants"].items()}
    shown = [(head, key) for head, key in _COLUMNS if any(key in numbers for numbers in variants.values())]
    steps = any(_total(n, f"recovery_rounds.changed.{c}") for n in variants.values() for c in _COUNTS)
    if steps and not any(key == _MEAN for _, key in shown):
        shown.insert(sum(key.startswith(("step", "drop")) for _, key in shown), ("Rounds to recover", _MEAN))
    if not shown:
        return ""
    rows = []
    for name, numbers in variants.items():
        cells = [_recovery(numbers) if key == _MEAN else _written(key, numbers, unit=False) for _, key in shown]
        if any(key in numbers for _, key in shown):
            rows.append([name, *cells])
    said = (
        "Drop: accuracy in the first measured round after a shift, minus that at the end of the time step before, of "
        "clients that change their cluster; negative is a loss. Read it beside the level: who has learned little has "
        "little to lose."
        if any(key == _DROP for _, key in shown)
        else "Contacts are all those of the run."
    )
    if runs.single:
        (row,) = rows
        pairs = list(zip([head for head, _ in shown], row[1:], strict=True))
        return table("Level, drop, recovery and contacts", ["Number", "Value"], pairs) + note(said)
    head = ["Variant", *(head for head, _ in shown)]
    return table("Level, drop, recovery and contacts, mean ± standard deviation over seeds", head, rows) + note(said)


def _recovery(numbers: Mapping[str, Any]) -> str:
    """``"3.5; never at 2 of 9; not known yet at 1"``, over all seeds."""
    recovered, never, unknown, calm = (_total(numbers, f"recovery_rounds.changed.{name}") for name in _COUNTS)
    parts = [_rounds(numbers)] if recovered else []
    parts += [f"never at {never} of {recovered + never}"] if never else []
    parts += [f"not known yet at {unknown}"] if unknown else []
    return "; ".join(parts) or ("nothing lost" if calm else "-")


def _boundaries(runs: Runs) -> str:
    """The boundaries of a single run, one row for each group of clients."""
    if not runs.single:
        return ""
    sound = [r for r in runs.runs[0].records.get("shift", []) if _sound(r)]
    if not sound:
        return ""
    rows = []
    for record in sound[:BOUNDARIES]:
        drop, end = record["drops"].get("after"), record["end"]
        rows.append(
            [
                f"after round {record['boundary']}",
                SHIFTED.get(str(record["group"]), str(record["group"])),
                f"{record['clients']:,}",
                *(written("acc", value, unit=False) for value in (end, record["first"])),
                written(_DROP, drop, unit=False),
                f"{written('acc', record['lowest'], unit=False)} in round {record['lowest_round']}",
                written("acc", record["last"], unit=False),
                str(record["recovery_round"] if record["recovery"] == "recovered" else record["recovery"]),
            ]
        )
    head = ["Shift", "Who", "Clients", "End of the step before (%)", "First (%)", "Drop", "Lowest (%)", "Last (%)",
            "Round of the step with 90 % regained"]  # fmt: skip
    more = f" {len(sound) - BOUNDARIES} more rows are in metrics.jsonl." if len(sound) > BOUNDARIES else ""
    return table("Shift by shift", head, rows, (0, 1)) + note(
        "Means over the clients, each on its current cluster; rounds are counted from the shift on." + more
    )


def _sound(record: Mapping[str, Any]) -> bool:
    numbers = [record.get(name) for name in ("boundary", "clients", "end", "first", "lowest", "lowest_round", "last")]
    return isinstance(record.get("drops"), Mapping) and all(
        isinstance(value, int | float) and math.isfinite(value) for value in numbers
    )
