"""The page on parts of one's own: its blocks keep every law, work together, and run from the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from conftest import Shoal

import shoal as library

PAGE = Path(__file__).parent.parent / "docs" / "own.md"
CONFIG = {
    "rounds": 8,
    "stream": {"kind": "static", "clients": 4, "partition": {"kind": "dirichlet", "by": "client", "alpha": 0.3}},
    "model": {"kind": "mlp", "hidden": [16]},
    "method": {
        "kind": "page_parts:Ifca",
        "clusters": 3,
        "mean": "page_parts:BySteps",
        "server": {"kind": "page_parts:Cosine", "lr": 0.8},
    },
    "local": {"lr": 0.1, "epochs": 5, "learner": {"kind": "page_parts:Prox", "mu": 0.1}},
}


@pytest.fixture
def page_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the blocks of the page as one module."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    (tmp_path / "page_parts.py").write_text("\n\n".join(blocks))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(CONFIG))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["Prox", "Ifca", "BySteps", "Cosine"])
def test_every_class_keeps_the_laws(page_parts: Path, shoal: Shoal, name: str) -> None:
    said = shoal("check", f"page_parts:{name}")
    assert said.code == 0, said.out
    assert "BROKEN" not in said.out


def test_they_work_together(page_parts: Path, shoal: Shoal) -> None:
    for workers in (1, 2):
        said = shoal("run", "own.yaml", f"execution.workers={workers}", "--out", f"run{workers}")
        assert said.code == 0, said.err
    assert (page_parts / "run1/metrics.jsonl").read_bytes() == (page_parts / "run2/metrics.jsonl").read_bytes()
    result = library.Result(page_parts / "run1")
    assert result.summary["updates"] == 8 * 4
    assert result.summary["acc"] > 0.3  # three models for four clients with a few classes each; chance is 0.1


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
