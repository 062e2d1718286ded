"""Every command and snippet of the README works (but the set-up ones), and the docs name what there is."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import Shoal

from shoal import registry
from shoal.config import Config
from shoal.setup import resolve_config

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_nothing_in_the_readme_is_left_untested() -> None:
    known = {"sh": 1, "python": 1, "console": 1, "yaml": 1}
    languages = re.findall(r"^```(\w+)\n", README, re.MULTILINE)
    assert {name: languages.count(name) for name in languages} == known
    for line in blocks("sh")[0].splitlines():
        assert re.match(r"make (run|test) +#", line), "only set-up commands are left out"


def test_the_python_example_runs_in_an_interpreter_of_its_own(tmp_path: Path) -> None:
    (code,) = blocks("python")
    assert len(code.splitlines()) <= 21
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    accuracy = float(re.search(r"accuracy ([0-9.]+),", done.stdout).group(1))  # type: ignore[union-attr]
    assert accuracy > 0.7
    assert len(done.stdout.splitlines()) == 7
    assert (tmp_path / "runs" / "mine" / "report.html").exists()


def test_the_commands_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shoal: Shoal) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = blocks("console")
    for line in text.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        assert program == "shoal"
        said = shoal(*arguments)
        assert said.code == 0, f"{line}\n{said.err}"
        assert said.out
    assert (tmp_path / "runs" / "short" / "fedadam" / "0" / "summary.json").exists()
    assert (tmp_path / "runs" / "one" / "report.html").exists()


def test_the_yaml_example_is_a_configuration() -> None:
    (text,) = blocks("yaml")
    config = resolve_config(yaml.safe_load(text))
    assert config.method["server"]["tau"] == 0.01


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_configuration_page_names_every_key_and_kind() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    method = (ROOT / "docs" / "methods" / "fedavg.md").read_text(encoding="utf-8")
    keys = set(Config.model_fields) - {"description"}
    for part, kinds in registry.PARTS.items():
        keys |= set(kinds) | set(registry.ALIASES.get(part, {}))
    missing = {key for key in keys if f"`{key}`" not in page + method}
    assert not missing


def test_the_laws_page_lists_every_law() -> None:
    import shoal.checks.runner  # noqa: F401  (registers the laws)
    from shoal.checks.law import LAWS

    page = (ROOT / "docs" / "laws.md").read_text(encoding="utf-8")
    rows = [f"| {law.name} | {law.statement.replace('``', '`')} |" for laws in LAWS.values() for law in laws]
    assert [row for row in rows if row not in page] == []
    assert page.count("\n| ") == len(set(rows)) + 7 + 7  # the heads of seven tables, and seven attributes


@pytest.mark.parametrize("target", ["run", "test"])
def test_make_help_lists_the_two_commands(target: str) -> None:
    said = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^  make {target} ", said, re.MULTILINE)
