"""What is seen in the numbers of runs, in plain sentences. Rules with thresholds, nothing about any one experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .numbers import flat, written

DROP = 0.01
"""A loss of at least one point at a boundary is called a drop; in a mean over many events less is noise."""
DIP, DEEPER = 0.02, 1.5
"""A later dip is at least two points, and by half, below the loss at the boundary: the minimum of five noisy
measurements is always somewhat lower than that of one."""
LISTED = 4
"""How many variants a sentence names before it says "and 3 others"."""

NOTHING = "Nothing was trained"
"""How the sentence begins that is more important than all others."""

SKIPPED = frozenset({"seed", "rounds"})
"""Numbers of a summary that say what was run, not what came out."""
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def run_findings(summary: Mapping[str, Any]) -> list[str]:
    """The sentences of `findings` for the summary of one run."""
    seed = str(summary.get("seed", 0))
    numbers = {
        key: {"mean": value, "sd": None, "n": 1, "values": {seed: value}}
        for key, value in flat(summary).items()
        if key not in SKIPPED
    }
    problem = summary.get("first_problem")
    one = {"seeds": [seed], "unfinished": [], "numbers": numbers, "first_problem": problem}
    # The empty name: there is nothing to tell it from.
    return findings({"variants": {"": one}, "missing": []})


def findings(comparison: Mapping[str, Any]) -> list[str]:
    """What is seen in the numbers, in a few plain sentences.

    Rules, with accuracies in points (hundredths):

    - *Nothing trained*, first of all: in some run no update was accepted in any round. Updates that failed or were
      rejected elsewhere are counted. The first reason is given.
    - *Drop at a boundary*: in one seed, the mean change over the events in the first round of a new phase
      (``bwt_f.seen_per_event``) is a loss of one point or more. This number and not ``bwt_f.worst@1``, in which
      gains count as 0, so that noise around no change is no drop. A variant drops if that is so in more than
      half of its seeds; where it is so in fewer, the sentence says in how many. Where it is so in none although
      ``worst@1`` is a loss of a point or more, some tasks lose and others gain; both numbers are given.
    - *Later dip*: in one seed, ``bwt_f.worst@5`` is two points or more, and at least by half, below
      ``bwt_f.worst@1``. A variant dips if that is so in more than half of its seeds.
    - *Best final accuracy*: the highest mean of ``acc``. The difference of two variants is beyond the spread of
      the seeds if it is larger than the root of the sum of their sample variances, that is, than the standard
      deviation that the difference of two single runs would have. This is a reading aid, not a test.
    - If the mean over the last five rounds puts another variant first, beyond the spread, that is said too.
    - With one seed there is no spread, and the last sentence says so. Unfinished and missing runs do not count;
      they are mentioned.

    The summary of a single run is understood too, as in `run_findings`.
    """
    if "variants" not in comparison:
        return run_findings(comparison)
    variants = {str(name): _Seen.of(str(name), v) for name, v in comparison["variants"].items()}
    counted = [seen for seen in variants.values() if seen.n]
    said = _untrained(comparison["variants"])
    if counted:
        said += _boundaries(counted) + _dips(counted) + _accuracy(counted) + _spread(counted)
    return said + _incomplete(comparison)


def _untrained(variants: Mapping[str, Any]) -> list[str]:
    """What kept clients from training."""
    said = []
    for name, variant in variants.items():
        reason = f" The first: {variant['first_problem']}." if variant.get("first_problem") else ""
        with_name = f" with {name}" if name else ""
        updates = _values(variant["numbers"], "updates")
        empty = [seed for seed, count in updates.items() if count == 0]
        lost = sum(sum(_values(variant["numbers"], f"problems.{kind}").values()) for kind in ("failed", "rejected"))
        if empty and len(empty) == len(updates):
            said.append(f"{NOTHING}{with_name}: no update was accepted in any round.{reason}")
        elif empty:
            said.append(f"{NOTHING}{with_name}, seed {', '.join(empty)}: no update was accepted.{reason}")
        elif lost:
            said.append(f"{lost:.0f} updates{with_name} failed or were rejected.{reason}")
    return said


class _Seen(NamedTuple):
    """What the sentences need of one variant; losses are positive, in fractions of 1."""

    name: str
    n: int
    numbers: Mapping[str, Any]
    drops: list[float]
    """The mean change at a boundary, of every seed that has it, as a loss."""
    losses: list[float]
    """``worst@1`` of every seed that has it."""
    dips: list[tuple[float, float]]
    """``worst@1`` and ``worst@5`` of every seed that has both."""

    @classmethod
    def of(cls, name: str, variant: Mapping[str, Any]) -> _Seen:
        numbers = variant["numbers"]
        first = _values(numbers, "bwt_f.worst@1") or _values(numbers, "bwt_f.negative_per_event")
        fifth = _values(numbers, "bwt_f.worst@5")
        changes = _values(numbers, "bwt_f.seen_per_event") or first
        return cls(
            name,
            len(variant["seeds"]),
            numbers,
            [-value for value in changes.values()],
            [-value for value in first.values()],
            [(-first[seed], -fifth[seed]) for seed in first if seed in fifth],
        )

    @property
    def dropped(self) -> list[float]:
        return [loss for loss in self.drops if _reaches(loss, DROP)]

    @property
    def dipped(self) -> list[float]:
        return [fifth for first, fifth in self.dips if _reaches(fifth - first, DIP) and _reaches(fifth, DEEPER * first)]

    @property
    def drops_mostly(self) -> bool:
        return 2 * len(self.dropped) > len(self.drops)


def _boundaries(variants: Sequence[_Seen]) -> list[str]:
    known = [seen for seen in variants if seen.drops]
    if not known:
        return []
    mostly = sorted((s for s in known if s.drops_mostly), key=lambda s: -_mean(s.drops))
    rarely = [s for s in known if s.dropped and not s.drops_mostly]
    mixed = [s for s in known if not s.dropped and s.losses and _reaches(_mean(s.losses), DROP)]
    never = [s for s in known if not s.dropped and s not in mixed]
    subject = "tasks that were trained before and are trained again lose"
    less = "less than one point"
    if any(len(s.drops) > 1 for s in never):
        less += " on average" if any(_reaches(loss, DROP) for s in never for loss in s.losses) else " in every seed"
    if len(never) == len(known):
        return [f"No drop at the phase boundaries: in the first round after one, {subject} {less}."]
    parts = [_loss(s.drops, len(s.dropped), s.name) for s in mostly[:LISTED]]
    if len(mostly) > LISTED:
        parts.append(f"one point or more{_with([s.name for s in mostly[LISTED:]], bare=True)}")
    for seen in rarely[:LISTED]:
        seeds = _count(len(seen.dropped), len(seen.drops))
        parts.append(f"one point or more in only {seeds}{_with([seen.name])} (at most {_points(max(seen.dropped))})")
    if len(rarely) > LISTED:
        parts.append(
            f"one point or more in a minority of the seeds{_with([s.name for s in rarely[LISTED:]], bare=True)}"
        )
    if never:
        parts.append(f"{less}{_with([s.name for s in never])}")
    said = [f"In the first round after a phase boundary, {subject} {'; '.join(parts)}."] if parts else []
    return said + _mixed(mixed, alone=not parts)


def _mixed(variants: Sequence[_Seen], alone: bool) -> list[str]:
    if not variants:
        return []
    parts = []
    for seen in variants[:LISTED]:
        both = (
            f"a mean loss of {_points(_mean(seen.losses))}, but a mean change of {-100 * _mean(seen.drops):+.1f} points"
        )
        parts.append(f"{both}{_with([seen.name])}")
    if len(variants) > LISTED:
        parts.append(f"likewise{_with([s.name for s in variants[LISTED:]], bare=True)}")
    where = "In the first round after a phase boundary" if alone else "There"
    return [f"{where} some tasks lose and others gain: {'; '.join(parts)}."]


def _dips(variants: Sequence[_Seen]) -> list[str]:
    dipping = [seen for seen in variants if 2 * len(seen.dipped) > len(seen.dips)]
    dipping.sort(key=lambda seen: -_mean([fifth for _, fifth in seen.dips]))
    later = [s for s in dipping if not s.drops_mostly]
    deeper = [s for s in dipping if s.drops_mostly]
    without = " without a drop at the boundary" if not any(s.dropped for s in later) else ""
    said = []
    for chosen, words in ((later, f"A later dip{without}"), (deeper, "The loss grows further")):
        parts = [_loss([fifth for _, fifth in s.dips], len(s.dipped), s.name) for s in chosen[:LISTED]]
        if len(chosen) > LISTED:
            parts.append(f"likewise{_with([s.name for s in chosen[LISTED:]], bare=True)}")
        if parts:
            said.append(f"{words}: at the lowest of five rounds those tasks have lost {'; '.join(parts)}.")
    return said


def _accuracy(variants: Sequence[_Seen]) -> list[str]:
    ranked = _ranked(variants, "acc")
    if not ranked:
        return []
    best, others = ranked[0], ranked[1:]
    seeds = f" (mean ± standard deviation of {_number(best.n)} seeds)" if best.n > 1 else ""
    if not others:
        return [f"Final accuracy: {_level(best)}{seeds}{_range(best)}."]
    near = [seen for seen in others if not _beyond(best, seen, "acc")]
    far = [seen for seen in others if _beyond(best, seen, "acc")]
    what = "no difference beyond the spread of the seeds" if best.n > 1 else "no difference"
    if far:
        text = f"{best.name} ends with the highest accuracy, {_level(best)}{seeds}"
        gaps = [f"{_points(_gap(best, s, 'acc'))} above {s.name}" for s in far[:LISTED]]
        if len(far) > LISTED:
            gaps.append(f"more above {_number(len(far) - LISTED)} others")
        text += f", {_and(gaps)}"
        if near:
            text += f"; there is {what} to {_levels(near, '({})')}"
        said = [text + "."]
    else:
        said = [f"In final accuracy there is {what}: {_levels(ranked)}{seeds}."]
    steady = _ranked(variants, "acc_last5")
    if steady and steady[0].name != best.name and _beyond(steady[0], best, "acc_last5"):
        gap = _points(_gap(steady[0], best, "acc_last5"))
        said.append(f"Over the last five rounds, though, {steady[0].name} is {gap} above {best.name}.")
    return said


def _level(seen: _Seen) -> str:
    return written("acc", seen.numbers["acc"]["mean"], seen.numbers["acc"]["sd"])


def _range(seen: _Seen) -> str:
    """``", from 84.8 % (task=4) to 93.6 % (task=0)"``, where there are several targets."""
    stem = "accuracy_by_target."
    means = {key.removeprefix(stem): float(n["mean"]) for key, n in seen.numbers.items() if key.startswith(stem)}
    if len(means) < 2:
        return ""
    low, high = min(means, key=lambda t: means[t]), max(means, key=lambda t: means[t])
    return f", from {written('acc', means[low])} ({low}) to {written('acc', means[high])} ({high})"


def _levels(variants: Sequence[_Seen], form: str = "{}") -> str:
    shown = [f"{seen.name} {form.format(_level(seen))}" for seen in variants[:LISTED]]
    if len(variants) > LISTED:
        shown.append(f"{_number(len(variants) - LISTED)} others")
    return _and(shown)


def _spread(variants: Sequence[_Seen]) -> list[str]:
    alone = [seen for seen in variants if seen.n == 1]
    if not alone:
        return []
    if len(alone) == len(variants):
        whom = "One seed" if len(variants) == 1 else "One seed per variant"
    else:
        whom = f"One seed only for {_names([seen.name for seen in alone])}"
    return [f"{whom}: how far another seed would differ is not known."]


def _incomplete(comparison: Mapping[str, Any]) -> list[str]:
    unfinished = sum(len(variant["unfinished"]) for variant in comparison["variants"].values())
    missing = len(comparison.get("missing") or ())
    parts = [f"{_number(unfinished)} unfinished {_runs(unfinished)}"] if unfinished else []
    parts += [f"{_number(missing)} {_runs(missing)} not yet started"] if missing else []
    return [f"Not counted: {_and(parts)}."] if parts else []


def _values(numbers: Mapping[str, Any], key: str) -> dict[str, float]:
    return dict(numbers.get(key, {}).get("values", {}))


def _ranked(variants: Sequence[_Seen], key: str) -> list[_Seen]:
    return sorted((s for s in variants if key in s.numbers), key=lambda s: -float(s.numbers[key]["mean"]))


def _gap(a: _Seen, b: _Seen, key: str) -> float:
    return float(a.numbers[key]["mean"]) - float(b.numbers[key]["mean"])


def _beyond(a: _Seen, b: _Seen, key: str) -> bool:
    """Whether the difference is larger than the seeds' spread; with one seed, whether there is one to speak of."""
    spread = math.hypot(a.numbers[key]["sd"] or 0.0, b.numbers[key]["sd"] or 0.0)
    return not _reaches(max(spread, 0.0005), _gap(a, b, key))


def _reaches(value: float, threshold: float) -> bool:
    return value >= threshold - 1e-12


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _loss(losses: Sequence[float], count: int, name: str) -> str:
    """``"6.1 points with fedsgd (4.0 to 8.1; in three of three seeds)"``."""
    if len(losses) == 1:
        return _points(losses[0]) + _with([name])
    low, high = f"{100 * min(losses):.1f}", f"{100 * max(losses):.1f}"
    span = f"{low} to {high}; " if low != high else ""
    return f"{_points(_mean(losses))}{_with([name])} ({span}in {_count(count, len(losses))})"


def _points(value: float) -> str:
    text = f"{100 * value:.1f}"
    return f"{text} point" if text == "1.0" else f"{text} points"


def _count(some: int, every: int) -> str:
    return f"{_number(some)} of {_number(every)} seeds"


def _number(count: int) -> str:
    return _WORDS[count] if count < len(_WORDS) else str(count)


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"


def _with(names: Sequence[str], bare: bool = False) -> str:
    """``" with a, b and c"``; nothing for a run on its own, whose name is empty; ``bare``: only how many."""
    if bare:
        return f" with {_number(len(names))} {'other' if len(names) == 1 else 'others'}"
    return f" with {_names(names)}" if names[0] else ""


def _names(names: Sequence[str]) -> str:
    if len(names) > LISTED:
        return _and([*names[: LISTED - 1], f"{_number(len(names) - LISTED + 1)} others"])
    return _and(list(names))


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
