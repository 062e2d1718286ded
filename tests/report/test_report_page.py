"""The page as text: complete, offline, escaped, and there whatever the folder holds."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_folders import write_lines, write_run, write_sweep

from shoal.errors import RunError
from shoal.folder import RunFolder
from shoal.report.load import read
from shoal.report.page import SECTIONS, page, write_report

ALWAYS = ("findings", "accuracy", "clients", "transfer", "drift", "timeline", "cost", "problems", "configuration",
          "definitions")  # fmt: skip
SEVERAL = ("findings", "ranking", *(name for name in ALWAYS if name not in ("findings", "clients")))
HOSTILE = """<script>alert(1)</script><img src=x onerror=alert(1)>"'&</title></style>`${x}` %{x} {{y}} $title"""


class Tags(HTMLParser):
    """Every tag with its attributes, the text of the headings, and whether tags are nested rightly."""

    VOID = frozenset({"meta", "link", "img", "br", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.data: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.data.append((self.open[-1], data))


def parsed(text: str) -> Tags:
    tags = Tags(text)
    assert not tags.wrong
    assert not tags.open
    return tags


def ids(tags: Tags) -> list[str]:
    return [str(attributes["id"]) for tag, attributes in tags.tags if tag == "section"]


def charts(text: str) -> list[dict[str, Any]]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)
    return [json.loads(chart) for chart in found]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    variants = {"plain": {}, "dips": {"dip": (0.07,)}}
    return write_sweep(tmp_path_factory.mktemp("runs") / "trial", variants, [0, 1, 2])


def test_a_run_has_every_section_and_is_written_into_its_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    path = write_report(folder)
    assert path == folder / "report.html"
    tags = parsed(path.read_text(encoding="utf-8"))
    assert ids(tags) == list(ALWAYS)
    links = [a["href"] for tag, a in tags.tags if tag == "a"]
    assert [f"#{name}" for name in ALWAYS] == links[-len(ALWAYS) :]
    assert sorted(p.name for p in folder.iterdir()) == [
        "clients.csv", "config.yaml", "environment.json", "metrics.jsonl", "report.html", "summary.json",
        "timings.jsonl",
    ]  # fmt: skip


def test_several_runs_have_every_section(sweep: Path) -> None:
    text = page(read(sweep))
    tags = parsed(text)
    assert ids(tags) == list(SEVERAL)
    for name in ("plain", "dips"):
        assert any(data == name for tag, data in tags.data if tag == "span")


def test_the_server_section_appears_with_its_numbers(tmp_path: Path) -> None:
    more = [{"round": r, "metric": "median_sqrt_v", "value": 0.01 * r, "entry": "task/0"} for r in (1, 2)]
    tags = parsed(page(read(write_run(tmp_path / "run", more=more))))
    assert "server" in ids(tags)
    assert len(SECTIONS) == len(
        {*ALWAYS, *SEVERAL, "server", "confusion", "shifts", "concepts", "sizes", "heat", "orders"}
    )


def test_nothing_is_fetched(sweep: Path) -> None:
    tags = parsed(page(read(sweep)))
    for tag, attributes in tags.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert "src" not in attributes
        if "href" in attributes:
            assert str(attributes["href"]).startswith("#")
    styles = "".join(data for tag, data in tags.data if tag == "style")
    assert "url(" not in styles
    assert "@import" not in styles
    policy = next(a["content"] for tag, a in tags.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none'")
    assert "http" not in str(policy)


def test_headings_are_in_order_and_tables_are_labelled(sweep: Path) -> None:
    tags = parsed(page(read(sweep)))
    levels = [int(tag[1]) for tag, _ in tags.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    scopes = [a.get("scope") for tag, a in tags.tags if tag == "th"]
    assert set(scopes) == {"col", "row"}
    assert sum(tag == "caption" for tag, _ in tags.tags) == sum(tag == "table" for tag, _ in tags.tags) > 3
    names = [a["id"] for _, a in tags.tags if "id" in a]
    assert len(names) == len(set(names))
    assert next(data for tag, data in tags.data if tag == "title") == "trial - Shoal report"


def test_a_hostile_name_is_text_everywhere(tmp_path: Path) -> None:
    lost = {"round": 2, "record": "rejected", "client": 1, "reason": HOSTILE}
    folder = write_run(
        tmp_path / "run", name=HOSTILE, tasks=(HOSTILE, "b"), boundaries=(3,), rounds=6, more=[lost],
        config={"description": HOSTILE, "method": {"kind": HOSTILE}, HOSTILE: HOSTILE},
    )  # fmt: skip
    text = page(read(folder))
    tags = parsed(text)
    assert ids(tags) == list(ALWAYS)
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in tags.tags)
    scripts = [data for tag, data in tags.data if tag == "script"]
    assert not any("alert(1)" in data for data in scripts if data.lstrip().startswith("(() =>"))
    assert "".join(data for tag, data in tags.data if tag == "title") == f"{HOSTILE} - Shoal report"
    assert "".join(data for tag, data in tags.data if tag == "h1") == HOSTILE
    for chart in charts(text):
        for trace in chart["data"]:
            # Charts read a little HTML in names: it must have been taken away there, too.
            assert "<" not in str(trace.get("name", "")) + str(trace.get("hovertemplate", "")).replace(
                "<br>", ""
            ).replace("<extra></extra>", "")


def test_a_hostile_variant_is_text_everywhere(tmp_path: Path) -> None:
    name = "<b onclick=x>&'"
    folder = write_sweep(tmp_path / "runs", {name: {}, "b": {}}, [0], rounds=6, boundaries=(3,))
    tags = parsed(page(read(folder)))
    assert not any("onclick" in attributes for _, attributes in tags.tags)
    assert {name, "b"} <= {str(a["data-group"]) for tag, a in tags.tags if tag == "button"}


def test_an_unfinished_run_says_so_and_shows_what_there_is(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", done=9)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 10, "metric": "accu')
    text = page(read(folder))
    assert ids(parsed(text)) == list(ALWAYS)
    assert "(asynchronous) is unfinished: 9 of 30 rounds are done, and the mean accuracy after round 9 is" in text
    assert "is not JSON" not in text
    assert max(charts(text)[0]["data"][0]["x"]) == 9


def test_a_line_broken_in_the_middle_is_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=4, boundaries=(2,))
    whole = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([*whole[:5], "{oops", *whole[5:]]) + "\n")
    runs = read(folder)
    said = f"metrics.jsonl: line 6 is not JSON as it was written; it, and what follows it ({len(whole) - 5} lines)"
    assert said in page(runs)
    assert not runs.runs[0].finished
    assert list(runs.runs[0].lines) == RunFolder(folder).lines()  # what the summary is made of


def test_unreadable_files_are_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=4, boundaries=(2,))
    (folder / "config.yaml").write_text("a: [1")
    (folder / "summary.json").write_text("{")
    (folder / "environment.json").write_text("[1]")
    text = page(read(folder))
    assert ids(parsed(text)) == list(ALWAYS)
    assert "config.yaml cannot be read" in text
    assert "summary.json cannot be read" in text


def test_a_folder_of_runs_in_all_states(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs", {"a": {}, "b": {"done": 4}}, [0, 1], rounds=8, boundaries=(4,))
    for path in (folder / "a" / "1").iterdir():
        path.unlink()
    (folder / "a" / "1").rmdir()
    text = page(read(folder))
    # One variant has finished: there is nothing to rank.
    assert ids(parsed(text)) == [name for name in SEVERAL if name != "ranking"]
    assert "Not counted: two unfinished runs and one run not yet started." in text
    assert "a/1 is in the configuration and was not started." in text
    assert "b, seed 1 is unfinished: 4 of 8 rounds are done." in text


def test_a_stream_without_tasks(tmp_path: Path) -> None:
    text = page(read(write_run(tmp_path / "run", tasks=(), boundaries=())))
    assert ids(parsed(text)) == [name for name in ALWAYS if name != "transfer"]
    assert "BWT_f" not in text
    assert "all test rows" in text
    assert "Phase, boundary" not in text
    assert "task held" not in text


def test_no_rounds(tmp_path: Path) -> None:
    text = page(read(write_run(tmp_path / "run", rounds=0, boundaries=())))
    assert ids(parsed(text)) == [name for name in ALWAYS if name != "clients"]
    assert "No accuracy was measured" in text
    assert not charts(text)


def test_an_empty_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: begun\nrounds: 3\n")
    assert "This run is unfinished: 0 of 3 rounds are done." in page(read(tmp_path))


def test_values_that_are_null_or_not_finite(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=6, boundaries=(3,))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for place, line in enumerate(lines):
        if "value" in line:
            line["value"] = (None, float("nan"), float("inf"), line["value"])[place % 4]
    write_lines(folder / "metrics.jsonl", lines)
    numbers = json.loads((folder / "summary.json").read_text())
    numbers |= {"acc": None, "bwt_f": {"seen": None, "worst@1": None, "events": 0}, "seconds": None}
    (folder / "summary.json").write_text(json.dumps(numbers))
    text = page(read(folder))
    assert ids(parsed(text)) == list(ALWAYS)
    assert charts(text)
    assert "NaN" not in "".join(json.dumps(chart) for chart in charts(text))


def test_metrics_of_no_known_shape(tmp_path: Path) -> None:
    more = [{"metric": "accuracy", "value": 0.5}, {"round": 1}, {"round": 1, "metric": 3}, {"record": ["x"]},
            {"round": 1, "metric": "accuracy", "value": "high", "task": 0}]  # fmt: skip
    assert ids(parsed(page(read(write_run(tmp_path / "run", rounds=3, boundaries=(), more=more))))) == list(ALWAYS)


def test_no_run_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"metrics\.jsonl.*shoal run"):
        write_report(tmp_path)


def test_many_clients_are_drawn_as_a_range(tmp_path: Path) -> None:
    more = [
        {"round": r, "metric": "accuracy", "value": c / 100, "rows": 10, "client": c}
        for r in (1, 2, 3)
        for c in range(101)
    ]
    folder = write_run(tmp_path / "run", rounds=3, tasks=(), boundaries=(), more=more)
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    unlabelled = [x for x in lines if x.get("metric") != "accuracy" or "client" in x]
    write_lines(folder / "metrics.jsonl", unlabelled)
    text = page(read(folder))
    levels = [trace["y"] for trace in charts(text)[0]["data"]]
    assert levels == [[90.0] * 3, [50.0] * 3, [10.0] * 3]
    assert "Range over 101 clients" in text
    assert "The 101 clients one by one" in text


def test_problems_are_listed_by_name(tmp_path: Path) -> None:
    more = [
        {"round": 3, "record": "rejected", "client": 2, "reason": "vector has a NaN"},
        {"round": 5, "record": "straggler", "client": 1, "reason": "too late"},
        {"round": 6, "record": "unchanged", "updates": 0, "needed": 2},
        {"round": 6, "record": "metric_failed", "kind": "auc", "reason": "ValueError: no", "targets": 3, "client": 4},
        {"round": 7, "record": "round", "participants": [], "rejected": 2, "failed": 1, "stragglers": 0, "skipped": 4},
    ]
    text = page(read(write_run(tmp_path / "run", rounds=8, boundaries=(4,), more=more)))
    cells = [data for tag, data in parsed(text).data if tag in ("td", "th", "span")]
    for wanted in ("client 2: rejected", "vector has a NaN", "client 1: straggler", "0 updates accepted, 2 needed"):
        assert wanted in cells
    assert "auc, on 3 targets: ValueError: no" in cells
    at = cells.index("Warnings")
    assert cells[at + 2 : at + 7] == ["2", "1", "0", "4", "0"]


def test_environments_and_settings_that_differ(tmp_path: Path) -> None:
    folder = write_sweep(
        tmp_path / "runs",
        {"a": {"config": {"local": {"lr": 0.1}}}, "b": {"config": {"local": {"lr": 0.2}}}},
        [0],
        rounds=2,
        boundaries=(),
    )
    (folder / "b" / "0" / "environment.json").write_text(json.dumps({"python": "3.12", "packages": {"torch": "2.7"}}))
    cells = [data for tag, data in parsed(page(read(folder))).data if tag in ("td", "th")]
    at = cells.index("local.lr")
    assert [c for c in cells[at + 1 : at + 4] if c.strip()][:2] == ["0.1", "0.2"]
    assert "3.11; 3.12" in cells


def test_a_run_among_several_is_called_by_variant_and_seed(sweep: Path) -> None:
    assert read(sweep / "dips" / "2").name == "trial: dips, seed 2"


def test_every_term_is_explained_once(tmp_path: Path) -> None:
    by = {kind: {"all": 1.0, "head": 0.5} for kind in ("squared", "distance", "cosine")}
    more = [{"round": r, "metric": m, "value": 0.5, "task": 0} for r in (1, 2) for m in ("f1", "loss")]
    config, summary = {"evaluate": {"metrics": ["f1"]}}, {"loss": 0.5, "client_drift_by": by}
    folder = write_run(tmp_path / "run", rounds=2, boundaries=(), more=more, config=config, summary=summary)
    terms = [data for tag, data in parsed(page(read(folder))).data if tag == "dt"]
    assert terms.count("Client drift") == 1
    assert len(terms) == len(set(terms)) > 10


def test_the_only_run_is_not_named_in_every_event(tmp_path: Path) -> None:
    lost = [{"round": 2, "record": "rejected", "client": 1, "reason": "why"}]
    one = page(read(write_run(tmp_path / "run", rounds=3, boundaries=(), more=lost)))
    several = page(read(write_sweep(tmp_path / "x", {"a": {"more": lost}, "b": {}}, [0], rounds=3, boundaries=())))
    for text, head in ((one, ["Round", "What", "Reason"]), (several, ["Run", "Round", "What", "Reason"])):
        table = text[text.index("<span>One by one</span>") :].partition("</thead>")[0]
        assert re.findall(r"<th [^>]*>(.*?)</th>", table) == head
