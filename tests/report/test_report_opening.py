"""The two sentences that a report opens with: which of many things are said, and that there are two."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_run, write_sweep

from shoal.report.comparison import compare, findings, run_findings
from shoal.report.load import read
from shoal.report.page import page

DONE = {"seed": 0, "rounds": 30, "method": "fedavg", "acc": 0.9, "updates": 60,
        "problems": {"failed": 0, "rejected": 0, "stragglers": 0, "skipped": 0}}  # fmt: skip


def second(**more: Any) -> str:
    return run_findings({**DONE, **more})[1]


def test_what_was_run_and_how_it_came_out() -> None:
    about = {"data": "digits", "clients": 5, "tasks": 2, "order": "synchronous", "names": {"task": ["up", "down"]}}
    targets = {"task=0": 0.95, "task=1": 0.85}
    assert run_findings({**DONE, "accuracy_by_target": targets}, about)[0] == (
        "This run of fedavg for 30 rounds on digits with five clients and two tasks (synchronous), seed 0, ended with "
        "an accuracy of 90.0 %, from 85.0 % (down) to 95.0 % (up)."
    )


def test_real_values_are_led_by_the_loss() -> None:
    summary = {"seed": 0, "rounds": 3, "acc": None, "loss": 0.25, "method": "fedavg",
               "over_targets": {"rmse": {"mean": 3.5}, "r2": {"mean": 0.8125}}}  # fmt: skip
    found = run_findings(summary)
    assert found[0].endswith("ended with a test loss of 0.250 (RMSE 3.50, R² 0.812).")
    assert not any("accuracy" in sentence for sentence in found)


def test_the_most_important_comes_first_and_two_things_are_enough() -> None:
    lost = {"failed": 3, "rejected": 1, "stragglers": 0, "skipped": 0}
    drop = {"seen_per_event": -0.06, "worst@1": -0.06}
    uneven = {"accuracy": {"mean": 0.9, "worst_decile": 0.4, "n": 40, "excluded": 2}}
    assert second(problems=lost, first_problem="client 1, failed in round 2: ValueError: no.\nSee above.", bwt_f=drop,
                  over_targets=uneven) == (
        "Four updates failed or were rejected (the first: client 1, failed in round 2: ValueError: no. See above); in "
        "the first round after a phase boundary, tasks that were trained before lose 6.0 points on average."
    )  # fmt: skip
    assert second(over_targets=uneven).startswith(
        "The worst tenth of the targets has an accuracy of 40.0 %, against a mean of 90.0 %; two targets without a "
        "number are not counted"
    )
    uneven["accuracy"]["excluded"] = 1
    assert "; one target without a number is not counted" in second(over_targets=uneven)
    assert second() == "With one seed it is not known how far another seed would differ."


@pytest.mark.parametrize(("decile", "said"), [(0.801, False), (0.8, True)])
def test_ten_points_below_the_mean_are_uneven(decile: float, said: bool) -> None:
    over = {"accuracy": {"mean": 0.9, "worst_decile": decile, "n": 40, "excluded": 0}}
    assert ("worst tenth" in second(over_targets=over)) is said


def test_nothing_trained_is_all_that_matters_and_said_once() -> None:
    lost = {"failed": 60, "rejected": 0, "stragglers": 0, "skipped": 0}
    found = run_findings({**DONE, "updates": 0, "problems": lost, "first_problem": "client 0, failed in round 1: x"})
    assert found[1] == (
        "Nothing was trained: no update was accepted in any round; the first reason: client 0, failed in round 1: x."
    )
    assert sum(sentence.startswith("Nothing was trained") for sentence in found) == 1


def test_no_rounds_are_no_fault() -> None:
    found = run_findings({**DONE, "rounds": 0, "updates": 0, "acc": None})
    assert found[0] == "This run of fedavg for no rounds, seed 0, ended with no accuracy measured."
    assert not any("Nothing was trained" in sentence for sentence in found)


def test_several_variants_of_which_one_trained_nothing() -> None:
    def of(updates: float) -> dict[str, Any]:
        one = {"mean": updates, "sd": None, "n": 1, "values": {"0": updates}}
        return {"seeds": ["0"], "unfinished": [], "numbers": {"updates": one}, "first_problem": "why."}

    found = findings({"variants": {"a": of(0), "b": of(5), "c": of(0)}, "missing": []})
    assert found[0] == "Three variants (a, b and c) were run with one seed each; no accuracy was measured."
    assert found[1] == "Nothing was trained with a: no update was accepted in any round; the first reason: why."
    assert found[2] == "Nothing was trained with c: no update was accepted in any round; the first reason: why."


def opening(text: str) -> str:
    found = re.search(r'<p class="lead">(.*?)</p>', text, re.S)
    assert found is not None
    return found.group(1).replace("\N{NO-BREAK SPACE}", " ")


def test_the_page_opens_with_two_sentences(tmp_path: Path) -> None:
    text = page(read(write_run(tmp_path / "run", rounds=6, boundaries=(3,))))
    lead = opening(text)
    assert len(re.findall(r"\.(?= [A-Z]|$)", lead)) == 2
    assert lead.startswith(
        "This run of fedavg for six rounds on digits with five clients and five tasks (asynchronous)"
    )
    assert text.index('class="lead"') < text.index("<section")


def test_runs_none_of_which_has_finished(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "x", {"a": {}, "b": {}}, [0, 1], rounds=8, done=4, boundaries=())
    lead = opening(page(read(folder)))
    assert lead.startswith("Two variants (a and b) were run for eight rounds")
    assert "no run has finished yet" in lead
    assert lead.endswith("Four runs are not finished and not counted.")


def test_losses_are_compared_where_values_are_learned(tmp_path: Path) -> None:
    def settings(loss: float) -> dict[str, Any]:
        header = {"round": 0, "record": "stream", "learns": "values"}
        return {"summary": {"acc": None, "loss": loss}, "tasks": (), "more": [header]}

    folder = write_sweep(tmp_path / "x", {"a": settings(0.5), "b": settings(0.25)}, [0, 1], rounds=2, boundaries=())
    for path in folder.glob("*/*/metrics.jsonl"):  # the stream's record is the first
        path.write_text(path.read_text().replace('"record": "stream", ', '"record": "stream", "learns": "values", ', 1))
    found = compare(folder)
    assert found["lead"] == "loss"
    assert [row["variant"] for row in found["ranking"]["rows"]] == ["b", "a"]
    assert "b has the lowest final test loss, 0.250 ± 0, and a the highest, 0.500 ± 0" in found["findings"][0]
    text = page(read(folder))
    assert "highest accuracy" not in text
    assert "Test loss" in text
