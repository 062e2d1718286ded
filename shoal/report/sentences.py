"""What is seen in the numbers of runs, in plain sentences. Rules with thresholds, nothing about any one experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..metrics.functions import lower_is_better
from .groups import grouped
from .numbers import flat, written
from .opening import opening, range_of, unmeasured
from .pairs import paired_tests
from .twins import said_of_twins
from .verdicts import difference, noise_words, open_words, p_is, separated, within_noise
from .words import (
    DROP,
    LISTED,
    counted,
    join,
    listed,
    lost,
    mean,
    number,
    points,
    quoted,
    reaches,
    untrained,
    values_of,
    with_names,
)  # fmt: skip

DIP, DEEPER = 0.02, 1.5
"""A later dip is at least two points, and by half, below the loss at the boundary: the minimum of five noisy
measurements is always somewhat lower than that of one."""
SKIPPED = frozenset({"seed", "rounds"})
"""Numbers of a summary that say what was run, not what came out."""


def run_findings(
    summary: Mapping[str, Any], about: Mapping[str, Any] | None = None, state: str | None = None
) -> list[str]:
    """The sentences of `findings` for the summary of one run.

    ``about`` says more of what was run than a summary does (`comparison.about`), ``state`` how far an unfinished
    run has come.
    """
    seed = str(summary.get("seed", 0))
    numbers = {
        key: {"mean": value, "sd": None, "n": 1, "values": {seed: value}}
        for key, value in flat(summary).items()
        if key not in SKIPPED
    }
    one = {"seeds": [seed], "unfinished": [], "numbers": numbers, "method": summary.get("method"),
           "first_problem": summary.get("first_problem"), "rounds": summary.get("rounds")}  # fmt: skip
    rounds = {"rounds": summary["rounds"]} if isinstance(summary.get("rounds"), int) else {}
    # The empty name: there is nothing to tell it from.
    return findings({"variants": {"": one}, "missing": [], "about": {**rounds, **(about or {})}, "state": state})


def findings(comparison: Mapping[str, Any]) -> list[str]:
    """What is seen in the numbers, in a few plain sentences: the two of `opening`, then what there is more.

    Rules, with accuracies in points (hundredths):

    - *Nothing trained*, in the second sentence: in some run no update was accepted in any round, with the first
      reason. Updates that failed or were rejected elsewhere are counted.
    - *Drop at a boundary*: in one seed, the mean change over the events in the first round of a new phase
      (``bwt_f.seen_per_event``) is a loss of one point or more. This number and not ``bwt_f.worst@1``, in which
      gains count as 0, so that noise around no change is no drop. A variant drops if that is so in more than
      half of its seeds; where it is so in fewer, the sentence says in how many. Where it is so in none although
      ``worst@1`` is a loss of a point or more, some tasks lose and others gain; both numbers are given.
    - *Later dip*: in one seed, ``bwt_f.worst@5`` is two points or more, and at least by half, below
      ``bwt_f.worst@1``. A variant dips if that is so in more than half of its seeds.
    - *Best at the end*: the highest mean of ``acc`` (where real values are learned: the lowest of ``loss``), among
      the variants whose numbers are of one quantity (`groups.differences`). A paired t-test over the common seeds
      (`pairs.paired_tests`) separates two variants if p is below 0.05 after Holm's correction. Otherwise their
      difference is *within noise* only if its 95% interval is narrow (`verdicts.within_noise`); else the test leaves
      it open, and the sentence has the difference, the interval and p. Without two common seeds there is no test; then
      a difference counts that is larger than the root of the sum of the sample variances, as far as there are any.
    - Variants that have no number, and runs that are the same twice (`twins.twins`), are named.
    - If the mean over the last five rounds puts another variant first, by the same rule, that is said too.
    - With one seed there is no spread, and the last sentence says so. Unfinished and missing runs do not count;
      they are mentioned.

    The summary of a single run is understood too, as in `run_findings`.
    """
    if "variants" not in comparison:
        return run_findings(comparison)
    groups = grouped(comparison)
    comparison = {**comparison, "groups": groups}
    variants = {str(name): _Seen.of(str(name), v) for name, v in comparison["variants"].items()}
    with_seeds = [seen for seen in variants.values() if seen.n]
    said = opening(comparison)
    # What the second sentence says is not said again.
    problems = _problems(comparison["variants"])
    more = [sentence for sentence in problems if sentence not in said and (len(variants) > 1 or not problems)]
    if with_seeds:
        more += _boundaries(with_seeds) + _dips(with_seeds)
        # The first sentence has the final number of a single variant, the second may have the lack of seeds.
        for group in groups if len(variants) > 1 else []:
            mine = [seen for seen in with_seeds if seen.name in group["variants"]]
            more += _best(mine, group, comparison.get("about", {}), alone=len(groups) == 1)
        more += unmeasured(comparison) if len(variants) > 1 else []
        more += [] if "with one seed" in said[1].lower() else _spread(with_seeds)
    return said + more + said_of_twins(comparison.get("same") or ()) + _incomplete(comparison)


def _problems(variants: Mapping[str, Any]) -> list[str]:
    """What kept clients from training."""
    said = untrained(variants)
    for name, variant in variants.items():
        count = lost(variant)
        if count and any(values_of(variant["numbers"], "updates").values() or [1]):
            reason = f" The first: {quoted(variant['first_problem'])}." if variant.get("first_problem") else ""
            with_name = f" with {name}" if name else ""
            said.append(f"{counted(int(count), 'update').capitalize()}{with_name} failed or were rejected.{reason}")
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
        first = values_of(numbers, "bwt_f.worst@1") or values_of(numbers, "bwt_f.negative_per_event")
        fifth = values_of(numbers, "bwt_f.worst@5")
        changes = values_of(numbers, "bwt_f.seen_per_event") or first
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
        return [loss for loss in self.drops if reaches(loss, DROP)]

    @property
    def dipped(self) -> list[float]:
        return [fifth for first, fifth in self.dips if reaches(fifth - first, DIP) and reaches(fifth, DEEPER * first)]

    @property
    def drops_mostly(self) -> bool:
        return 2 * len(self.dropped) > len(self.drops)


def _boundaries(variants: Sequence[_Seen]) -> list[str]:
    known = [seen for seen in variants if seen.drops]
    if not known:
        return []
    mostly = sorted((s for s in known if s.drops_mostly), key=lambda s: -mean(s.drops))
    rarely = [s for s in known if s.dropped and not s.drops_mostly]
    mixed = [s for s in known if not s.dropped and s.losses and reaches(mean(s.losses), DROP)]
    never = [s for s in known if not s.dropped and s not in mixed]
    subject = "tasks that were trained before and are trained again lose"
    less = "less than one point"
    if any(len(s.drops) > 1 for s in never):
        less += " on average" if any(reaches(loss, DROP) for s in never for loss in s.losses) else " in every seed"
    if len(never) == len(known):
        return [f"No drop at the phase boundaries: in the first round after one, {subject} {less}."]
    parts = [_loss(s.drops, len(s.dropped), s.name) for s in mostly[:LISTED]]
    if len(mostly) > LISTED:
        parts.append(f"one point or more{with_names([s.name for s in mostly[LISTED:]], bare=True)}")
    for seen in rarely[:LISTED]:
        seeds = _count(len(seen.dropped), len(seen.drops))
        parts.append(
            f"one point or more in only {seeds}{with_names([seen.name])} (at most {points(max(seen.dropped))})"
        )
    if len(rarely) > LISTED:
        parts.append(
            f"one point or more in a minority of the seeds{with_names([s.name for s in rarely[LISTED:]], bare=True)}"
        )
    if never:
        parts.append(f"{less}{with_names([s.name for s in never])}")
    said = [f"In the first round after a phase boundary, {subject} {'; '.join(parts)}."] if parts else []
    return said + _mixed(mixed, alone=not parts)


def _mixed(variants: Sequence[_Seen], alone: bool) -> list[str]:
    if not variants:
        return []
    parts = []
    for seen in variants[:LISTED]:
        both = f"a mean loss of {points(mean(seen.losses))}, but a mean change of {-100 * mean(seen.drops):+.1f} points"
        parts.append(f"{both}{with_names([seen.name])}")
    if len(variants) > LISTED:
        parts.append(f"likewise{with_names([s.name for s in variants[LISTED:]], bare=True)}")
    where = "In the first round after a phase boundary" if alone else "There"
    return [f"{where} some tasks lose and others gain: {'; '.join(parts)}."]


def _dips(variants: Sequence[_Seen]) -> list[str]:
    dipping = [seen for seen in variants if 2 * len(seen.dipped) > len(seen.dips)]
    dipping.sort(key=lambda seen: -mean([fifth for _, fifth in seen.dips]))
    later = [s for s in dipping if not s.drops_mostly]
    deeper = [s for s in dipping if s.drops_mostly]
    without = " without a drop at the boundary" if not any(s.dropped for s in later) else ""
    said = []
    for chosen, words in ((later, f"A later dip{without}"), (deeper, "The loss grows further")):
        parts = [_loss([fifth for _, fifth in s.dips], len(s.dipped), s.name) for s in chosen[:LISTED]]
        if len(chosen) > LISTED:
            parts.append(f"likewise{with_names([s.name for s in chosen[LISTED:]], bare=True)}")
        if parts:
            said.append(f"{words}: at the lowest of five rounds those tasks have lost {'; '.join(parts)}.")
    return said


def _best(variants: Sequence[_Seen], group: Mapping[str, Any], about: Mapping[str, Any], alone: bool) -> list[str]:
    """The best of a group of comparable variants, and how it stands to the others; ``alone``: the only group."""
    key = group["lead"]
    ranked = _ranked(variants, key)
    if not ranked:
        return []
    best, others = ranked[0], ranked[1:]
    name = "final accuracy" if key == "acc" else "final test loss"
    seeds = f" (mean ± standard deviation of {number(best.n)} seeds)" if best.n > 1 else ""
    if not others:
        spread = range_of(best.numbers, about) if key == "acc" else ""
        whose = "" if alone else f" of {best.name}"
        return [f"{name.capitalize()}{whose}: {_level(best, key)}{seeds}{spread}."]
    by_pair = {frozenset((test["a"], test["b"])): test for test in group["tests"]}
    far = [seen for seen in others if _beyond(best, seen, key, by_pair)]
    near = [seen for seen in others if seen not in far]
    if far:
        text = f"{best.name} ends with the {'highest accuracy' if key == 'acc' else 'lowest test loss'}, "
        text += f"{_level(best, key)}{seeds}"
        gaps = [_ahead(best, seen, key, by_pair) for seen in far[:LISTED]]
        if len(far) > LISTED:
            gaps.append(f"more {_side(key)} {counted(len(far) - LISTED, 'other')}")
        text += f", {join(gaps)}"
    else:
        text = f"{name.capitalize()}: {_levels(ranked, key)}{seeds}"
    said = [text, *_near(best, near, key, by_pair)]
    return ["; ".join(said) + ".", *(_steadier(variants, best) if key == "acc" else [])]


def _near(
    best: _Seen, near: Sequence[_Seen], key: str, by_pair: Mapping[frozenset[str], Mapping[str, Any]]
) -> list[str]:
    """What is known of those that are not separated from the best: within noise, left open, or not tested."""
    tests = [test for seen in near if (test := by_pair.get(frozenset((best.name, seen.name)))) is not None]
    level = float(best.numbers[key]["mean"])
    noise = [test for test in tests if within_noise(key, test, level)]
    left = [test for test in tests if test not in noise]
    said = [noise_words(key, noise, best.name)] if noise else []
    said += [open_words(key, left, best.name)] if left else []
    untested = [seen for seen in near if frozenset((best.name, seen.name)) not in by_pair]
    if untested:
        names = listed([seen.name for seen in untested])
        if all(_gap(best, seen, key) == 0 for seen in untested):
            said.append(f"there is no difference between {best.name} and {names}")
        elif best.n > 1 or any(seen.n > 1 for seen in untested):
            said.append(f"no difference between {best.name} and {names} is larger than the spread of the seeds")
        else:
            said.append(f"the difference between {best.name} and {names} is too small to be seen in these digits")
    return said


def _steadier(variants: Sequence[_Seen], best: _Seen) -> list[str]:
    """Another variant that is first over the last five rounds."""
    key = "acc_last5"
    steady = _ranked(variants, key)
    if not steady or steady[0].name == best.name:
        return []
    first = steady[0]
    found = paired_tests({seen.name: values_of(seen.numbers, key) for seen in (first, best)})
    if not _beyond(first, best, key, {frozenset((test["a"], test["b"])): test for test in found}):
        return []
    return [f"Over the last five rounds, though, {first.name} is {points(_gap(first, best, key))} above {best.name}."]


def _side(key: str) -> str:
    return "below" if lower_is_better(key) else "above"


def _ahead(best: _Seen, other: _Seen, key: str, by_pair: Mapping[frozenset[str], Mapping[str, Any]]) -> str:
    """``"3.7 points above b (p = 0.012)"``."""
    gap = _gap(best, other, key)
    size = points(gap) if key == "acc" else difference(key, gap).lstrip("+")
    test = by_pair.get(frozenset((best.name, other.name)))
    p = "" if test is None else f" ({p_is(test)})"
    return f"{size} {_side(key)} {other.name}{p}"


def _level(seen: _Seen, key: str) -> str:
    return written(key, seen.numbers[key]["mean"], seen.numbers[key]["sd"])


def _levels(variants: Sequence[_Seen], key: str, form: str = "{}") -> str:
    shown = [f"{seen.name} {form.format(_level(seen, key))}" for seen in variants[:LISTED]]
    if len(variants) > LISTED:
        shown.append(counted(len(variants) - LISTED, "other"))
    return join(shown)


def _spread(variants: Sequence[_Seen]) -> list[str]:
    alone = [seen for seen in variants if seen.n == 1]
    if not alone:
        return []
    if len(alone) == len(variants):
        whom = "One seed" if len(variants) == 1 else "One seed per variant"
    else:
        whom = f"One seed only for {listed([seen.name for seen in alone])}"
    return [f"{whom}: how far another seed would differ is not known."]


def _incomplete(comparison: Mapping[str, Any]) -> list[str]:
    unfinished = sum(len(variant["unfinished"]) for variant in comparison["variants"].values())
    missing = len(comparison.get("missing") or ())
    parts = [f"{number(unfinished)} unfinished {'run' if unfinished == 1 else 'runs'}"] if unfinished else []
    parts += [f"{number(missing)} {'run' if missing == 1 else 'runs'} not yet started"] if missing else []
    return [f"Not counted: {join(parts)}."] if parts else []


def _ranked(variants: Sequence[_Seen], key: str) -> list[_Seen]:
    sign = 1.0 if lower_is_better(key) else -1.0
    return sorted((s for s in variants if key in s.numbers), key=lambda s: sign * float(s.numbers[key]["mean"]))


def _gap(a: _Seen, b: _Seen, key: str) -> float:
    """By how much ``a`` is better than ``b``."""
    gap = float(a.numbers[key]["mean"]) - float(b.numbers[key]["mean"])
    return -gap if lower_is_better(key) else gap


def _beyond(a: _Seen, b: _Seen, key: str, by_pair: Mapping[frozenset[str], Mapping[str, Any]]) -> bool:
    """Whether a test separates the two; without one, whether the difference is larger than the seeds' spread."""
    test = by_pair.get(frozenset((a.name, b.name)))
    if test is not None:
        return separated(test)
    spread = math.hypot(a.numbers[key]["sd"] or 0.0, b.numbers[key]["sd"] or 0.0)
    least = 0.0005 if key.startswith("acc") else 0.001 * abs(float(b.numbers[key]["mean"]))
    return not reaches(max(spread, least), _gap(a, b, key))


def _loss(losses: Sequence[float], count: int, name: str) -> str:
    """``"6.1 points with fedsgd (4.0 to 8.1; in three of three seeds)"``."""
    if len(losses) == 1:
        return points(losses[0]) + with_names([name])
    low, high = f"{100 * min(losses):.1f}", f"{100 * max(losses):.1f}"
    span = f"{low} to {high}; " if low != high else ""
    return f"{points(mean(losses))}{with_names([name])} ({span}in {_count(count, len(losses))})"


def _count(some: int, every: int) -> str:
    return f"{number(some)} of {number(every)} seeds"
