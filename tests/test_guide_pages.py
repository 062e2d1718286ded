"""The pages on parts of one's own: their blocks keep every law, work together, and run from the command line."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import Shoal

import shoal as library
from shoal import bank, messages, randomness, requests
from shoal.checks.case import Case

DOCS = Path(__file__).parent.parent / "docs"


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def configurations(page: str) -> dict[str, dict[str, Any]]:
    return {raw["name"]: raw for raw in map(yaml.safe_load, blocks(page, "yaml"))}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the blocks of each page as one module, under the names that the pages use, and their YAML files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as where Python is started in this folder
    for page, module, count in (("new-method.md", "my_parts", 6), ("new-stream.md", "my_streams", 3)):
        found = blocks(page, "python")
        assert len(found) == count
        # Names of their own beside other tests' modules; the pages' short ones are for readers.
        (tmp_path / f"guide_{module}.py").write_text("\n\n".join(found))
        for name, raw in configurations(page).items():
            text = yaml.safe_dump(raw).replace(f"{module}:", f"guide_{module}:")
            assert f"guide_{module}:" in text
            (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


PARTS = [f"my_parts:{name}" for name in ("Prox", "Split", "BySteps", "Cosine")]
LATE = [f"my_parts:{name}" for name in ("Ifca", "FedRep")]  # `Split` is one of the first, both are played further below
STREAMS = [f"my_streams:{name}" for name in ("Turning", "Owners")]


@pytest.mark.parametrize("path", [*PARTS, *STREAMS, *(pytest.param(path, marks=pytest.mark.long) for path in LATE)])
def test_every_class_keeps_the_laws(here: Path, shoal: Shoal, path: str) -> None:
    said = shoal("check", f"guide_{path}")
    assert said.code == 0, said.out
    assert "holds" in said.out
    assert "BROKEN" not in said.out
    if path == "my_parts:Split":  # the page says that its example makes the laws see the split
        assert "born cluster/1" in said.out


def test_the_split_parts_those_that_pull_apart(here: Path) -> None:
    method = Case(method={"kind": "guide_my_parts:Split", "after": 5}).setup().method
    start = method.start()
    old = start["cluster/0"].vector
    # In the plane: clients 0 and 2 go east, 1 and 3 west, 3 a little less. 0 and 1 are opposite, so least alike.
    ways = {0: (1.0, 0.0), 1: (-2.0, 0.0), 2: (3.0, 0.3), 3: (-1.0, 0.5)}
    updates = []
    for client, way in ways.items():
        vector = old.clone()
        vector[:2] += torch.tensor(way)
        parts = {"cluster/0": messages.Part(vector, client=client)}
        updates.append(messages.Update(parts, weight=1.0, client=client))
    before = method.merge(start, updates, randomness.Moment(0, 4))
    assert (list(before.entries), before.memory) == (["cluster/0"], {"of": {}})
    after = method.merge(start, updates, randomness.Moment(0, 5))
    assert set(after.memory["of"]) in ({"1", "3"}, {"0", "2"})  # which of the two goes is of no matter
    # Both go on from the common mean: ((1 - 2 + 3 - 1) / 4, (0.3 + 0.5) / 4).
    for key in ("cluster/0", "cluster/1"):
        np.testing.assert_allclose((after[key].vector - old)[:2].numpy(), [0.25, 0.2], atol=1e-6)
    seats = [messages.Participant(client) for client in range(5)]
    keys = {given.client: given.keys[0] for given in method.assign(after, randomness.Moment(0, 6), seats)}
    assert keys[0] == keys[2] != keys[1] == keys[3]
    assert keys[4] == "cluster/0"  # was not there when the others were parted
    nothing = [dataclasses.replace(u, parts={"cluster/0": messages.Part(None)}) for u in updates]
    assert list(method.merge(start, nothing, randomness.Moment(0, 5)).entries) == ["cluster/0"]


def test_own_heads_stay_with_their_clients(here: Path) -> None:
    case = Case(method={"kind": "guide_my_parts:FedRep"}, stream={"tasks": 0})
    run = case.play(case.setup(), rounds=1)
    lines = [json.loads(line) for line in run.lines[0]]
    served = {line["client"]: line["entry"] for line in lines if line.get("metric") == "accuracy" and "client" in line}
    assert served == {c: f"features+own/{c}" for c in range(4)}
    # Only the features travel, 5 inputs to 4 units, 4 bytes a number.
    assert {line["value"] for line in lines if line.get("metric") in ("bytes_down", "bytes_up")} == {4 * (5 * 4 + 4)}
    # The head is trained by the first fit alone. Measured from the model received, it is as far away after the second.
    old, new = (state.bank for state in run.states)
    moved = [float((new[f"own/{c}"].vector - old[f"own/{c}"].vector).norm()) for c in range(4)]
    (drift,) = [x["value"] for x in lines if x.get("metric") == "client_drift_distance" and x["over"] == "head"]
    assert min(moved) > 0
    assert drift == pytest.approx(np.mean(moved), rel=1e-5)
    assert not torch.equal(old["features"].vector, new["features"].vector)


@pytest.mark.parametrize("name", ["FedRep", pytest.param("Split", marks=pytest.mark.long)])
def test_a_method_takes_a_learner_with_two_exchanges(here: Path, shoal: Shoal, name: str) -> None:
    (here / "guide_learner.py").write_text(TWICE)
    said = shoal("check", f"guide_my_parts:{name}", "--learner", "{kind: guide_learner:Twice, scale: 0.5}")
    assert said.code == 0, said.out + said.err


TWICE = '''
import torch
from shoal.learners.base import Learner
from shoal.messages import Part
from shoal.requests import Gradient
from shoal.terms import Shift


class Twice(Learner):
    """First everyone sends its gradient, then everyone is pushed along their mean."""

    exchanges = 2

    def __init__(self, world, local, *, scale: float):
        super().__init__(world, local)
        self.scale = scale

    def fit(self, key, start, entry, client, **request):
        if client.when.exchange == 0:
            gradient = yield Gradient(start, client.train)
            return Part(None, extra={"twice/g": gradient}), {}
        terms = (Shift(self.scale * entry.extra["twice/g"]),)
        return (yield from super().fit(key, start, entry, client, terms=terms, **request))

    def extra(self, key, old, new, group, when):
        sent = [part.extra["twice/g"] for part in group.parts if "twice/g" in part.extra]
        return {"twice/g": torch.stack(sent).mean(0) if sent else None}
'''

TYPES = {
    "World": messages.World,
    "Moment": randomness.Moment,
    "Participant": messages.Participant,
    "Client": messages.Client,
    "Entry": bank.Entry,
    "Buffers": bank.Buffers,
    "Bank": bank.Bank,
    "Assignment": messages.Assignment,
    "Update": messages.Update,
    "Part": messages.Part,
    "Group": messages.Group,
    "Served": requests.Served,
}


def test_the_tables_name_every_field() -> None:
    page = (DOCS / "new-method.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)`[^|]* \| (.*) \|$", page, re.MULTILINE))
    for name, of in TYPES.items():
        fields = {field.name for field in dataclasses.fields(of) if field.repr}
        assert fields <= set(re.findall(r"`(\w+)`", rows[name])), name
    table = page.split("| field of `Fit` |")[1].split("\n\n")[0]
    fields = {field.name for field in dataclasses.fields(requests.Fit)} - {"start"}
    assert {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])} == fields


def test_the_parts_of_a_method_work_together(here: Path, shoal: Shoal) -> None:
    for workers in (1, 2):
        said = shoal("run", "own.yaml", f"execution.workers={workers}", "--out", f"run{workers}")
        assert said.code == 0, said.err
    assert (here / "run1/metrics.jsonl").read_bytes() == (here / "run2/metrics.jsonl").read_bytes()
    result = library.Result(here / "run1")
    assert result.summary["updates"] == 8 * 4
    assert result.summary["acc"] > 0.3  # three models for four clients with a few classes each; chance is 0.1
    assert 1 <= result.summary["popularity"] <= 4
    frame = result.frame()
    assert frame[frame["metric"] == "popularity"].groupby("round")["value"].sum().tolist() == [4] * 8
    worst = frame[(frame["metric"] == "worst_class") & frame["weighting"].isna()]
    assert len(worst) == 8
    assert worst["value"].between(0, 1).all()


def test_a_stream_and_a_partition_work_together(here: Path, shoal: Shoal) -> None:
    said = shoal("show", "own-stream.yaml")
    assert said.code == 0, said.err
    said = shoal("run", "own-stream.yaml", "--out", "run")
    assert said.code == 0, said.err
    summary = library.Result(here / "run").summary
    assert set(summary["accuracy_by_target"]) == {"concept=0", "concept=1"}
    assert summary["updates"] == 6 * 4


def test_a_source_reads_its_file_and_says_what_it_left_out(here: Path, shoal: Shoal) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = rng.normal(size=(120, 4)) + 3 * np.eye(4)[y]
    x[[7, 50], 2] = np.nan
    np.savez(here / "sensors.npz", x=x, y=np.array(["low", "mid", "high"])[y], site=np.array(["a", "b"])[y % 2])
    said = shoal("show", "own-data.yaml", "rounds=4")
    assert said.code == 0, said.err
    assert "note: rows left out because a value is missing: 2" in said.out
    assert shoal("run", "own-data.yaml", "rounds=4", "--out", "run").code == 0
    header = (here / "run" / "metrics.jsonl").read_text().splitlines()[0]
    assert '"rows left out because a value is missing: 2"' in header
    assert '"classes": ["high", "low", "mid"]' in header
    np.savez(here / "sensors.npz", x=x)
    said = shoal("run", "own-data.yaml", "--out", "b")
    assert said.code == 2
    assert "needs the arrays x and y; ['y'] are not there" in said.err


@pytest.mark.parametrize(
    ("code", "settings", "message"),
    [
        ("def __init__(self, lr=1.0): pass", "lr: 3", "put it after"),
        ("def __init__(self, *, lr: 'Unknown' = 1.0): pass", "lr: 3", "import it outside TYPE_CHECKING"),
    ],
)
def test_mistakes_in_a_signature_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shoal: Shoal, code: str, settings: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    module = f"signature_{abs(hash(code))}"
    (tmp_path / f"{module}.py").write_text(
        f"from shoal.server.base import ServerOptimizer\nclass S(ServerOptimizer):\n    'S.'\n    {code}\n"
    )
    said = shoal("run", "quickstart", f"method.server={{kind: '{module}:S', {settings}}}", "variants={}", "--out", "a")
    assert said.code == 2
    assert message in said.err


def test_arguments_of_a_loss_are_checked(shoal: Shoal, tmp_path: Path) -> None:
    said = shoal("run", "quickstart", "local.loss_args={label_smooting: 0.1}", "--out", str(tmp_path / "a"))
    assert said.code == 2
    assert "did you mean 'label_smoothing'" in said.err


def test_links_between_the_pages_lead_somewhere() -> None:
    root = DOCS.parent
    pages = [root / "README.md", root / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    broken = []
    for page in pages:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            there = page.parent / path if path else page
            if not there.exists():
                broken.append(f"{page.name}: {target}")
            elif anchor:
                heads = re.findall(r"^#+ +(.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
                slugs = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
                if anchor not in slugs:
                    broken.append(f"{page.name}: {target}")
    assert not broken
