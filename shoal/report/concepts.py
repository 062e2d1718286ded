"""Concepts and models: clusters against the truth, who updates whose model, and concepts without a model of their own.

What is shown of a run comes from its records ``concepts``, see `shoal.metrics.concepts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..metrics.concepts_models import Concept, Models, models_of
from . import concepts_distances, concepts_timeline
from .charts import Chart, Key, figure, group, lines
from .concepts_timeline import concept_name
from .concepts_words import MATCHED, number_of, sentences
from .load import Run, Runs
from .numbers import written
from .parts import Section, note, table, tied
from .series import curve, over_seeds
from .words import LISTED, counted, listed

_COLUMNS = (
    ("Accuracy by rows (%)", "acc_weighted"),
    ("Accuracy (%)", "acc"),
    ("ARI, mean", "ari_mean"),
    ("Lowest", "ari_min"),
    ("Perfect rounds", "ari_perfect_rounds"),
    ("Matched, strict (%)", f"{MATCHED}.strict"),
    ("Matched, dropped no error (%)", f"{MATCHED}.accepted"),
    ("Second half (%)", f"{MATCHED}.second_half"),
    ("With clustering errors, strict (%)", f"{MATCHED}.strict_own"),
    ("With clustering errors, dropped no error (%)", f"{MATCHED}.accepted_own"),
    ("Concepts met", "concepts_met"),
    ("Found", "concepts_found"),
    ("Lost", "concepts_lost"),
    ("Duplicated models", "models_duplicated"),
)
_COSTS = (("Received per round", "bytes_down_per_round"), ("Sent per round", "bytes_up_per_round"))


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """Sentences, tables, curves over rounds, a timeline for each run, and the distances of its clusters."""
    found = {id(run): models_in(run) for run in runs.runs}
    if not any(found.values()):
        return Section("concepts", "Concepts and models", "")
    said = sentences(comparison)
    if runs.single and (models := found[id(runs.runs[0])]) is not None:
        said += _whose(runs.runs[0], models) + _saved(runs.runs[0])
    body = "".join(f"<p>{tied(one)}</p>" for one in said)
    body += _table(runs, comparison) + _each(runs) + _curves(runs)
    drawn = {id(run): models for run in runs.runs if (models := found[id(run)]) is not None}
    return Section(
        "concepts",
        "Concepts and models",
        body + concepts_timeline.charts(runs, drawn) + concepts_distances.charts(runs, drawn),
    )


def models_in(run: Run) -> Models | None:
    """Whose the models of a run are; ``None`` where that was not measured."""
    if "concepts" not in run.kept:
        run.kept["concepts"] = models_of(run.lines)
    found: Models | None = run.kept["concepts"]
    return found


# ---- sentences --------------------------------------------------------------------------------------------------


def _whose(run: Run, models: Models) -> list[str]:
    """Of one run: who shares a model with whom, and models that a concept has beside its own."""
    said = []
    for concept in models.lost[:LISTED]:
        shared = models.of[concept]
        name, owner = _name(run, models, concept), models.owners[shared]
        why = f"its clients train and update {shared} most often, which is that of {_name(run, models, owner)}"
        if shared in models.retired:
            why = f"{shared}, which its clients trained and updated most often, was retired"
        elif owner == concept:
            why = f"its clients train {shared} most often, and none of its clusters ever updated that"
        said.append(f"{name} has no model of its own: {why}.")
    if len(models.lost) > LISTED:
        said.append(f"Nor have {counted(len(models.lost) - LISTED, 'other concept')}.")
    if models.duplicated:
        pairs = [f"{key} ({_name(run, models, concept)})" for key, concept in models.duplicated.items()]
        was, are = ("were", "are") if len(pairs) > 1 else ("was", "is")
        said.append(f"{listed(pairs)} {was} updated, too, but {are} no concept's model.")
    return said


def _saved(run: Run) -> list[str]:
    """How often clients that know their task were spared the comparison; nothing where none is remembered."""
    told = [record for record in run.records.get("clusters", []) if isinstance(record.get("remembered"), int)]
    every = sum(len(record["clients"]) for record in told if isinstance(record.get("clients"), list))
    if not every:
        return []
    spared = sum(record["remembered"] for record in told)
    return [
        f"In {spared:,} of {every:,} clients' rounds the model of the task was remembered: it alone was sent, and no "
        f"other was compared with it."
    ]


def _name(run: Run, models: Models, concept: Concept) -> str:
    return concept_name(run, models.label, concept)


# ---- tables -----------------------------------------------------------------------------------------------------


def _table(runs: Runs, comparison: Mapping[str, Any]) -> str:
    variants = {name: variant["numbers"] for name, variant in comparison["variants"].items()}
    shown = [(head, key) for head, key in _COLUMNS if any(key in numbers for numbers in variants.values())]
    costs = [(head, key) for head, key in _COSTS if any(key in numbers for numbers in variants.values())]
    if not any(key.startswith("concepts") for _, key in shown):
        return ""
    rows = []
    for name, numbers in variants.items():
        cells = [number_of(key, numbers, unit=False) for _, key in shown]
        cells += [_dropped(runs.variants.get(name, ())), *(number_of(key, numbers) for _, key in costs)]
        rows.append([name, *cells])
    head = [*(head for head, _ in shown), "Clusters dropped", *(head for head, _ in costs)]
    said = (
        "ARI: adjusted Rand index of a round's clusters against the true concepts. Matched: the client trained the "
        "model of its concept, and the cluster with most of the concept's clients updated that model; with clustering "
        "errors, the client's own cluster did. Lost: concepts that share the model of another one, or that never "
        "updated the one that they choose. Received are all models that a client is sent to choose from."
    )
    if runs.single:
        return table(
            "Concepts and models in numbers", ["Number", "Value"], list(zip(head, rows[0][1:], strict=True))
        ) + (note(said))
    caption = "Concepts and models, mean ± standard deviation over seeds"
    return table(caption, ["Variant", *head], rows) + note(said)


def _dropped(members: Sequence[Run]) -> str:
    """``"3 of 60"`` clusters, over all seeds; ``"-"`` where the method tells of no clusters."""
    models = [
        model
        for run in members
        for record in run.records.get("clusters", [])
        if isinstance(record.get("models"), list)
        for model in record["models"]
    ]
    return f"{models.count(None):,} of {len(models):,}" if models else "-"


def _each(runs: Runs) -> str:
    """The concepts of a single run, one by one."""
    models = models_in(runs.runs[0]) if runs.single else None
    if models is None:
        return ""
    run = runs.runs[0]
    last: dict[Any, Mapping[str, Any]] = {}
    for line in run.metrics.get("accuracy", []):
        if models.label in line:
            last[line[models.label]] = line
    rows = []
    for concept, model in models.of.items():
        own = [one for one in models.met if one.concept == concept]
        share = models.accuracy(own)
        dropped = sum(one.model is None for one in own)
        line = last.get(concept, {})
        rows.append(
            [
                _name(run, models, concept),
                model if concept not in models.lost else f"none ({model} is {_lost(models, concept)})",
                line.get("entry") or "-",
                written("acc", line.get("value"), unit=False),
                f"{line['rows']:,}" if isinstance(line.get("rows"), int) else "-",
                f"{len(own):,}",
                f"{dropped:,}",
                f"{share.all:,}",
                written("acc", share.strict / share.all, unit=False),
                written("acc", share.accepted / share.all, unit=False),
            ]
        )
    head = ["Concept", "Its model", "Serves it at the end", "Accuracy (%)", "Test rows", "Rounds", "Dropped in",
            "Matches", "Right, strict (%)", "Dropped no error (%)"]  # fmt: skip
    return table("Concept by concept", head, rows, (0, 1, 2)) + note(
        "Its model: the one that most of its clients trained and updated, over the run. At the end a concept is served "
        "by the model with the lowest loss on its validation rows."
    )


def _lost(models: Models, concept: Concept) -> str:
    if models.of[concept] in models.retired:
        return "retired"
    return "never updated by it" if models.owners[models.of[concept]] == concept else "shared"


# ---- curves -----------------------------------------------------------------------------------------------------


def _curves(runs: Runs) -> str:
    """The Rand index and the share of right matches over the rounds, a line per variant."""
    titles = ("Clusters against true concepts", "Matches that are right, dropped clusters no error")
    traces: tuple[list[Any], list[Any]] = ([], [])
    legend: list[Key] = []
    for place, (variant, members) in enumerate(runs.variants.items()):
        rand = over_seeds(curve(run.metrics.get("ari", [])) for run in members)
        right = over_seeds(_right(models) for run in members if (models := models_in(run)) is not None)
        if not right.rounds:
            continue
        edges = members[0].boundaries
        traces[0].extend(lines(rand, variant, variant, place, 1, edges, digits=".3f") if rand.rounds else [])
        traces[1].extend(lines(right, variant, variant, place, 100, edges, floor=0.0))
        legend.append(Key(variant, variant, place))
    axes = ("adjusted Rand index", "matches (%)")
    lowest = min((y for trace in traces[0] for y in trace.y), default=0.0)
    ranges = ((min(0.0, max(-1.0, lowest)) - 0.05, 1.05), (0.0, 105.0))
    charts = [
        Chart(title, figure(some, axis, boundaries=runs.boundaries, y_range=limits))
        for title, some, axis, limits in zip(titles, traces, axes, ranges, strict=True)
        if some
    ]
    return group(charts, legend if len(legend) > 1 else ())


def _right(models: Models) -> dict[int, float]:
    rounds: dict[int, list[Any]] = {}
    for one in models.met:
        rounds.setdefault(one.round, []).append(one)
    shares = {round: models.accuracy(some) for round, some in sorted(rounds.items())}
    return {round: share.accepted / share.all for round, share in shares.items()}
