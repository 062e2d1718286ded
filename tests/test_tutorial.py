"""Every block of docs/tutorial.md works, one after another, and the page says what can be seen."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import Shoal
from tutorial_files import PROVOKED, REMEDIES, alike, faulty, missing_lines

PAGE = (Path(__file__).parent.parent / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def python(code: str, names: dict[str, Any]) -> None:
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "tutorial.md", "exec"), names)
    shown = [line[2:] for line in code.splitlines() if line.startswith("#>")]
    assert missing_lines(shown, printed.getvalue()) == [], printed.getvalue()


def console(text: str, shoal: Shoal) -> None:
    for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *shown = step.splitlines()
        program, *arguments = shlex.split(line)
        assert program == "shoal"
        said = shoal(*arguments)
        assert said.code == (2 if shown[:1] and shown[0].startswith("error:") else 0), f"{line}\n{said.err}"
        assert missing_lines(shown, said.out + said.err) == [], f"{line}\n{said.out}"


def written(name: str) -> None:
    """The page's YAML file, in the working directory."""
    (text,) = [text for language, text in BLOCKS if language == "yaml" and text.startswith(f"# {name}\n")]
    Path(name).write_text(text)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(scope="module")
def pumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of part 2, made by the page's own block."""
    folder = tmp_path_factory.mktemp("pumps")
    (code,) = [text for language, text in BLOCKS if language == "python" and "pumps.csv" in text]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(code, "tutorial.md", "exec"), {})
    return folder / "pumps.csv"


def test_the_page_is_short_and_every_block_is_of_a_known_kind() -> None:
    assert len(PAGE.splitlines()) < 250
    assert PAGE.count("\n```") == 2 * len(BLOCKS)
    assert {language for language, _ in BLOCKS} == {"python", "yaml", "console"}


def test_the_blocks_run_one_after_another_and_print_what_the_page_shows(here: Path, shoal: Shoal) -> None:
    names: dict[str, Any] = {}
    for language, text in BLOCKS:
        if language == "yaml":
            written(text.splitlines()[0].removeprefix("# "))
        elif language == "python":
            python(text, names)
        else:
            console(text, shoal)
    the_images_are_as_the_text_says(here)
    the_table_is_as_the_text_says(here)


def the_images_are_as_the_text_says(here: Path) -> None:
    assert (here / "runs/cameras/report.html").exists()
    clients = pd.read_csv(here / "runs/cameras/clients.csv")
    assert clients["accuracy"].is_monotonic_increasing  # "the worst first"
    assert clients["trained"].eq(8).all()
    found = pd.read_csv(here / "predictions.csv")
    assert list(found.columns) == ["file", "prediction", "confidence", "p:crack", "p:ok", "p:stain"]
    right = (found["prediction"] == found["file"].str.split("-").str[0]).mean()
    assert "about nine in ten are recognised" in PAGE
    assert right == pytest.approx(0.9, abs=0.1)


def the_table_is_as_the_text_says(here: Path) -> None:
    days = pd.read_csv(here / "runs/days/clients.csv").set_index("name")
    drifting = ["S03", "S07", "S11"]
    assert "An R² below 0, as at the three sites" in PAGE
    assert days.loc[drifting, "r2"].lt(0).all()
    assert days.drop(drifting)["r2"].gt(0).all()
    found = pd.read_csv(here / "days.csv")
    assert "`row` counts them from 0" in PAGE
    assert found["row"].tolist() == list(range(20))
    assert found["prediction"].between(-50, 300).all()  # days left of a pump
    clients = pd.read_csv(here / "runs/pumps/clients.csv").set_index("name")
    gone = clients["validation_accuracy"] - clients["accuracy"]
    assert "its data have moved" in PAGE
    assert clients.index[:3].sort_values().tolist() == drifting
    assert gone[drifting].mean() > gone.drop(drifting).mean() + 0.1


def messages() -> list[str]:
    return re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)


def test_every_message_of_the_page_is_provoked() -> None:
    assert messages() == [*PROVOKED, "holds a finished run"]  # the latter by the test below


@pytest.mark.parametrize("message", PROVOKED)
def test_a_message_comes_and_its_remedy_helps(pumps: Path, shoal: Shoal, message: str) -> None:
    written("pumps.yaml")
    fault, settings = PROVOKED[message]
    path = pumps
    if fault is not None:
        path = Path("faulty.csv")
        faulty(pumps, path, fault)
    command = ("show", "pumps.yaml", f"data.path={path}", "data.missing=median", *settings)
    said = shoal(*command)
    assert said.code == 2
    assert message in said.err
    if message in REMEDIES:
        said = shoal(*command, *REMEDIES[message])
        assert said.code == 0, said.err


def test_a_finished_run_stays_and_a_client_that_was_never_drawn_shows(pumps: Path, here: Path, shoal: Shoal) -> None:
    written("pumps.yaml")
    settings = ("pumps.yaml", f"data.path={pumps}", "data.missing=median", "rounds=1", "participation.count=2")
    assert shoal("run", *settings).code == 0
    clients = pd.read_csv(here / "runs/pumps/clients.csv")
    never = clients[clients["trained"] == 0]
    assert len(never) == 10
    assert never["rounds"].eq(0).all()
    before = (here / "runs/pumps/metrics.jsonl").read_bytes()
    again = shoal("run", *settings)
    assert again.code == 2
    assert "holds a finished run" in again.err
    assert "--force" in again.err
    assert (here / "runs/pumps/metrics.jsonl").read_bytes() == before
    assert shoal("run", *settings, "--out", "runs/other").code == 0
    assert shoal("run", *settings, "--force").code == 0


def test_a_rate_that_is_too_high_is_rejected_and_clipping_helps(pumps: Path, here: Path, shoal: Shoal) -> None:
    written("pumps.yaml")
    values = ("data.label=days_left", "data.learn=values", "data.ignore=[state,month]", "evaluate.metrics=[r2]")
    settings = ("pumps.yaml", f"data.path={pumps}", "data.missing=median", "rounds=2", *values, "local.loss=mse")
    said = shoal("run", *settings, "local.lr=50", "--out", "high")
    assert said.code == 1
    assert "rejected" in said.out
    assert "the vector is not finite" in said.out
    clients = pd.read_csv(here / "high/clients.csv")
    assert clients["trained"].eq(0).all()
    assert clients["rejected"].eq(2).all()
    assert "What went wrong" in (here / "high/report.html").read_text(encoding="utf-8")
    assert shoal("run", *settings, "local.lr=50", "local.clip=1", "--out", "clipped").code == 0
    assert pd.read_csv(here / "clipped/clients.csv")["rejected"].eq(0).all()


def test_a_run_keeps_names_and_no_rows(pumps: Path, here: Path, shoal: Shoal) -> None:
    written("pumps.yaml")
    frame = pd.read_csv(pumps)
    frame["load"] = frame["load"].astype(object)
    frame.loc[4, "load"] = 0.7231946  # a number that nothing else has
    frame["remark"] = "secret-4711"
    frame.to_csv("marked.csv", index=False)
    settings = ("data.path=marked.csv", "data.missing=median", "data.ignore=[days_left,month,remark]", "rounds=1")
    assert shoal("run", "pumps.yaml", *settings).code == 0
    kept = b"".join(path.read_bytes() for path in sorted((here / "runs/pumps").rglob("*")) if path.is_file())
    for name in (b"S07", b"failing", b"vibration", b"C7"):
        assert name in kept
    for row in (b"7231946", b"secret-4711"):
        assert row not in kept


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("│ acc │ 0.46 │", "│ acc      │ 0.5 │", True),
        ("acc 0.46", "acc 0.6", False),
        ("12 rows", "13 rows", False),
        ("an accuracy of 94.4 %, ...", "an accuracy of 86.0 %, from 1 % (S03)", True),
        ("an accuracy of 94.4 %, ...", "an accuracy of 80.0 %, from 1 %", False),
        ("RMSE 26.2", "RMSE 22.0", False),
        ("R² -0.5 here", "R² -0.45 here", True),
        ("R² -0.5 here", "R² 0.5 here", False),
        ("95.4 ± 2.1 %", "96.0 ± 9.9 %", True),
        ("runs/x (1)", "runs/y (1)", False),
    ],
)
def test_lines_are_told_apart(shown: str, printed: str, expected: bool) -> None:
    assert alike(shown, printed) is expected
