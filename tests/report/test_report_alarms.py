"""Alarms in the section on shifts, from hand-made lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from report_folders import write_run, write_sweep

from shoal.report.alarms import sentences
from shoal.report.comparison import compare_runs
from shoal.report.load import read
from shoal.report.page import page


def line(round: int, value: int, changed: int = 0) -> dict[str, Any]:
    return {"round": round, "metric": "alarms", "value": value, "clients": 4, "changed": changed, "detected": value,
            "missed": 0, "false": 0, "new_rows": 0, "delays": [0] * value}  # fmt: skip


def summary(**numbers: Any) -> dict[str, Any]:
    found = {"all": 3, "changes": 4, "detected": 2, "missed": 1, "false": 1, "new_rows": 0, "mean_delay": 1.5,
             "false_rate": 0.0125, **numbers}  # fmt: skip
    return {"alarms": {name: value for name, value in found.items() if value != "none"}}


SETTING: dict[str, Any] = {
    "rounds": 8, "boundaries": (4,), "tasks": (), "summary": summary(),
    "more": [line(round, 2 if round == 5 else 0, 4 if round == 5 else 0) for round in range(1, 9)],
}  # fmt: skip


def told(folder: Path) -> list[str]:
    return sentences(compare_runs(read(folder)))


def test_a_single_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", **SETTING)
    assert told(folder) == [
        "Clients notice 2 of 4 changes of their cluster, 1.5 rounds late on average, with one false alarm (1.2 % of "
        "the clients' other rounds)."
    ]
    text = page(read(folder))
    section = text[text.index('<section id="shifts"') :].partition("</section>")[0]
    assert "Clients notice 2 of 4 changes" in section.replace("\u00a0", " ")
    charts = [json.loads(p.partition("</script>")[0]) for p in section.split('<script type="application/json">')[1:]]
    by_name = {trace.get("name"): trace for trace in charts[-1]["data"] if len(trace["x"]) == 8}
    assert list(by_name["clients that alarm"]["y"]) == [0, 0, 0, 0, 2, 0, 0, 0]
    assert list(by_name["clients that change"]["y"]) == [0, 0, 0, 0, 4, 0, 0, 0]
    assert "Changes noticed" in section
    definitions = text[text.index('<section id="definitions"') :]
    assert "False alarms per round of a client" in definitions


def test_the_other_sentences(tmp_path: Path) -> None:
    calm = ", without a false alarm."
    still = "No client changes its cluster, and there is no false alarm."
    none: dict[str, Any] = {"mean_delay": None, "false": 0}
    for place, (numbers, expected) in enumerate(
        [
            (
                {"mean_delay": 0.0, "false": 0},
                f"Clients notice 2 of 4 changes of their cluster, in the same round{calm}",
            ),
            ({"changes": 0, "detected": 0, **none}, still),
            ({"detected": 0, **none}, f"Clients notice 0 of 4 changes of their cluster{calm}"),
            (
                {"open": 1, "mean_delay": 0.0, "false": 0},
                "Clients notice 2 of 3 changes of their cluster, in the same round (not known yet of one more, whose "
                f"five rounds are not over){calm}",
            ),
            (
                {"detected": 0, "missed": 0, "open": 4, **none},
                "It is not known yet whether clients notice any of 4 changes of their cluster, whose five rounds are "
                "not over, and there is no false alarm.",
            ),
            (
                {"changes": 1, "detected": 0, "missed": 0, "open": 1, "mean_delay": None},
                "It is not known yet whether clients notice the one change of a cluster, whose five rounds are not "
                "over, with one false alarm (1.2 % of the clients' other rounds).",
            ),
        ]
    ):
        folder = write_run(tmp_path / str(place), **{**SETTING, "summary": summary(**numbers)})
        assert told(folder) == [expected]


def test_nobody_watches_or_nobody_knows(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "plain", **{**SETTING, "summary": {}, "more": []})
    assert told(plain) == []
    assert "Alarms" not in page(read(plain))
    unknown = dict.fromkeys(("changes", "detected", "missed", "false", "new_rows", "mean_delay", "false_rate"), "none")
    assert told(write_run(tmp_path / "unknown", **{**SETTING, "summary": summary(**unknown)})) == []


def test_several_variants(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", {"a": {}, "b": {}}, [0], **SETTING)
    (said,) = told(folder)
    assert said.startswith("With a clients notice 2 of 4 changes")
    assert "; with b clients notice 2 of 4" in said
