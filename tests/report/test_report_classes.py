"""Which classes each client holds: the stream's record against counts of one's own, and the heat map made from it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_folders import without_accuracy, write_run, write_sweep

import shoal
from shoal.report.held import classes_held
from shoal.report.load import Run, read
from shoal.report.page import page, write_report
from shoal.setup import assemble, resolve_config

COUNTS = [[3, 1, 0], [0, 0, 0], [0, 2, 6]]


def header(folder: Path, **changes: Any) -> dict[str, Any]:
    stream = {"kind": "static", "clients": 4, "partition": {"kind": "shards"}, **changes.pop("stream", {})}
    config = {"rounds": 0, "stream": stream, "local": {"epochs": 1}, **changes}
    shoal.run(config, out=folder)
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])


def test_the_record_has_rows_and_classes_of_each_client(tmp_path: Path) -> None:
    found = header(tmp_path / "run")
    setup = assemble(resolve_config(read(tmp_path / "run").config))
    labels = np.asarray(setup.dataset.labels)
    for client in range(4):
        rows = setup.stream.holding(client, 1).train.numpy()
        own = {name: int(sum(labels[rows] == code)) for code, name in enumerate(setup.dataset.classes)}
        assert dict(zip(found["classes"], found["client_classes"][client], strict=True)) == own
        assert found["client_rows"][client] == len(rows) == sum(own.values())


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        ({"clients": 200, "partition": "iid"}, True),
        ({"clients": 201, "partition": "iid"}, False),
        ({"clients": 1_000_000, "partition": {"kind": "draw", "rows": 10}}, False),
        ({"kind": "tasks", "tasks": 2, "by": "transform", "order": "synchronous", "partition": "iid"}, False),
    ],
)
def test_large_streams_and_tasks_are_not_counted(tmp_path: Path, stream: dict[str, Any], told: bool) -> None:
    found = header(tmp_path / "run", stream=stream, rounds=2 if "tasks" in stream else 0)
    assert ("client_rows" in found) is ("client_classes" in found) is told


def test_a_regression_has_rows_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = shoal.from_arrays(rng.normal(size=(50, 2)), rng.normal(size=50), learn="values")
    config = {"rounds": 0, "stream": {"kind": "static", "clients": 5, "validation": 0}, "local": {"loss": "mse"}}
    shoal.run(config, out=tmp_path / "run", data=data)
    found = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert found["client_rows"] == [8] * 5  # 50 rows, 10 of them for testing
    assert "client_classes" not in found


def with_classes(folder: Path, **more: Any) -> Path:
    about = {"client_classes": COUNTS, "client_rows": [4, 0, 8], **more}
    return without_accuracy(write_run(folder, rounds=2, tasks=(), boundaries=(), clients=3), **about)


def charts(text: str) -> list[dict[str, Any]]:
    section = text[text.index('<section id="timeline"') :].partition("</section>")[0]
    return [
        json.loads(part.partition("</script>")[0]) for part in section.split('<script type="application/json">')[1:]
    ]


def test_the_colour_is_the_share_of_the_clients_own_rows(tmp_path: Path) -> None:
    text = page(read(with_classes(tmp_path / "run")))
    _, held = charts(text)
    (trace,) = held["data"]
    assert trace["z"] == [[0.75, 0.25, 0], [0, 0, 0], [0, 0.25, 0.75]]
    assert trace["x"] == ["shirt", "7", "&lt;41&gt;"]
    assert trace["hovertext"][2][2] == "client 2, class &lt;41&gt;<br>6 of 8 training rows"
    assert "The run: which classes each client holds" in text


def test_up_to_forty_clients_are_called_by_their_names(tmp_path: Path) -> None:
    names = ["Oslo", "Rome", "a place with a name that is long"]
    took_part, held = charts(page(read(with_classes(tmp_path / "run", client_names=names))))
    for chart in (took_part, held):
        assert chart["data"][0]["y"] == ["Oslo", "Rome", "a place with a name..."]
        assert chart["layout"]["yaxis"]["type"] == "category"
    folder = write_run(tmp_path / "many", rounds=2, tasks=(), boundaries=(), clients=41)
    many = without_accuracy(folder, client_names=[f"site {c}" for c in range(41)], client_classes=[[1, 2, 3]] * 41)
    for chart in charts(page(read(many))):
        assert chart["data"][0]["y"] == list(range(41))


def test_training_rows_are_in_the_table_and_its_file(tmp_path: Path) -> None:
    folder = with_classes(tmp_path / "run")
    text = write_report(folder).read_text(encoding="utf-8")
    assert "Training rows</th>" in text
    with (folder / "clients.csv").open(encoding="utf-8", newline="") as file:
        assert [row["train_rows"] for row in csv.DictReader(file)] == ["4", "0", "8"]


def test_variants_of_a_seed_share_a_heat_map(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "x", {"a": {}, "b": {}}, [0, 1], rounds=2, tasks=(), boundaries=(), clients=3)
    for seed, counts in (("0", COUNTS), ("1", COUNTS[::-1])):
        for name in "ab":
            without_accuracy(folder / name / seed, client_classes=counts)
    text = page(read(folder))
    for seed in (0, 1):
        assert f"Seed {seed}, all variants: which classes each client holds" in text
    assert text.count(": which classes each client holds</figcaption>") == 2


@pytest.mark.parametrize("broken", [None, 3, [[1, 2]], [[1, 2, "3"]], [[1, 2, -3]], [[1, 2, 3], None], [[1.5, 2, 3]]])
def test_counts_of_no_known_shape_are_left_out(tmp_path: Path, broken: Any) -> None:
    line = {"round": 0, "record": "stream", "classes": ["a", "b", "c"], "client_classes": broken}
    assert classes_held(Run(Path(), "a", "0", lines=(line,))) == []
    folder = with_classes(tmp_path / "run", client_classes=broken, client_rows=broken)
    assert len(charts(page(read(folder)))) == 1
