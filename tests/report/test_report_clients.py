"""The client table by hand, its CSV file, and the section that shows it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from report_folders import targets_of_clients, without_accuracy, write_lines, write_run, write_sweep

from shoal.report.clients import client_table, write_clients
from shoal.report.load import Run, read
from shoal.report.page import page, write_report


def of(*lines: dict[str, Any], config: dict[str, Any] | None = None, **stream: Any) -> Run:
    return Run(Path(), "a", "0", config=config or {}, lines=({"round": 0, "record": "stream", **stream}, *lines))


def took_part(round: int, *clients: int, trained: list[int] | None = None) -> dict[str, Any]:
    reached = list(clients) if trained is None else trained
    return {"round": round, "record": "round", "participants": list(clients), "trained": {"global": reached}}


def test_counts_by_hand() -> None:
    lines = [
        took_part(0, 0, 1, 2),  # the warm-up does not count
        took_part(1, 0, 1, trained=[0]),
        {"round": 1, "record": "rejected", "client": 1, "reason": "NaN"},
        {"round": 1, "record": "rejected", "client": 1, "reason": "NaN in the second exchange"},
        took_part(2, 1, trained=[]),
        {"round": 2, "record": "failed", "client": 1, "reason": "x"},
        {"round": 2, "record": "skipped", "client": 7, "reason": "holds no training rows"},
        took_part(3, 0, 1, trained=[1]),
        {"round": 3, "record": "straggler", "client": 0, "reason": "late"},
    ]
    rows = client_table(of(*lines, client_names=["ann", "bob"]))
    named = {row["client"]: row for row in rows}
    counts = {c: [row[k] for k in ("name", "rounds", "trained", "rejected", "failed", "stragglers", "skipped")]
              for c, row in named.items()}  # fmt: skip
    assert counts == {
        0: ["ann", 2, 1, 0, 0, 1, 0], 1: ["bob", 3, 1, 1, 1, 0, 0], 7: ["", 1, 0, 0, 0, 0, 1],
    }  # fmt: skip
    assert [row["client"] for row in rows] == [1, 0, 7]  # what was rejected or failed comes first
    assert "accuracy" not in rows[0]


def test_worst_served_first_and_those_without_a_number_last() -> None:
    old = targets_of_clients({0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1}, [1])
    new = targets_of_clients({0: 0.9, 1: None, 2: 0.4, 3: 0.0}, [2], rows={2: 99}, f1=0.25)
    rows = client_table(of(*old, *new, config={"evaluate": {"metrics": ["f1", "my_module:mine"]}}))
    assert [row["client"] for row in rows] == [3, 2, 0, 1]
    assert [row["accuracy"] for row in rows] == [0.0, 0.4, 0.9, None]  # an old number is no substitute for a null
    assert rows[1]["test_rows"] == 99
    assert rows[1]["loss"] == pytest.approx(1.6)
    assert rows[1]["f1"] == 0.25
    assert "mine" not in rows[0]


def test_of_losses_the_highest_is_the_worst() -> None:
    lines = [line for line in targets_of_clients({0: 0.5, 1: 0.1}, [1]) if line["metric"] == "loss"]
    lines += [{**line, "metric": "accuracy", "value": None} for line in lines]
    rows = client_table(of(*lines, learns="values"))
    assert [row["client"] for row in rows] == [1, 0]
    assert "accuracy" not in rows[0]


def test_tasks_and_concepts_are_no_clients() -> None:
    line = {"round": 1, "metric": "accuracy", "value": 0.5, "rows": 3, "entry": "x"}
    assert client_table(of({**line, "task": 1}, {**line, "concept": 2})) == []


@pytest.mark.parametrize(
    "name", ["=1+1", "+1+1", "-1+cmd", "-x", "--1", "-1e", "+", "@SUM(A1)", "\tx", "\rx", "  =1+1", "-1\n"]
)
def test_a_formula_is_text_in_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "clients.csv"
    write_clients(path, [{"client": 0, "name": name, "accuracy": 0.5}])
    with path.open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row == {"client": "0", "name": f"'{name}", "accuracy": "0.5"}


@pytest.mark.parametrize("name", ["-3", "+3", "-3.5", "-.5", "-1e-3", "3", "007", "Oslo"])
def test_a_plain_number_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / "clients.csv"
    write_clients(path, [{"client": 0, "name": name}])
    assert path.read_bytes() == f"client,name\r\n0,{name}\r\n".encode()


def test_the_file_is_rfc_4180(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    write_clients(path, [{"client": 0, "name": 'Å, "b"\nc', "r2": -0.5, "accuracy": None}])
    assert path.read_bytes() == 'client,name,r2,accuracy\r\n0,"Å, ""b""\nc",-0.5,\r\n'.encode()


def served(folder: Path, clients: int = 4, **more: Any) -> Path:
    values = {c: c / 100 for c in range(clients)}
    lines = targets_of_clients({**values, 1: None}, [1, 2])
    over = {"mean": 0.5, "by_rows": 0.25, "sd": 0.1, "worst_decile": 0.01, "worst": 0.0, "best": 0.9, "n": clients - 1,
            "excluded": 1}  # fmt: skip
    write_run(folder, rounds=2, tasks=(), boundaries=(), clients=clients, more=lines,
              summary={"over_targets": {"accuracy": over}}, **more)  # fmt: skip
    return without_accuracy(folder, client_names=[f"site {c}" for c in range(clients)])


def test_the_section_has_the_spread_the_chart_and_the_names(tmp_path: Path) -> None:
    folder = served(tmp_path / "run")
    text = write_report(folder).read_text(encoding="utf-8")
    section = text[text.index('<section id="clients"') :].partition("</section>")[0]
    assert "client 1 (site 1)" in section
    assert "Without accuracy" in section
    for number in ("50.0 %", "25.0 %", "10.0 %", "1.0 %"):
        assert number in section
    chart = json.loads(section.partition('<script type="application/json">')[2].partition("</script>")[0])
    assert chart["data"][0]["y"] == [0.0, 2.0, 3.0]
    assert chart["data"][0]["marker"]["color"] == ["var(--series-2)", "var(--series-1)", "var(--series-1)"]
    with (folder / "clients.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["site 0", "site 2", "site 3", "site 1"]
    assert rows[3]["accuracy"] == ""


@pytest.mark.parametrize(("clients", "folded"), [(20, False), (21, True)])
def test_a_long_table_is_folded(tmp_path: Path, clients: int, folded: bool) -> None:
    text = page(read(served(tmp_path / "run", clients)))
    assert (f"<summary>The {clients} clients one by one</summary>" in text) is folded


def test_several_runs_have_a_column_each(tmp_path: Path) -> None:
    more = targets_of_clients({0: 0.5, 1: 0.25}, [2])
    folder = write_sweep(tmp_path / "x", {"a": {"more": more}, "b": {}}, [0, 1], rounds=2, tasks=(), boundaries=())
    text = page(read(folder))
    section = text[text.index('<section id="clients"') :].partition("</section>")[0]
    assert section.index("client 1") < section.index("client 0")
    assert "from worst to best" in section
    assert not (folder / "clients.csv").exists()


def test_names_that_are_missing_or_too_few(tmp_path: Path) -> None:
    rows = client_table(of(took_part(1, 0, 5), client_names=["only"]))
    assert [row["name"] for row in rows] == ["only", ""]
    folder = write_run(tmp_path / "run", rounds=0, boundaries=())
    write_lines(folder / "metrics.jsonl", [])
    write_report(folder)
    assert not (folder / "clients.csv").exists()
