"""The section on shifts and contacts: sentences, tables and charts from hand-made lines."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_run, write_sweep

from shoal.report.comparison import compare_runs
from shoal.report.load import Run, read
from shoal.report.numbers import describe, written
from shoal.report.page import page
from shoal.report.shifts import recovery_of, sentences, stage_curves


def shift(boundary: int, group: str, drop: float, recovery: str = "recovered", **more: Any) -> dict[str, Any]:
    back = 3 if recovery == "recovered" else None
    return {"round": 8, "record": "shift", "boundary": boundary, "group": group, "clients": 4, "end": 0.8,
            "first": 0.8 + drop, "first_round": 1, "drops": {"after": drop, "before": -0.8}, "lowest": 0.7 + drop,
            "lowest_round": 2, "last": 0.9, "last_round": 4, "within_step": 3, "recovery": recovery,
            "recovery_round": back, **more}  # fmt: skip


def probed(round: int, **values: float | None) -> list[dict[str, Any]]:
    return [{"round": round, "metric": "mean_probe", "label": label, "value": v, "sd": 0.1, "clients": 4}
            for label, v in values.items()]  # fmt: skip


def met(round: int, **values: float) -> list[dict[str, Any]]:
    return [{"round": round, "metric": "contact_purity", "drawn": d, "value": v} for d, v in values.items()]


def matrix(round: int, clusters: list[int | None], values: Any, **more: Any) -> dict[str, Any]:
    clients = list(range(len(clusters)))
    return {"round": round, "record": "similarity", "clients": clients, "clusters": clusters, "values": values, **more}


def summary(drop: float = -0.05, mean: float | None = 3.0, counts: tuple[int, ...] = (1, 0, 0)) -> dict[str, Any]:
    rounds = dict(zip(("recovered", "never", "nothing_lost", "not_known"), counts, strict=False))
    return {
        "drop_after_shift": {"changed": {"after": drop, "before": -0.8}, "stayed": {"after": 0.004}},
        "recovery_rounds": {"changed": {"mean": mean, **rounds, "within_step": 3.0}},
        "step_end_accuracy": 0.85,
        "contact_purity": {"similar": 0.9, "random": 0.5, "chance": 9 / 19},
        "messages_per_round": 6.0,
    }


LINES = [
    *probed(1, before=0.1, mixed=0.2, trained=0.5), *probed(2, before=0.5, mixed=None, trained=0.6),
    *met(1, similar=0.5, random=0.4, chance=0.45), *met(2, similar=1.0, random=0.6, chance=0.45),
    shift(4, "all", -0.02, "nothing lost"), shift(4, "changed", -0.05), shift(4, "stayed", 0.01, "nothing lost"),
    matrix(4, [0, 0, 1], [[None, 0.5, 0.1], [0.4, None, 0.1], [None, None, None]]),
    matrix(5, [1, 0, 0], [[None, 1.0, 0.0], [1.0, None, 0.0], [0.0, 0.0, None]]),
]  # fmt: skip
SETTING: dict[str, Any] = {"rounds": 8, "boundaries": (4,), "tasks": (), "more": LINES, "summary": summary()}


def section(text: str) -> str:
    return text[text.index('<section id="shifts"') :].partition("</section>")[0]


def charts(text: str) -> list[dict[str, Any]]:
    return [
        json.loads(part.partition("</script>")[0])
        for part in section(text).split('<script type="application/json">')[1:]
    ]


def cells(text: str, caption: str) -> list[list[str]]:
    (found,) = [t for t in re.findall(r"<table>.*?</table>", section(text), re.S) if f"<span>{caption}" in t]
    plain = html.unescape(found).replace("\N{MINUS SIGN}", "-")
    rows = [re.findall(r"<t[hd].*?</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", plain, re.S)]
    return [[re.sub("<[^>]+>", "", cell) for cell in row] for row in rows]


def test_one_run_opens_with_drop_recovery_level_and_purity(tmp_path: Path) -> None:
    comparison = compare_runs(read(write_run(tmp_path / "run", **SETTING)))
    assert sentences(comparison) == [
        "In the first round after a shift, clients that change their cluster lose 5.0 points, those that stay gain "
        "0.4 points; 90 % of the loss is regained after 3 rounds; time steps end at 85.0 %; 90.0 % of the contacts "
        "drawn by similarity are of the own cluster, against 47.4 % by chance."
    ]


@pytest.mark.parametrize(
    ("counts", "mean", "said"),
    [
        ((2, 0, 1), 2.5, "90 % of the loss is regained after 2.5 rounds on average over the clients"),
        ((1, 0, 0), 1.0, "90 % of the loss is regained after 1 round"),
        ((7, 2, 0), 3.5, "90 % of the loss is regained after 3.5 rounds on average over the clients, at seven of nine "
                         "boundaries, and never within its step at the others"),
        ((1, 2, 0), 4.0, "90 % of the loss is regained after 4 rounds at one of three boundaries, and never within its "
                         "step at the others"),
        ((0, 1, 1), None, "the loss is never regained within its step, at the one boundary with one"),
        ((0, 0, 3), None, "less than a point is lost at every boundary"),
        ((0, 0, 0), None, ""),
        ((0, 0, 1, 1), None, "whether the loss is regained is not known yet, as the run ends before the step is over"),
        ((0, 0, 0, 2), None, "whether the loss is regained is not known yet, as the run ends before the steps "
                             "are over"),
        ((0, 2, 0, 1), None, "the loss is never regained within its step, at any of two boundaries with one (not known "
                             "yet at one more, where the run ends before the step is over)"),
        ((1, 1, 0, 2), 4.0, "90 % of the loss is regained after 4 rounds at one of two boundaries, and never within "
                            "its step at the other (not known yet at two more, where the run ends before the step is "
                            "over)"),
    ],
)  # fmt: skip
def test_recovery_in_words(tmp_path: Path, counts: tuple[int, ...], mean: float | None, said: str) -> None:
    run = write_run(tmp_path / "run", **{**SETTING, "summary": summary(-0.05, mean, counts)})
    (variant,) = compare_runs(read(run))["variants"].values()
    assert recovery_of(variant["numbers"]) == said


def test_several_variants_have_the_drop_beside_the_level(tmp_path: Path) -> None:
    other = {**summary(0.0, None, (0, 2, 0)), "step_end_accuracy": 0.4, "contact_purity": {"random": 0.5}}
    folder = write_sweep(tmp_path / "x", {"hast": {}, "random": {"summary": other}}, [0, 1], **SETTING)
    text = page(read(folder))
    assert sentences(compare_runs(read(folder))) == [
        "In the first round after a shift, clients that change their cluster lose 5.0 points with hast (time steps end "
        "at 85.0 ± 0.0 %); keep their accuracy with random (time steps end at 40.0 ± 0.0 %)."
    ]
    head, hast, random = cells(text, "Level, drop, recovery and contacts, mean")
    row = dict(zip(head, hast, strict=True))
    assert row["Ends of the steps (%)"] == "85.0 ± 0.0"
    assert row["Drop (points)"] == "-5.0 ± 0.0"
    assert row["Rounds to recover"] == "3 ± 0.0"
    assert row["By chance (%)"] == "47.4 ± 0.0"
    row = dict(zip(head, random, strict=True))
    assert row["Rounds to recover"] == "never at 4 of 4"  # two boundaries in each of two seeds
    assert row["Purity by similarity (%)"] == "-"
    assert "Shift by shift" not in section(text)


@pytest.mark.parametrize(
    ("counts", "mean", "said"),
    [
        ((2, 1, 0, 1), 3.5, "3.5; never at 1 of 3; not known yet at 1"),
        ((0, 0, 2, 1), None, "not known yet at 1"),
        ((0, 0, 2, 0), None, "nothing lost"),
    ],
)
def test_rounds_to_recover_in_the_table(tmp_path: Path, counts: tuple[int, ...], mean: float | None, said: str) -> None:
    text = page(read(write_run(tmp_path / "run", **{**SETTING, "summary": summary(-0.05, mean, counts)})))
    assert dict(cells(text, "Level, drop, recovery and contacts"))["Rounds to recover"] == said


def test_shift_by_shift_never_recovered_is_a_word(tmp_path: Path) -> None:
    lines = [*LINES, shift(6, "changed", -0.3, "never"), shift(7, "changed", -0.3, "not known yet")]
    text = page(read(write_run(tmp_path / "run", **{**SETTING, "more": lines})))
    _, *rows = cells(text, "Shift by shift")
    assert [row[:3] + row[5:6] + row[-1:] for row in rows] == [
        ["after round 4", "all clients", "4", "-2.0", "nothing lost"],
        ["after round 4", "clients that changed", "4", "-5.0", "3"],
        ["after round 4", "clients that stayed", "4", "+1.0", "nothing lost"],
        ["after round 6", "clients that changed", "4", "-30.0", "never"],
        ["after round 7", "clients that changed", "4", "-30.0", "not known yet"],
    ]


def test_charts_of_stages_purity_and_similarities(tmp_path: Path) -> None:
    stages, purity, heat = charts(page(read(write_run(tmp_path / "run", **SETTING))))
    assert {t["name"]: t["y"] for t in stages["data"]} == {
        "before communication": [10, 50], "after mixing": [20], "after training": [50, 60],
    }  # fmt: skip
    assert [shape["x0"] for shape in stages["layout"]["shapes"]] == [4.5]
    assert {t["name"]: t["y"] for t in purity["data"]} == {
        "drawn by similarity": [50, 100], "drawn at random": [40, 60], "by chance": [45, 45],
    }  # fmt: skip
    first, second = heat["data"]
    assert first["x"] == first["y"] == ["0 [0]", "1 [0]", "2 [1]"]
    assert first["z"] == [[None, 0.5, 0.1], [0.4, None, 0.1], [None, None, None]]
    assert [t["meta"]["view"] for t in heat["data"]] == [[0, 0], [0, 1]]
    assert second["zmax"] == 1.0
    # Of 0.1, 0.1, 0.4 and 0.5 the quantile .98 lies at place 2.94.
    assert first["zmax"] == pytest.approx(0.4 + 0.94 * 0.1)


def test_contacts_of_an_oracle_are_not_said_to_be_drawn_by_similarity(tmp_path: Path) -> None:
    lines = [*met(1, truth=1.0, chance=0.45), *met(2, truth=1.0, chance=0.5)]
    own = {**summary(), "contact_purity": {"truth": 1.0, "chance": 0.475}}
    folder = write_run(tmp_path / "run", **{**SETTING, "more": lines, "summary": own})
    (said,) = sentences(compare_runs(read(folder)))
    assert said.endswith(" of the contacts drawn by the truth are of the own cluster, against 47.5 % by chance.")
    assert "; 100.0 % of the contacts" in said
    text = page(read(folder))
    (purity,) = charts(text)
    assert {t["name"]: t["y"] for t in purity["data"]} == {"drawn by the truth": [100, 100], "by chance": [45, 50]}
    assert dict(cells(text, "Level, drop, recovery and contacts"))["By the truth (%)"] == "100.0"
    assert "similarity" not in section(text).replace("Right after a shift similarities are stale", "")
    assert describe("contact_purity.truth").meaning
    both = write_sweep(tmp_path / "x", {"oracle": {}, "hast": {"more": LINES}}, [0], **{**SETTING, "more": lines})
    assert {t["name"] for t in charts(page(read(both)))[-2]["data"]} >= {"hast"}


def test_the_moments_are_named_by_the_shift(tmp_path: Path) -> None:
    lines = [matrix(r, [0, 1], [[None, 1.0], [1.0, None]]) for r in (2, 4, 5, 8)]
    text = section(page(read(write_run(tmp_path / "run", **{**SETTING, "rounds": 12, "more": lines}))))
    assert re.findall(r"<option[^>]*>(.*?)</option>", text) == [
        "the run", "round 2", "round 4, the last before a shift", "round 5, the first after a shift",
        "round 8, the fourth after a shift",
    ]  # fmt: skip


def test_broken_records_are_passed_over(tmp_path: Path) -> None:
    broken = [
        matrix(3, [0, 1], [[1.0]]), matrix(3, [0], "x"), {**matrix(3, [0], [[None]]), "round": None},
        {**shift(4, "changed", -0.1), "drops": None}, {**shift(4, "changed", -0.1), "lowest": None},
        {"round": 1, "metric": "mean_probe", "value": 0.5},
        {"round": 1, "metric": "contact_purity", "drawn": "similar", "value": None},
    ]  # fmt: skip
    text = page(read(write_run(tmp_path / "run", **{**SETTING, "more": broken, "summary": {}})))
    assert 'id="shifts"' not in text


def test_blocks_of_clients_are_named_by_their_size(tmp_path: Path) -> None:
    lines = [matrix(8, [0, 1], [[None, 1.0], [1.0, 2.0]], clients=None, sizes=[3, 2])]
    text = page(read(write_run(tmp_path / "run", **{**SETTING, "more": lines})))
    (heat,) = charts(text)
    assert heat["data"][0]["x"] == ["block 0, 3 clients [0]", "block 1, 2 clients [1]"]
    assert "stands for several" in section(text)


def test_without_training_probes_the_accuracy_after_the_round_is_the_last_stage() -> None:
    lines = (*probed(1, before=0.1), {"round": 1, "metric": "mean_accuracy", "value": 0.7, "weighting": "targets"})
    assert stage_curves(Run(Path(), "a", "0", lines=lines)) == {"before": {1: 0.1}, "after the round": {1: 0.7}}
    assert stage_curves(Run(Path(), "a", "0", lines=lines[1:])) == {}


def test_an_unfinished_run_says_that_no_step_is_over(tmp_path: Path) -> None:
    text = page(read(write_run(tmp_path / "run", **{**SETTING, "done": 3, "more": met(1, similar=0.5)})))
    assert "No step after a shift is over yet." in section(text)


def test_other_runs_have_no_such_section(tmp_path: Path) -> None:
    assert 'id="shifts"' not in page(read(write_run(tmp_path / "run", rounds=2, boundaries=())))


def test_the_page_opens_with_the_deepest_drop(tmp_path: Path) -> None:
    folder = write_sweep(
        tmp_path / "x", {"a": {"summary": summary(-0.2)}, "b": {"summary": summary(0.1)}}, [0, 1, 2], **SETTING
    )
    said = "in the first round after a shift, clients that change their cluster lose 20.0 points on average with a"
    assert said in compare_runs(read(folder))["findings"][1].lower()


def test_numbers_have_names_and_units() -> None:
    assert describe("drop_after_shift.stayed.mixed").label == "Drop after a shift, after mixing (clients that stayed)"
    assert written("drop_after_shift.changed.after", -0.062) == "-6.2 points"
    assert written("drop_after_shift.all.my_probe", 0.01) == "+1.0 points"
    assert written("contact_purity.chance", 9 / 19) == "47.4 %"
    assert written("recovery_rounds.changed.never", 2.0) == "2"
    assert describe("recovery_rounds.changed.within_step").meaning
