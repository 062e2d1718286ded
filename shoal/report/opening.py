"""The first two sentences: what was run and how it came out, and what to know about it. Rules over numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .concepts_words import lost_words
from .groups import grouped
from .numbers import describe, metric, written
from .unlike import MORE, PLURAL
from .verdicts import against, noise_words, open_words, p_is, within_noise
from .words import (
    DROP,
    NOTHING,
    counted,
    join,
    listed,
    lost,
    mean,
    names_of,
    number,
    points,
    quoted,
    reaches,
    untrained,
    values_of,
    with_names,
)  # fmt: skip

UNEVEN = 0.1
"""The worst tenth of the targets is worth a mention from ten points below the mean on."""
CLAUSES = 2
"""How many things the second sentence says."""


def opening(comparison: Mapping[str, Any]) -> list[str]:
    """Two sentences, in the order of reading; of a comparison without a variant none.

    The first names what was run (method, data, clients, rounds, seeds, as far as they are known) and the final
    number: the accuracy, or the loss where real values are learned. The second says the most important of these, at
    most two: nothing was trained; clients failed or were rejected; concepts have no model of their own; runs are
    unfinished; accuracy drops at phase boundaries or shifts; the differences between variants are within noise, or
    left open, or how far the best is ahead; the worst tenth of the targets is far below the mean; there is one seed
    only.
    """
    variants = comparison["variants"]
    if not variants:
        return []
    comparison = {**comparison, "groups": grouped(comparison)}
    first = _one(comparison) if len(variants) == 1 else _several(comparison)
    return [first, _to_know(comparison)]


# ---- what was run, and how it came out --------------------------------------------------------------------------


def _one(comparison: Mapping[str, Any]) -> str:
    ((name, variant),) = comparison["variants"].items()
    about = comparison.get("about", {})
    method = about.get("method") or variant.get("method")
    subject = f"This run of {method or name}" if method or name else "This run"
    if comparison.get("state"):
        about = {name: value for name, value in about.items() if name != "rounds"}
        return f"{subject}{_setting(about)} is unfinished: {comparison['state']}."
    n = len(variant["seeds"])
    if n > 1:
        subject = f"{number(n).capitalize()} runs of {method or name}"
    seed = f", seed {variant['seeds'][0]}," if n == 1 else ""
    return f"{subject}{_setting(about)}{seed} ended with {_outcome(comparison, variant)}."


def _outcome(comparison: Mapping[str, Any], variant: Mapping[str, Any]) -> str:
    key, numbers = comparison["groups"][0]["lead"], variant["numbers"]
    if key not in numbers:
        return f"no {_name_of(key)} measured"
    n = numbers[key]["n"]
    over = f" (mean ± standard deviation over {counted(n, 'seed')})" if n > 1 else ""
    said = f"{'an accuracy' if key == 'acc' else 'a test loss'} of {_level(key, numbers)}{over}"
    more = _further(numbers) if key == "loss" else ""
    return said + more + (range_of(numbers, comparison.get("about", {})) if key == "acc" else "")


def _several(comparison: Mapping[str, Any]) -> str:
    variants, groups = comparison["variants"], comparison["groups"]
    seeds = {len(v["seeds"]) for v in variants.values()}
    each = f" with {counted(seeds.pop(), 'seed')} each" if len(seeds) == 1 and max(seeds, default=0) else ""
    names = listed(list(variants))
    said = _capital(
        f"{counted(len(variants), 'variant')} ({names}) were run{each}{_setting(comparison.get('about', {}))}"
    )
    if len(groups) > 1:
        why = join(list(comparison.get("incomparable") or ["what was measured"]))
        verb = "differs" if len(comparison.get("incomparable") or "1") == 1 and why not in PLURAL else "differ"
        return f"{said}; their final numbers cannot be compared, as {why} {verb}."
    key, rows = groups[0]["lead"], groups[0]["ranking"]["rows"]
    if not rows:
        none = all(not v["seeds"] for v in variants.values())
        what = "accuracy" if key == "acc" else "test loss"
        return f"{said}; {'no run has finished yet' if none else f'no {what} was measured'}."
    without = _without(comparison)
    has = "has" if len(without) == 1 else "have"
    return f"{said}; {_ends(rows, key)}{f'; {listed(without)} {has} no number' if without else ''}."


def _ends(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    """The best and the worst, or that they are equal."""
    best, last = rows[0], rows[-1]
    final = f"final {_name_of(key)}"
    if last is best:
        article = "an accuracy" if key == "acc" else "a test loss"
        return f"{best['variant']} ended with {article} of {written(key, best['mean'], best['sd'])}"
    each = "both" if len(rows) == 2 else "all"
    if _equal(rows):
        return f"{each} have an equal {final}, {written(key, best['mean'])}"
    if written(key, best["mean"]) == written(key, last["mean"]):
        return f"{each} have a {final} of {written(key, best['mean'])}, to the digits shown"
    high, low = ("highest", "lowest") if key == "acc" else ("lowest", "highest")
    return (
        f"{best['variant']} has the {high} {final}, {written(key, best['mean'], best['sd'])}, "
        f"and {last['variant']} the {low}, {written(key, last['mean'], last['sd'])}"
    )


def _equal(rows: Sequence[Mapping[str, Any]]) -> bool:
    return math.isclose(rows[0]["mean"], rows[-1]["mean"], rel_tol=1e-12)


def _without(comparison: Mapping[str, Any]) -> list[str]:
    """Finished variants that have no number to be compared by."""
    leads = {name: group["lead"] for group in comparison["groups"] for name in group["variants"]}
    return [
        str(name) for name, v in comparison["variants"].items()
        if v["seeds"] and leads.get(str(name), "acc") not in v["numbers"]
    ]  # fmt: skip


def unmeasured(comparison: Mapping[str, Any]) -> list[str]:
    """A sentence that names the finished variants without a number, where others have one."""
    without = _without(comparison)
    if not without or len(without) == len([v for v in comparison["variants"].values() if v["seeds"]]):
        return []
    has = "has" if len(without) == 1 else "have"
    return [f"{listed(without)} {has} no final number, and no rank: none was measured."]


def _setting(about: Mapping[str, Any]) -> str:
    """``" for 30 rounds on digits, with 5 clients on 5 tasks (asynchronous)"``, as far as it is known."""
    said = f" for {counted(int(about['rounds']), 'round')}" if "rounds" in about else ""
    said += f" on {about['data']}" if about.get("data") else ""
    if about.get("clients"):
        said += f" with {counted(int(about['clients']), 'client')}"
    if about.get("tasks"):
        order = f" ({about['order']})" if about.get("order") else ""
        said += f" and {counted(int(about['tasks']), 'task')}{order}"
    return said


def _name_of(key: str) -> str:
    return {"acc": "accuracy", "loss": "test loss"}.get(key, describe(key).label.lower())


def _level(key: str, numbers: Mapping[str, Any]) -> str:
    return written(key, numbers[key]["mean"], numbers[key]["sd"])


def _further(numbers: Mapping[str, Any]) -> str:
    """``" (RMSE 3.21, R² 0.812)"``: the means over the targets of the metrics beside the loss."""
    parts = []
    for name in ("rmse", "mae", "r2"):
        key = f"over_targets.{name}.mean"
        if key in numbers:
            parts.append(f"{metric(name).label} {_level(key, numbers)}")
    return f" ({', '.join(parts)})" if parts else ""


def range_of(numbers: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """``", from 84.8 % (task=4) to 93.6 % (task=0)"``, where there are several targets."""
    stem = "accuracy_by_target."
    means = {key.removeprefix(stem): float(n["mean"]) for key, n in numbers.items() if key.startswith(stem)}
    if len(means) < 2:
        return ""
    low, high = min(means, key=lambda t: means[t]), max(means, key=lambda t: means[t])
    worst, best = (f"{written('acc', means[t])} ({_called(t, about)})" for t in (low, high))
    return f", from {worst} to {best}"


def _called(target: str, about: Mapping[str, Any]) -> str:
    """A target by its name in the data, where that is known: ``task=3`` may be ``rotate90``."""
    label, _, value = target.partition("=")
    names = about.get("names", {}).get(label, ())
    return str(names[int(value)]) if value.isdecimal() and int(value) < len(names) else target


# ---- what to know about it --------------------------------------------------------------------------------------


def _to_know(comparison: Mapping[str, Any]) -> str:
    nothing = untrained(comparison["variants"])
    if nothing:
        return nothing[0]
    rules = (_trouble, lost_words, _unfinished, _unlike, _drops, _shifts, _noise, _uneven, _alone)
    said = [found for rule in rules if (found := rule(comparison))]
    return _capital("; ".join(said[:CLAUSES])) + "." if said else _calm(comparison)


def _trouble(comparison: Mapping[str, Any]) -> str:
    """Updates that failed or were rejected, over all variants."""
    variants = comparison["variants"]
    each = {name: lost(variant) for name, variant in variants.items()}
    some = [name for name, count in each.items() if count]
    if not some:
        return ""
    total = int(sum(each.values()))
    verb = "was" if total == 1 else "were"
    which = with_names(some) if len(variants) > 1 else ""
    reason = next((variants[name].get("first_problem") for name in some if variants[name].get("first_problem")), None)
    first = f" (the first: {quoted(reason)})" if reason else ""
    return f"{counted(total, 'update')}{which} failed or {verb} rejected{first}"


def _unfinished(comparison: Mapping[str, Any]) -> str:
    count = sum(len(v["unfinished"]) for v in comparison["variants"].values()) + len(comparison.get("missing") or ())
    return f"{counted(count, 'run')} {'is' if count == 1 else 'are'} not finished and not counted" if count else ""


def _drops(comparison: Mapping[str, Any]) -> str:
    """The mean drop at the boundaries, where it is a point or more in most seeds; of several the deepest."""
    subject = "in the first round after a phase boundary, tasks that were trained before lose"
    return _deepest(comparison, "bwt_f.seen_per_event", subject)


def _shifts(comparison: Mapping[str, Any]) -> str:
    """The same for the clients that change their cluster at a shift."""
    subject = "in the first round after a shift, clients that change their cluster lose"
    return _deepest(comparison, "drop_after_shift.changed.after", subject)


def _deepest(comparison: Mapping[str, Any], key: str, subject: str) -> str:
    drops = {}
    for name, variant in comparison["variants"].items():
        found = [-v for v in values_of(variant["numbers"], key).values()]
        if found and 2 * sum(reaches(v, DROP) for v in found) > len(found):
            drops[name] = mean(found)
    if not drops:
        return ""
    worst = max(drops, key=lambda name: drops[name])
    others = len(drops) - 1
    also = f" (and less with {counted(others, 'other')})" if others else ""
    where = with_names([worst]) if len(comparison["variants"]) > 1 else ""
    return f"{subject} {points(drops[worst])} on average{where}{also}"


def _noise(comparison: Mapping[str, Any]) -> str:
    """Whether the first is ahead of the others beyond noise; of several groups the first that has two variants."""
    group = next((g for g in comparison["groups"] if len(g["ranking"].get("rows", ())) > 1), None)
    if group is None:
        return ""
    whose = f"among {listed(group['variants'])}, " if len(comparison["groups"]) > 1 else ""
    said = _noise_in(group)
    return whose + said if said else ""


def _noise_in(group: Mapping[str, Any]) -> str:
    key, ranked, tests = group["lead"], group["ranking"], group["tests"]
    rows = ranked["rows"]
    if not ranked["separable"] and _equal(rows):
        return ""
    if not ranked["separable"]:
        if all(row["n"] <= 1 for row in rows):
            return "with one seed per variant the differences may be noise: no test can separate them"
        return "the differences may be noise: without two common seeds no test can separate the variants"
    first = rows[0]["variant"]
    own = [against(test, first) for test in tests if first in (test["a"], test["b"])]
    if not own:
        return f"no test can tell whether {first} is ahead by more than noise, as it has no two seeds with another one"
    test = "paired t-test, corrected" if len(tests) > 1 else "paired t-test"
    # Those that share the first rank; a later one may be separated although one before it is not.
    group_of = {row["variant"] for row in rows if row["best"] == first}
    near = [one for one in own if one["b"] in group_of]
    if not near:
        second = next(one for row in rows for one in own if one["b"] == row["variant"])
        return f"the lead of {first} over {second['b']} is more than noise ({p_is(second)}; {test})"
    left = [one for one in near if not within_noise(key, one, rows[0]["mean"])]
    said = open_words(key, left, first) if left else noise_words(key, near, first)
    return f"{said} ({test})"


def _unlike(comparison: Mapping[str, Any]) -> str:
    """Runs that should hardly be ranked at all."""
    warned = any(str(line).startswith(MORE) for line in comparison.get("warnings") or ())
    return "the runs differ in more than a method, so that ranking them says little" if warned else ""


def _uneven(comparison: Mapping[str, Any]) -> str:
    """The worst tenth of the targets, where it is far below the mean; of the best variant."""
    variants = comparison["variants"]
    groups = comparison["groups"]
    rows = groups[0]["ranking"].get("rows", ()) if len(groups) == 1 else ()
    if not rows and len(variants) > 1:
        return ""
    name = rows[0]["variant"] if rows else next(iter(variants))
    numbers = variants[name]["numbers"]
    known = numbers.get("over_targets.accuracy.mean"), numbers.get("over_targets.accuracy.worst_decile")
    count = numbers.get("over_targets.accuracy.n", {}).get("mean", 0)
    if known[0] is None or known[1] is None or count < 2:
        return ""
    average, worst = float(known[0]["mean"]), float(known[1]["mean"])
    if not reaches(average - worst, UNEVEN):
        return ""
    where = with_names([name]) if len(variants) > 1 else ""
    excluded = numbers.get("over_targets.accuracy.excluded", {}).get("mean", 0)
    count_out = max(1, round(excluded))
    one = f"{counted(count_out, names_of(numbers).removesuffix('s'))} without a number"
    left_out = f"; {one} {'is' if count_out == 1 else 'are'} not counted" if excluded else ""
    whom = f"the worst {'tenth of the' if count > 10 else 'of the ' + number(int(count))} {names_of(numbers)}{where}"
    return f"{whom} has an accuracy of {written('acc', worst)}, against a mean of {written('acc', average)}{left_out}"


def _alone(comparison: Mapping[str, Any]) -> str:
    seeds = [len(variant["seeds"]) for variant in comparison["variants"].values()]
    alone = max(seeds, default=0) == 1
    return "with one seed it is not known how far another seed would differ" if alone else ""


def _calm(comparison: Mapping[str, Any]) -> str:
    """What can be said where no rule has found anything."""
    numbers = [variant["numbers"] for variant in comparison["variants"].values()]
    drops = [-v for one in numbers for v in values_of(one, "bwt_f.seen_per_event").values()]
    said = ["no client failed or was rejected"] if all("problems.failed" in one for one in numbers) else []
    if drops and not any(reaches(loss, DROP) for loss in drops):
        said.append("there is no drop of a point or more at the phase boundaries")
    return _capital(" and ".join(said)) + "." if said else "Nothing stands out in the numbers of the summary."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text and not text.startswith(NOTHING) else text
