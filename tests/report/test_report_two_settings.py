"""Size and communication, heat maps over two settings, and orders side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_lines, write_run, write_sweep

from shoal.report import heat, orders, sizes
from shoal.report.comparison import compare_runs
from shoal.report.heat import Axes, axes_of
from shoal.report.load import Runs, read


def cells_of(body: str) -> list[list[str]]:
    """The rows of the only table, tags taken away."""
    rows = re.findall(r"<tr>(.*?)</tr>", body)
    return [[re.sub("<.*?>", "", c) for c in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)] for row in rows]


def charts_of(body: str) -> list[dict[str, Any]]:
    return [json.loads(chart) for chart in re.findall(r'<script type="application/json">(.*?)</script>', body, re.S)]


# ---- sizes ----------------------------------------------------------------------------------------------------------

PUBLISHED = {
    # Table 4: a backbone of 43 MB, ten tasks of 4.7 MB each: 90 MB. FedWeIT: 75 MB, 18.5 MB up and 53.5 MB down.
    "ours": {"acc": 0.8004, "bwt_f": {"seen": -0.0084}, "constant_bytes": 43_000_000, "bank_bytes": 47_000_000,
             "bank_entries": 10, "bytes_up_per_round": 4_700_000, "bytes_down_per_round": 4_700_000},
    "fedweit": {"acc": 0.5516, "constant_bytes": 0, "bank_bytes": 75_000_000, "bank_entries": 1,
                "bytes_up_per_round": 18_500_000, "bytes_down_per_round": 53_500_000},
}  # fmt: skip
TASKS = tuple(f"task {i}" for i in range(10))


def section_of(part: Any, runs: Runs) -> str:
    body = part.section(runs, compare_runs(runs)).body
    assert isinstance(body, str)
    return body


def test_table_4(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", {n: {"summary": s} for n, s in PUBLISHED.items()}, [0], rounds=2,
                         tasks=TASKS, boundaries=(1,))  # fmt: skip
    head, ours, other = cells_of(section_of(sizes, read(folder)))
    assert head == ["Variant", "Accuracy %", "BWT_f seen", "Constants", "Entries", "Tasks", "Per task", "In all", "Up",
                    "Down"]  # fmt: skip
    assert ours == ["ours", "80.0", "\N{MINUS SIGN}0.8", "43.00 MB", "10", "10", "4.70 MB", "90.00 MB", "4.70 MB",
                    "4.70 MB"]  # fmt: skip
    assert other == ["fedweit", "55.2", "-", "0 B", "1", "10", "7.50 MB", "75.00 MB", "18.50 MB",
                     "53.50 MB"]  # fmt: skip


def test_teachers_count_and_runs_without_sizes_have_no_row(tmp_path: Path) -> None:
    known = {"bank_bytes": 2000, "bank_entries": 2, "client_bytes": 1500, "constant_bytes": 300, "teacher_bytes": 40}
    folder = write_sweep(tmp_path / "s", {"old": {}, "new": {"summary": known}}, [0, 1], rounds=2, tasks=(),
                         boundaries=())  # fmt: skip
    head, row = cells_of(section_of(sizes, read(folder)))
    assert head[2:] == ["Constants", "Teachers", "Entries", "An entry", "In all", "At a client", "Up", "Down"]
    assert [row[0], *row[2:8]] == ["new", "300 B", "40 B", "2", "1.00 kB", "2.34 kB", "1.50 kB"]
    assert section_of(sizes, read(write_run(tmp_path / "run", rounds=2, boundaries=()))) == ""


# ---- two settings ---------------------------------------------------------------------------------------------------


def grid(**values: list[Any]) -> dict[str, dict[str, str]]:
    """Variants with all combinations of these settings."""
    found: list[dict[str, str]] = [{"same": "1"}]
    for key, options in values.items():
        found = [{**one, key: str(option)} for one in found for option in options]
    return {",".join(one.values()): one for one in found}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (grid(a=[0.1, 1, 10], b=[1, 2]), Axes("a", "b", ())),
        (grid(a=[0.1, 1], b=[1, 2, 3]), Axes("b", "a", ())),
        (grid(a=[0.1, 1, 10]), None),
        (grid(a=[1], b=[1, 2]), None),
        (grid(kind=["x", "y", "z"], a=[1, 2], b=[1, 2]), Axes("a", "b", ("kind",))),  # numbers before words
        (grid(kind=["x", "y", "z"], a=[1, 2]), Axes("kind", "a", ())),
        ({**grid(a=[1, 2, 3], b=[1, 2]), "far": {"a": "9", "b": "9"}}, Axes("a", "b", ())),  # 7 of 12 cells
        ({"1": {"a": "1", "b": "1"}, "2": {"a": "2", "b": "2"}, "3": {"a": "3", "b": "1"}}, None),
    ],
)
def test_which_settings_make_a_grid(settings: Mapping[str, Mapping[str, str]], wanted: Axes | None) -> None:
    assert axes_of(settings) == wanted


def test_what_goes_with_the_others_parts_no_maps() -> None:
    # tau follows server and rate; "also" follows the server.
    settings = grid(server=["sgd", "adam"], rate=[0.1, 0.5, 1], local=[0.01, 0.05])
    for one in settings.values():
        if one["server"] == "adam":
            one |= {"tau": str(float(one["rate"]) / 10), "also": "1"}
    assert axes_of(settings) == Axes("rate", "local", ("server",))


def test_a_rate_of_each_server_leaves_the_server_as_an_axis() -> None:
    settings = grid(**{"server.kind": ["sgd", "adam"], "order": ["a", "b", "c"]})
    for one in settings.values():
        one["server.lr"] = {"sgd": "1", "adam": "0.5"}[one["server.kind"]]
    assert axes_of(settings) == Axes("order", "server.kind", ())
    further = {**settings, "more": {"same": "1", "server.kind": "sgd", "server.lr": "0.1", "order": "a"}}
    assert axes_of(further) == Axes("order", "server.lr", ())  # now the rate says something of its own


def test_the_maps_have_the_means_over_the_seeds(tmp_path: Path) -> None:
    variants = {}
    for server in ("sgd", "adam"):
        for rate in (1.0, 0.5, 0.1):
            for local in (0.05, 0.01):
                method = {"kind": "fedavg", "server": {"kind": server, "lr": rate}}
                summary = {"acc": rate / 2 + local + (server == "adam") / 10, "bwt_f": {"seen": -rate / 100}}
                variants[f"{server}-{rate}-{local}"] = {
                    "config": {"method": method, "local": {"lr": local}}, "summary": summary
                }  # fmt: skip
    body = section_of(heat, read(write_sweep(tmp_path / "s", variants, [0, 1], rounds=2, boundaries=(1,))))
    accuracy, transfer, drift = charts_of(body)
    first, second = accuracy["data"]
    assert (first["x"], first["y"]) == (["0.1", "0.5", "1.0"], ["0.01", "0.05"])
    assert first["z"] == [pytest.approx([0.06, 0.26, 0.51]), pytest.approx([0.1, 0.3, 0.55])]
    assert first["text"] == [["6.0", "26.0", "51.0"], ["10.0", "30.0", "55.0"]]
    assert second["z"] == [pytest.approx([0.16, 0.36, 0.61]), pytest.approx([0.2, 0.4, 0.65])]
    assert [one["meta"]["view"] for one in accuracy["data"]] == [[0], [1]]
    assert transfer["data"][0]["text"] == [["-0.1", "-0.5", "-1.0"]] * 2
    assert drift["data"][0]["z"] == [[1.0] * 3] * 2
    assert "server sgd</option>" in body


def test_an_unfinished_cell_is_empty_and_a_plain_folder_has_no_map(tmp_path: Path) -> None:
    variants: dict[str, Any] = {
        f"{a}-{b}": {"config": {"local": {"lr": a, "epochs": b}}} for a in (0.1, 0.2) for b in (1, 2)
    }
    variants["0.2-2"]["done"] = 1
    body = section_of(heat, read(write_sweep(tmp_path / "s", variants, [0], rounds=3, boundaries=())))
    (map_,) = charts_of(body)[0]["data"]
    assert "meta" not in map_  # where nothing is to be chosen, a view would hide the only map
    assert map_["z"][1][1] is None
    assert map_["text"][1][1] == ""
    assert None not in map_["z"][0]
    plain = write_sweep(tmp_path / "plain", {"a": {}, "b": {"dip": (0.1,)}}, [0], rounds=2, boundaries=())
    assert section_of(heat, read(plain)) == ""


# ---- orders ---------------------------------------------------------------------------------------------------------


def with_orders(folder: Path, found: Mapping[str, str]) -> Runs:
    """Runs of variants with these orders: two tasks, whose classifiers turn by 0.1 and 0.3, in phase 2 by ten times."""
    for place, (name, order) in enumerate(found.items()):
        more = [{"round": r, "metric": "entry_cosine", "over": "head", "entry": f"task/{t}",
                 "value": (0.1 + 0.2 * t) * (10 if r == 4 and order == "asynchronous" else 1)}
                for r in range(1, 7) for t in (0, 1)]  # fmt: skip
        run = write_run(folder / name / "0", seed=0, rounds=6, tasks=("a", "b"), boundaries=(3,), more=more,
                        dip=(0.1 * place,))  # fmt: skip
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines[0]["order"] = order
        write_lines(run / "metrics.jsonl", lines)
    return read(folder)


def test_the_orders_are_laid_over_one_another_with_drift_beside(tmp_path: Path) -> None:
    runs = with_orders(tmp_path / "s", {"late": "asynchronous", "multi-task": "multi-task", "phases": "synchronous"})
    body = section_of(orders, runs)
    accuracy, movement = charts_of(body)
    assert [trace["name"] for trace in accuracy["data"]] == ["multi-task", "phases", "late"]
    assert [trace["name"] for trace in movement["data"]] == ["multi-task", "phases", "late"]
    assert movement["data"][2]["y"] == pytest.approx([0.2, 0.2, 0.2, 2.0, 0.2, 0.2])
    assert movement["data"][0]["y"] == pytest.approx([0.2] * 6)
    for chart in (accuracy, movement):
        assert [shape["x0"] for shape in chart["layout"]["shapes"]] == [3.5]
    assert "late (asynchronous)" in body
    assert ">multi-task<" in body


def test_one_order_alone_needs_no_such_chart(tmp_path: Path) -> None:
    assert section_of(orders, with_orders(tmp_path / "s", {"a": "asynchronous", "b": "asynchronous"})) == ""
