"""Several runs that are refused by their stream leave the folder free for the mended command."""

from pathlib import Path

import pytest
import yaml

import shoal
from shoal.errors import ConfigError

RAW = {
    "rounds": 2,
    "data": {"kind": "digits", "limit": 120, "limit_test": 60},
    "stream": {"kind": "tasks", "tasks": 3, "clients": 2},
    "model": {"kind": "mlp", "hidden": [4]},
    "variants": {"one": {}, "other": {"local.lr": 0.01}},
}


def test_the_mended_command_finds_a_free_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one round each"):
        shoal.run(RAW, out=tmp_path / "out")
    shoal.run({**RAW, "rounds": 3}, out=tmp_path / "out")
    assert yaml.safe_load((tmp_path / "out/config.yaml").read_text())["rounds"] == 3


def test_what_was_run_before_the_refusal_is_kept(tmp_path: Path) -> None:
    raw = {**RAW, "rounds": 3, "variants": {"one": {}, "other": {"stream.tasks": 4}}}
    with pytest.raises(ConfigError, match="at least one round each"):
        shoal.run(raw, out=tmp_path / "out")
    assert (tmp_path / "out/one/0/summary.json").is_file()
    assert (tmp_path / "out/config.yaml").is_file()
