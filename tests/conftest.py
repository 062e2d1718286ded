"""Shared by all tests: the command line in this process, and where real data are."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from shoal import cli
from shoal.config import Config
from shoal.loading import expand, load
from shoal.setup import resolve_config

torch.set_num_threads(1)  # as every engine has it: two threads split sums differently


@pytest.fixture(autouse=True)
def _imports_alone(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test finds the modules of another one: the command line adds its folder to the path, for good."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    folder = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Shoal = Callable[..., Said]


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shoal:
    """Runs ``shoal ARGUMENTS`` in this process."""

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["shoal", *arguments])
        capsys.readouterr()
        code = cli.main()
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return run


def weights_files(settings: Any) -> set[str]:
    """The files that a recipe's models start from, in its variants, too."""
    if not isinstance(settings, dict):
        return set()
    own = {value for name, value in settings.items() if name == "weights" and isinstance(value, str)}
    return own.union(*(weights_files(value) for value in settings.values()))


def resolved(recipe: str) -> dict[str, Config]:
    """The first seed of each variant of a recipe; weights files are there, empty, in the working directory."""
    raw = load(recipe)
    for file in weights_files(raw):
        Path(file).touch()
    return {single.variant: resolve_config(single.raw) for single in expand(raw) if single.seed == 0}


@pytest.fixture
def real_data() -> Path:
    """The folder with real data; the test is skipped without it."""
    folder = os.environ.get("SHOAL_DATA")
    if not folder:
        pytest.skip("SHOAL_DATA is not set: no real data on this machine")
    return Path(folder)
