"""Which runs may be ranked at all: other data, losses, targets or test rows have no number in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_folders import confusion, targets_of_clients, without_accuracy, write_run, write_sweep

from shoal.report.comparison import compare, rows
from shoal.report.lead import lead_key, lead_metric
from shoal.report.load import Run, distinct, read
from shoal.report.page import page


def run(folder: Path, acc: float | None, fingerprint: str = "aaa", **more: Any) -> Path:
    """One run, rounds 2, without tasks; `local` and `learns` are those of its configuration and stream."""
    local, learns = more.pop("local", {"loss": "cross_entropy"}), more.pop("learns", None)
    summary = more.pop("summary", {"acc": acc})
    write_run(folder, rounds=2, tasks=(), boundaries=(), config={"local": local}, summary=summary, **more)
    (folder / "environment.json").write_text(json.dumps({"data_fingerprint": fingerprint}))
    return without_accuracy(folder, learns=learns) if learns else folder


def values(folder: Path, loss: float, name: str, **more: Any) -> Path:
    local = {"loss": name, **({"loss_args": more.pop("args")} if "args" in more else {})}
    lines = [{"round": r, "metric": "loss", "value": loss / r, "rows": 360} for r in (1, 2)]
    return run(folder, None, local=local, learns="values", summary={"acc": None, "loss": loss}, more=lines, **more)


def grouped(*folders: Path) -> list[list[str]]:
    return [group["variants"] for group in compare(*folders)["groups"]]


def test_one_rule_says_what_runs_are_compared_by() -> None:
    assert lead_key(["values", None], {"acc", "loss"}) == "loss"
    assert lead_key(["classes"], {"loss"}) == "acc"
    assert lead_key([None], {"loss"}) == "loss"
    assert lead_key([], {"acc", "loss"}) == "acc"
    assert lead_key([], ()) == "acc"
    line = {"round": 1, "metric": "loss", "value": 1.0}
    for learns, wanted in (("classes", "accuracy"), ("values", "loss"), (None, "loss")):
        header = {"round": 0, "record": "stream", "learns": learns}
        assert lead_metric([Run(Path(), "a", "0", lines=(header, line))]) == wanted


def test_losses_of_other_functions_are_not_ranked_and_those_of_one_are(tmp_path: Path) -> None:
    a, b, c = (values(tmp_path / n, v, f) for n, v, f in (("a", 0.5, "mse"), ("b", 0.2, "huber"), ("c", 0.25, "mse")))
    found = compare(a, b, c)
    assert [group["variants"] for group in found["groups"]] == [["a", "c"], ["b"]]
    assert (found["lead"], found["tests"], found["ranking"]) == (None, [], {})
    assert [row["variant"] for row in found["groups"][0]["ranking"]["rows"]] == ["c", "a"]
    assert found["incomparable"] == ["the loss function"]
    assert found["warnings"][:2] == [
        "These runs have no number in common, as the loss function is not the same for all: nothing is ranked or "
        "tested between them, only within groups of comparable ones.",
        "the loss function: mse (a, c); huber (b)",
    ]
    said = found["findings"]
    assert said[0].endswith("; their final numbers cannot be compared, as the loss function differs.")
    assert "c ends with the lowest test loss, 0.250, 0.250 below a." in said
    assert "Final test loss of b: 0.200." in said
    assert not any("b" in sentence.split() and "below" in sentence for sentence in said)
    text = page(read(a, b, c), found)
    section = text[text.index('<section id="ranking"') :].partition("</section>")[0]
    assert "the loss function: mse (a, c); huber (b)" in section
    assert section.count("<table>") == 1
    assert "By variant: a and c" in text


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"fingerprint": "bbb"}, ["the data"]),
        ({"local": {"loss": "my:focal"}}, []),  # accuracies are the same quantity, whatever was minimised
        ({}, []),
    ],
)
def test_accuracies_need_the_same_data(tmp_path: Path, second: dict[str, Any], reason: list[str]) -> None:
    found = compare(run(tmp_path / "a", 0.5), run(tmp_path / "b", 0.6, **second))
    assert found["incomparable"] == reason
    assert (found["lead"] is None) is bool(reason)
    assert any("above" in sentence for sentence in found["findings"]) is not bool(reason)


def test_the_arguments_of_a_loss_count(tmp_path: Path) -> None:
    a, b = (values(tmp_path / n, 0.5, "huber", args={"delta": d}) for n, d in (("a", 1), ("b", 2)))
    assert grouped(a, b) == [["a"], ["b"]]


def test_classes_and_values_have_nothing_in_common(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a", 0.5, summary={"acc": 0.5, "loss": 0.1}), values(tmp_path / "b", 0.25, "mse")
    found = compare(a, b)
    assert found["incomparable"] == ["what is learned", "the loss function"][:1]
    # The cross entropy of a classification does not stand above the loss of a regression.
    assert [(row["test loss"], row["accuracy %"]) for row in rows(found)] == [("-", "50.0"), ("0.250", "-")]


def test_other_test_rows_are_other_numbers(tmp_path: Path) -> None:
    def clients(name: str, seed: int, count: dict[int, int], **more: Any) -> Path:
        lines = targets_of_clients(dict.fromkeys(count, 0.5), [2], rows=count)
        folder = run(tmp_path / name, 0.5, seed=seed, more=lines, **more)
        return without_accuracy(folder)

    a, same = clients("a", 0, {0: 5, 1: 7}), clients("same", 0, {0: 5, 1: 7})
    dealt = clients("dealt", 0, {0: 6, 1: 6})
    other_seed = clients("seed", 1, {0: 6, 1: 6})
    fewer = clients("fewer", 1, {0: 12})
    whole = run(tmp_path / "whole", 0.5)
    assert grouped(a, same) == [["a", "same"]]
    assert grouped(a, dealt) == [["a"], ["dealt"]]
    assert grouped(a, other_seed) == [["a", "seed"]]  # another seed deals the rows to the clients in another way
    assert grouped(a, fewer) == [["a"], ["fewer"]]
    found = compare(a, whole)
    assert found["incomparable"] == ["the test rows"]
    assert (
        "the test rows: 2 targets (client), 12 rows (a); all test rows together, 360 rows (whole)" in found["warnings"]
    )


def test_other_tasks_of_the_same_size_are_other_test_rows(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", rounds=2, boundaries=(), tasks=("up", "down"))
    b = write_run(tmp_path / "b", rounds=2, boundaries=(), tasks=("up", "left"))
    assert compare(a, b)["incomparable"] == ["the test rows"]


def test_a_run_without_a_number_is_named_and_not_ranked(tmp_path: Path) -> None:
    a, off = run(tmp_path / "a", 0.936), run(tmp_path / "off", None)
    found = compare(a, off)
    assert [row["variant"] for row in found["ranking"]["rows"]] == ["a"]
    assert found["findings"][0].endswith("; a ended with an accuracy of 93.6 %; off has no number.")
    assert "off has no final number, and no rank: none was measured." in found["findings"]
    assert not any("highest" in sentence for sentence in found["findings"])


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (0.936, "both have an equal final accuracy, 93.6 %"),
        (0.93601, "both have a final accuracy of 93.6 %, to the digits shown"),
        (0.937, "two has the highest final accuracy, 93.7 %, and one the lowest, 93.6 %"),
    ],
)
def test_equal_numbers_are_called_equal(tmp_path: Path, second: float, said: str) -> None:
    found = compare(run(tmp_path / "one", 0.936), run(tmp_path / "two", second, drift=2.0))
    assert found["findings"][0].endswith(f"; {said}.")


def test_the_same_run_twice_is_noticed(tmp_path: Path) -> None:
    one = write_sweep(tmp_path / "one", {"a": {}}, [0, 1, 2], rounds=2, boundaries=())
    two = write_sweep(tmp_path / "two", {"b": {}}, [1, 2], rounds=2, boundaries=())
    for seed in ("1", "2"):  # `write_sweep` calls its runs by the folder: a name changes no number
        assert (one / "a" / seed / "metrics.jsonl").read_bytes() == (two / "b" / seed / "metrics.jsonl").read_bytes()
    found = compare(one, two)
    assert found["same"] == [{"a": "one", "b": "two", "seeds": ["1", "2"], "settings": True}]
    assert (
        "one and two have the same numbers to the last bit in seeds 1 and 2: they have the same settings, so that this "
        "is one result and not two." in found["findings"]
    )
    path = two / "b" / "2" / "metrics.jsonl"
    path.write_text(path.read_text().replace('"value": ', '"value":  ', 1))
    assert compare(one, two)["same"][0]["seeds"] == ["1"]


def test_equal_numbers_of_other_settings_are_told_apart(tmp_path: Path) -> None:
    one, two = (run(tmp_path / n, 0.5, local={"lr": lr}) for n, lr in (("a", 1), ("b", 2)))
    (pair,) = compare(one, two)["same"]
    assert pair == {"a": "a", "b": "b", "seeds": ["0"], "settings": False}
    (second := two / "metrics.jsonl").write_text(second.read_text() + '{"round": 2, "metric": "x", "value": 1}\n')
    assert compare(one, two)["same"] == []


def test_names_are_the_shortest_that_say_something(tmp_path: Path) -> None:
    def names(*paths: str) -> list[str]:
        return distinct([tmp_path / path for path in paths])

    assert names("a3", "s/lr=0.2,epochs=1/0") == ["a3", "lr=0.2,epochs=1/0"]
    assert names("x/one", "y/one", "two") == ["x/one", "y/one", "two"]
    assert names("s/a/0", "s/a/1", "t/a/0") == ["s/a/0", "a/1", "t/a/0"]
    assert names("s/seed_3") == ["s/seed_3"]
    assert names("v/0/1", "w/0/1") == ["v/0/1", "w/0/1"]
    run(tmp_path / "s" / "lr=0.2" / "0", 0.5)
    run(tmp_path / "a3", 0.5)
    assert list(compare(tmp_path / "a3", tmp_path / "s" / "lr=0.2" / "0")["variants"]) == ["a3", "lr=0.2/0"]


def test_the_data_are_called_by_their_name(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", 0.5)
    assert " on digits with " in compare(folder)["findings"][0]  # the kind, of runs that were told no name
    (folder / "environment.json").write_text(json.dumps({"data_name": "cameras"}))
    assert " on cameras with " in compare(folder)["findings"][0]


def test_a_head_per_task_is_no_match_for_one_over_all_classes(tmp_path: Path) -> None:
    def run_with(name: str, *classes: list[str]) -> Path:
        more = [confusion(2, one, [[1] * len(one)] * len(one), task=t) for t, one in enumerate(classes)]
        return write_run(tmp_path / name, rounds=2, boundaries=(), tasks=("low", "high"), more=more)

    every = list("abcd")
    own, shared, other = run_with("own", ["a", "b"], ["c", "d"]), run_with("all", every, every), run_with("b", every)
    found = compare(own, shared)
    assert found["incomparable"] == ["the number of classes to choose from"]
    assert found["warnings"][1] == "the number of classes to choose from: 4 (all); 2 (own)"
    assert "as the number of classes to choose from differs." in found["findings"][0]
    assert grouped(shared, other) == [["all", "b"]]
