"""Every number that reports and comparisons show: its name, its unit, and what it means.

A number's key is its place in ``summary.json``: ``acc``, ``bwt_f.worst@5``, ``client_drift.head``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

LARGE = 1e9
"""From here on a plain number is written with an exponent."""
PERCENT, POINTS, PLAIN, COUNT, FEW, BYTES, MEGABYTES, SECONDS = (
    "percent", "points", "plain", "count", "few", "bytes", "megabytes", "seconds"
)  # fmt: skip
"""Units. ``percent`` and ``points`` are fractions of 1 in the files; points are differences of percentages. ``few``
are counts so small that their means have a digit."""


class Number(NamedTuple):
    """A number's name for people, its unit, and its definition in plain words."""

    label: str
    unit: str
    meaning: str


_EVENT = "an event is a task that was trained before a phase boundary and is trained again in the phase after it"

NUMBERS: dict[str, Number] = {
    "acc": Number(
        "Final accuracy", PERCENT,
        "Accuracy on the test rows after the last round, as the mean over the tasks (or concepts, or clients): "
        "each of them counts the same, whatever its size.",
    ),
    "acc_weighted": Number(
        "Final accuracy, by rows", PERCENT, "The same, but every test row counts the same: large tasks weigh more.",
    ),
    "acc_last5": Number(
        "Accuracy, last 5 rounds", PERCENT,
        "Mean of the accuracy over the last five measured rounds; steadier than that of a single round.",
    ),
    "bwt_f.seen": Number(
        "BWT_f, seen", POINTS,
        f"Sum over all events of the change at the boundary, divided by T², the squared number of tasks; {_EVENT}. "
        "The change is the accuracy after the first round of the new phase in which the task is trained, minus the "
        "accuracy after the last round before the boundary. Our main reading of BWT_f.",
    ),
    "bwt_f.seen_per_event": Number(
        "BWT_f, seen, per event", POINTS, "The same sum divided by the number of events: the mean change of a task.",
    ),
    "bwt_f.negative": Number(
        "BWT_f, drops only", POINTS, "The sum of the negative changes alone, divided by T²: gains do not hide drops.",
    ),
    "bwt_f.negative_per_event": Number(
        "BWT_f, drops only, per event", POINTS,
        "The same sum divided by the number of all events; equal to the worst of 1 round.",
    ),
    "bwt_f.literal": Number(
        "BWT_f, literal", POINTS,
        "The published formula to the letter: the changes of all tasks at all boundaries, divided by T². A task's "
        "first training enters as a large gain, so this can be positive although tasks were damaged.",
    ),
    "bwt_f.literal_t_t_minus_1": Number(
        "BWT_f, literal, by T(T-1)", POINTS, "The literal sum divided by T(T-1) instead of T².",
    ),
    "bwt_f.worst@1": Number(
        "Drop at the boundary (worst of 1 round)", POINTS,
        "Mean over the events of the loss of accuracy in the first round after the boundary; a gain counts as 0.",
    ),
    "bwt_f.worst@5": Number(
        "Worst of 5 rounds", POINTS,
        "Mean over the events of the largest loss of accuracy within five rounds after the boundary; sees the dips "
        "that come later, as they do with server momentum. Chance alone makes it a little lower than the worst of 1.",
    ),
    "bwt_f.events": Number("Events", COUNT, f"How many events there were; {_EVENT}."),
    "bwt_f.missing": Number(
        "Pairs without a measurement", COUNT, "Pairs of task and boundary that could not be counted in BWT_f.",
    ),
    "forgetting.first": Number(
        "Forgetting, since first learned", POINTS,
        "For each task: its accuracy at the end of the phase in which it was first trained, minus its final accuracy; "
        "mean over the tasks. Positive: accuracy was lost; negative: the task went on improving.",
    ),
    "forgetting.best": Number(
        "Forgetting, since the best", POINTS,
        "The same, but measured from the best accuracy that the task ever had before the end (Chaudhry et al. 2018): "
        "chance alone makes it a little larger than 0.",
    ),
    "forgetting.tasks": Number("Tasks in forgetting", COUNT, "Over how many tasks forgetting is a mean."),
    "forgetting.new": Number(
        "Tasks first trained in the last phase", COUNT, "These had no time to be forgotten and are not in the mean.",
    ),
    "forgetting.missing": Number(
        "Tasks missing in forgetting", COUNT, "Tasks for which a measurement is missing.",
    ),
    "forward_transfer": Number(
        "Forward transfer", POINTS,
        "For each task that was not trained at the start: the accuracy right before it is first trained, minus that of "
        "the untrained model (Lopez-Paz and Ranzato 2017); mean over the tasks. Positive: other tasks helped. With an "
        "entry per task it is 0 by construction.",
    ),
    "step_end_accuracy": Number(
        "Accuracy at the ends of the steps", PERCENT,
        "Mean over the clients' time steps of the accuracy after the last round of the step, each client on its "
        "current cluster. The level that a drop is read beside: who has learned little has little to lose.",
    ),
    "messages_per_round": Number(
        "Models received per client and round", PLAIN,
        "How many peers' models a participating client receives in a round; mean over clients and rounds.",
    ),
    "entry_cosine": Number(
        "Movement of an entry, cosine", PLAIN,
        "1 minus the cosine of the angle between an entry of the bank before and after a round in which it was "
        "trained; mean over entries and rounds. Rounds that did not train the entry do not count.",
    ),
    "ari_mean": Number(
        "Adjusted Rand index", PLAIN,
        "Of the clients' clusters in a round against their true concepts: 1 where they are the same, about 0 by "
        "chance; mean over the rounds. Clusters are the choices of the clients where a method has no others.",
    ),
    "ari_min": Number("Adjusted Rand index, lowest", PLAIN, "That of the worst round."),
    "ari_perfect_rounds": Number("Rounds with perfect clusters", FEW, "In how many rounds the index is 1."),
    "ari_rounds": Number("Rounds with clusters", FEW, "In how many rounds clusters were compared with concepts."),
    "concept_matching_accuracy.strict": Number(
        "Matched, strict", PERCENT,
        "Share of all clients' rounds in which the client trained the model of its concept, and the cluster with most "
        "of the concept's clients updated that model. The model of a concept is the one that most of its clients "
        "trained and updated, over the run; two concepts may have the same one, which counts as right, see Concepts "
        "lost.",
    ),
    "concept_matching_accuracy.accepted": Number(
        "Matched, dropped clusters no error", PERCENT,
        "The same, but where that cluster updated no model it is enough that the client trained the right one.",
    ),
    "concept_matching_accuracy.second_half": Number(
        "Matched, dropped clusters no error, second half", PERCENT,
        "The same in the later half of the rounds, without the search at the beginning.",
    ),
    "concept_matching_accuracy.strict_own": Number(
        "Matched, strict, with clustering errors", PERCENT,
        "As strict, but the client's own cluster must have updated the model of its concept.",
    ),
    "concept_matching_accuracy.accepted_own": Number(
        "Matched, dropped clusters no error, with clustering errors", PERCENT,
        "The same, but where the client's own cluster updated no model it is enough that it trained the right one.",
    ),
    "concepts_met": Number("Concepts met", FEW, "How many concepts clients met that trained and answered."),
    "concepts_found": Number("Concepts found", FEW, "How many of them have a model of their own."),
    "concepts_lost": Number(
        "Concepts lost", FEW,
        "How many have none: their model is that of another concept, of whose clients it has more votes, or their "
        "clusters never updated it.",
    ),
    "models_duplicated": Number(
        "Duplicated models", FEW,
        "Models that were updated, but are no concept's: a concept has another one beside them.",
    ),
    "client_drift": Number(
        "Client drift", PLAIN,
        "Squared Euclidean distance between a client's model and the model it received, measured after each local "
        "epoch; mean over epochs and clients. Over all parameters, and over the head (the last linear layer) alone.",
    ),
    "client_drift_by.squared": Number("Client drift", PLAIN, ""),
    "client_drift_by.distance": Number(
        "Drift distance", PLAIN, "Euclidean distance between the two models at the end of local training.",
    ),
    "client_drift_by.cosine": Number(
        "Drift, cosine", PLAIN,
        "1 minus the cosine of the angle between the two models' parameters at the end of local training.",
    ),
    "bytes_down_per_round": Number(
        "Received per client and round", BYTES,
        "Bytes sent to a participating client in a round, as really encoded; mean over clients and rounds.",
    ),
    "bytes_up_per_round": Number(
        "Sent per client and round", BYTES,
        "Bytes that a participating client sends back in a round; mean over clients and rounds.",
    ),
    "total_bytes_down": Number("Received, in all", BYTES, "Bytes received by all clients over the whole run."),
    "total_bytes_up": Number("Sent, in all", BYTES, "Bytes sent by all clients over the whole run."),
    "seconds": Number("Time", SECONDS, "Wall-clock time of all rounds, measuring included."),
    "evaluation_seconds": Number("Time for measuring", SECONDS, "The part of it that went into measuring."),
    "client_steps": Number("Client steps", COUNT, "Local optimiser steps of all clients over the whole run."),
    "client_steps_per_second": Number(
        "Client steps per second", PLAIN, "Local optimiser steps of all clients together, per second of the run.",
    ),
    "peak_memory_mb": Number("Peak memory", MEGABYTES, "The most memory that the process held at once."),
    "trainable_parameters": Number("Trainable parameters", COUNT, "How many numbers of one model are trained."),
    "model_bytes": Number("Entry size", BYTES, "Bytes of one entry of the bank as it is sent: one model."),
    "entries": Number("Entries", COUNT, "How many models the bank held at the end."),
    "loss": Number("Final test loss", PLAIN, "Loss on the test rows after the last round, mean over the targets."),
    "validation_accuracy": Number(
        "Validation accuracy", PERCENT,
        "Accuracy on the validation rows, which are never trained on; mean over the targets and the last five rounds. "
        "Settings are chosen by it, never by test rows.",
    ),
    "validation_loss": Number(
        "Validation loss", PLAIN, "Loss on the validation rows, mean over the targets and the last five rounds.",
    ),
    "bank_bytes": Number(
        "All entries", BYTES, "Bytes of all entries of the bank at the end of the run, as they would be sent.",
    ),
    "bank_entries": Number("Entries at the end", COUNT, "How many entries the bank has at the end of the run."),
    "client_bytes": Number(
        "Entries at a client", BYTES,
        "Bytes of the entries that a client had in the last round, sent to it or its own already; mean over the "
        "clients that took part.",
    ),
    "constant_bytes": Number(
        "Constants, once", BYTES,
        "Bytes of what is frozen in the models, such as a backbone. Every client needs them once; no round sends them.",
    ),
    "teacher_bytes": Number(
        "Teachers, once", BYTES,
        "Bytes of the networks that models are compared with while they are trained. Clients need them once.",
    ),
    "updates": Number("Updates accepted", COUNT, "How many answers of clients reached the bank, over all rounds."),
    "warmup_updates": Number(
        "Updates accepted in the warm-up", COUNT, "How many did so in the round 0 of methods that have one.",
    ),
    "problems.rejected": Number(
        "Updates rejected", COUNT, "Answers that were not finite, or of a wrong size or weight; by client and round.",
    ),
    "problems.failed": Number("Clients failed", COUNT, "How often a client's program raised an error or crashed."),
    "problems.stragglers": Number(
        "Stragglers", COUNT, "How often a client trained, but its update came too late to be used.",
    ),
    "problems.skipped": Number("Clients skipped", COUNT, "How often a client took part without a row to train on."),
    "median_sqrt_v": Number(
        "Median of sqrt(v)", PLAIN,
        "The square root of an adaptive server's second moment, median over the coordinates of an entry. Compare "
        "it with tau (or the calibration's constant): far below, the server only has momentum; far above, the "
        "constant does nothing.",
    ),
    "median_abs_delta": Number(
        "Median of |Delta|", PLAIN,
        "The size of the pseudo-gradient, the mean of the clients' answers minus the entry (without a server: minus "
        "the mix that was trained): median over the coordinates of an entry.",
    ),
    "effective_step": Number(
        "Effective server step", PLAIN, "Server rate over denominator, median over the coordinates of an entry.",
    ),
    "calibration_constant": Number(
        "Constant of the calibration", PLAIN,
        "What sqrt(v) competes with in the server's denominator: tau, epsilon, or log(2) / beta of the softplus.",
    ),
    "below_constant": Number(
        "Coordinates below the constant", PERCENT,
        "The share of an entry's coordinates whose sqrt(v) is smaller than that constant. How much smaller or larger "
        "says whether the constant is in range.",
    ),
    "clamped": Number(
        "Denominators cut", PERCENT,
        "Share of the coordinates whose denominator the server's last step cut at its bound (Flash: at tau).",
    ),
}  # fmt: skip

SCOPES = {"all": "", "head": " (head)", "features": " (features)"}

SHIFTED = {"all": "all clients", "changed": "clients that changed", "stayed": "clients that stayed"}
"""The groups of clients at a shift."""
STAGES = {
    "after": "after the first round", "before": "before communication", "mixed": "after mixing",
    "trained": "after training", "lowest": "lowest in the step",
}  # fmt: skip
"""When a drop is measured; another label of a probe goes by its name."""
_RECOVERY = {
    "mean": ("Rounds to recover", PLAIN,
             "Rounds of a step until 90 % of what was lost since the end of the step before is regained; mean over the "
             "boundaries at which clients lost at least one point and recovered within the step, each with the weight "
             "of its clients."),
    "recovered": ("Boundaries recovered from", COUNT, "At how many boundaries a loss of a point or more was regained."),
    "never": ("Boundaries never recovered from", COUNT,
              "At how many boundaries a loss was not regained within the step; these are in no mean."),
    "not_known": ("Boundaries not known yet", COUNT,
                  "At how many boundaries a loss was not regained when the run ended, before the step was over; these "
                  "are in no mean."),
    "nothing_lost": ("Boundaries without a loss", COUNT, "At how many boundaries less than one point was lost."),
    "within_step": ("Rounds to 90 % of the step's gain", PLAIN,
                    "Rounds until 90 % of the gain from the first to the last measured round of the same step; what "
                    "the step before ended with does not matter to it. Boundaries weigh by their clients."),
}  # fmt: skip
_ALARMS = {
    "all": ("Alarms", COUNT, "How often a client noticed a jump of its own loss."),
    "changes": ("Changes of cluster", COUNT, "How often a client's true cluster became another one."),
    "detected": ("Changes noticed", COUNT, "Changes with an alarm of the client within five rounds."),
    "missed": ("Changes not noticed", COUNT, "Changes without an alarm within five rounds, or before the next one."),
    "open": ("Changes not known yet", COUNT, "Changes without an alarm whose five rounds were not over."),
    "mean_delay": ("Rounds from a change to its alarm", PLAIN, "Mean over the changes noticed; 0 is the same round."),
    "false": ("False alarms", COUNT, "Alarms that are not the first within five rounds after a change."),
    "new_rows": ("False alarms at new rows", COUNT, "Those in a round with new rows of the same cluster."),
    "false_rate": ("False alarms per round of a client", PERCENT, "Of all rounds of clients without a change."),
}  # fmt: skip
_PURITY = {
    "similar": ("Purity of contacts by similarity",
                "Share of the contacts drawn by similarity whose current cluster is the client's own."),
    "random": ("Purity of random contacts", "The same share of the contacts that were drawn at random."),
    "truth": ("Purity of contacts by the truth",
              "The same share of the contacts that an oracle drew, which is told the true label of the clients' rows."),
    "chance": ("Purity by chance", "What a uniform draw among the clients that could be met would give: the size of "
               "the client's cluster among them minus 1, divided by their number minus 1."),
}  # fmt: skip

METRICS: dict[str, Number] = {
    "accuracy": Number("Accuracy", PERCENT, "The share of the test rows that the model gets right."),
    "loss": Number("Test loss", PLAIN, "The run's loss function, mean over the test rows; lower is better."),
    "f1": Number(
        "F1", PLAIN, "Harmonic mean of precision and recall, from 0 to 1; with several classes the mean over them.",
    ),
    "auc": Number(
        "AUC", PLAIN,
        "Area under the ROC curve: how often a row of a class scores higher than a row of another one. 0.5 is chance.",
    ),
    "balanced_accuracy": Number(
        "Balanced accuracy", PERCENT, "Mean over the classes of the share of their rows that the model gets right.",
    ),
    "mae": Number("MAE", PLAIN, "Mean absolute error, in the units of the data; lower is better."),
    "rmse": Number("RMSE", PLAIN, "Root of the mean squared error, in the units of the data; lower is better."),
    "r2": Number(
        "R²", PLAIN,
        "1 minus the squared error over that of the targets' mean: 1 is perfect, 0 no better than the mean.",
    ),
    "validation_accuracy": Number("Validation accuracy", PERCENT, ""),
    "validation_loss": Number("Validation loss", PLAIN, ""),
}  # fmt: skip
"""What lines of ``metrics.jsonl`` measure of a target; metrics of one's own go by their names."""

OVER_TARGETS: dict[str, tuple[str, str]] = {
    "mean": ("mean", "Each target (task, concept or client) counts the same."),
    "by_rows": ("by rows", "Each test row counts the same, so that large targets weigh more."),
    "sd": ("spread", "The sample standard deviation over the targets."),
    "worst_decile": ("worst decile", "The mean over the worst tenth of the targets, at least one of them."),
    "worst": ("worst", "The worst single target."),
    "best": ("best", "The best single target."),
    "n": ("targets counted", "How many targets have the number."),
    "excluded": ("targets left out", "How many have none: no test rows, no model yet, or a number that is not finite."),
}
"""The numbers of a summary's ``over_targets``, for each metric: their names and meanings."""


def metric(name: str) -> Number:
    """What a metric's lines measure; a metric of one's own is called by its name (the last part of an import path)."""
    return METRICS.get(name) or Number(name.rpartition(":")[2].replace("_", " "), PLAIN, "")


def axis(name: str) -> str:
    """What an axis with a metric is called."""
    return f"{metric(name).label.lower()} (%)" if metric(name).unit == PERCENT else metric(name).label


def axis_scale(name: str) -> float:
    """By what a metric's values are multiplied for its `axis`."""
    return 100.0 if metric(name).unit == PERCENT else 1.0


def describe(key: str) -> Number:
    """The number behind a key. A key that is not listed gets a name made from itself and no meaning."""
    if key in NUMBERS:
        return NUMBERS[key]
    stem, _, scope = key.rpartition(".")
    if stem in NUMBERS and scope in SCOPES:
        return NUMBERS[stem]._replace(label=NUMBERS[stem].label + SCOPES[scope])
    if (found := _of_shifts(key)) is not None:
        return found
    if key.startswith("accuracy_by_target."):
        return Number(f"Final accuracy, {key.partition('.')[2]}", PERCENT, "")
    if key.startswith("own_model."):
        return Number(f"Model of its own, {key.partition('.')[2]}", FEW, "")
    if key.startswith("unmet."):
        return Number(f"Measured, but met by no client, {key.partition('.')[2]}", FEW, "")
    if key.startswith("over_targets."):
        name, _, statistic = key.removeprefix("over_targets.").rpartition(".")
        words, meaning = OVER_TARGETS.get(statistic, (statistic.replace("_", " "), ""))
        unit = COUNT if statistic in ("n", "excluded") else metric(name).unit
        return Number(f"{metric(name).label}, {words}", unit, meaning)
    if stem == "forward_transfer":
        counts = scope in ("tasks", "missing", "excluded")
        words = "" if scope == "mean" else f", {scope.replace('_', ' ')}"
        return NUMBERS[stem]._replace(label=NUMBERS[stem].label + words, unit=COUNT if counts else POINTS)
    return Number(key.replace("_", " ").replace(".", ", "), PLAIN, "")


def _of_shifts(key: str) -> Number | None:
    """The numbers of `shoal.metrics.shift`, `shoal.metrics.contacts` and `shoal.metrics.alarms`."""
    name, *rest = key.split(".")
    if name == "drop_after_shift" and len(rest) == 2:
        group, stage = SHIFTED.get(rest[0], rest[0]), STAGES.get(rest[1], rest[1].replace("_", " "))
        meaning = (
            "Accuracy in the first measured round after a shift, minus that at the end of the time step before; each "
            "client on its current cluster. Mean over clients and boundaries. Negative: accuracy was lost. The lowest "
            "value is that of the mean over the clients in the whole step."
        )
        return Number(f"Drop after a shift, {stage} ({group})", POINTS, meaning)
    if name == "recovery_rounds" and len(rest) == 2 and rest[1] in _RECOVERY:
        label, unit, meaning = _RECOVERY[rest[1]]
        return Number(f"{label} ({SHIFTED.get(rest[0], rest[0])})", unit, meaning)
    if name == "contact_purity" and len(rest) == 1 and rest[0] in _PURITY:
        label, meaning = _PURITY[rest[0]]
        return Number(label, PERCENT, meaning)
    if name == "alarms" and len(rest) == 1 and rest[0] in _ALARMS:
        return Number(*_ALARMS[rest[0]])
    return None


def flat(summary: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All finite numbers of a summary by key; nested mappings are joined with dots, text and lists left out."""
    found: dict[str, float] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[prefix + name] = float(value)
    return found


def written(key: str, mean: float | None, sd: float | None = None, unit: bool = True) -> str:
    """``"91.2 ± 0.8 %"``: a mean, its standard deviation if there is one, and the unit; ``"-"`` without a mean."""
    return in_unit(describe(key).unit, mean, sd, unit)


def in_unit(kind: str, mean: float | None, sd: float | None = None, unit: bool = True) -> str:
    """The same for a unit."""
    if mean is None:
        return "-"
    scale, suffix, digits = _scale(kind, max(abs(mean), sd or 0.0))
    if kind == FEW:
        digits = 0 if float(mean).is_integer() and not sd else 1
    sign = "+" if kind == POINTS and round(mean * scale, digits) > 0 else ""
    text = _plain(mean) if digits < 0 else f"{mean * scale:,.{digits}f}"
    # A rounded zero has no sign: "-0.0" would read as a drop.
    text = text.removeprefix("-") if not text.strip("-0.") else sign + text
    if sd is not None:
        text += " ± " + (_plain(sd, mean or sd) if digits < 0 else f"{sd * scale:,.{digits}f}")
    return f"{text} {suffix}" if unit and suffix else text


def _plain(value: float, like: float | None = None) -> str:
    """Three significant digits (those of ``like``), without an exponent where that is short."""
    if value == 0:
        return "0"
    if abs(value) >= LARGE:
        mantissa, _, power = f"{value:.2e}".partition("e+")
        return f"{mantissa}e{int(power)}"
    digits = 2 - math.floor(math.log10(abs(like if like else value)))
    if digits > 6:
        return f"{value:.2e}"
    return f"{value:,.{max(0, digits)}f}"


def _scale(kind: str, size: float) -> tuple[float, str, int]:
    """Factor, unit and decimals for numbers of this size; -1 decimals means three significant digits."""
    if kind == PERCENT:
        return 100.0, "%", 1
    if kind == POINTS:
        return 100.0, "points", 1
    if kind in (COUNT, FEW):
        return 1.0, "", 0
    if kind == SECONDS:
        return 1.0, "s", 0 if size >= 100 else 1 if size >= 10 else 2
    if kind == MEGABYTES:
        return 1.0, "MB", 0
    if kind == BYTES:
        for power, name in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
            if size >= 1000.0**power:
                return 1000.0**-power, name, 2 if size < 1000.0**power * 100 else 0
        return 1.0, "B", 0
    return 1.0, "", -1
