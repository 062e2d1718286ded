"""Memory that is too small for a stack is answered by a smaller one, and said; the results are the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import shoal
from shoal.engine.stack import FitStack, Member

RUN: dict[str, Any] = {
    "rounds": 2,
    "data": {"kind": "digits"},
    "stream": {"kind": "static", "clients": 7, "partition": {"kind": "iid"}},
    "model": {"kind": "mlp", "hidden": [4]},
    "local": {"lr": 0.1, "batch_size": 16, "epochs": 1},
    "execution": {"kind": "stacked"},
}


def limit(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Stacks of more than so many clients do not fit into memory; gives the sizes of those that were tried."""
    tried: list[int] = []
    plain = FitStack.__init__

    def made(self: FitStack, kernel: Any, chain: Any, members: Sequence[Member], *args: Any) -> None:
        tried.append(len(members))
        plain(self, kernel, chain, members, *args)
        if len(members) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(FitStack, "__init__", made)
    return tried


def test_a_smaller_stack_gives_the_same_numbers_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = shoal.run(RUN, out=tmp_path / "plain")
    tried = limit(monkeypatch, 2)
    small = shoal.run(RUN, out=tmp_path / "small")
    # 7 clients: 3 at a time are too many as well, one is not.
    assert tried == [7, 3, *[1] * 7, *[1] * 7]
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("plain", "small")]
    assert metrics[0] == metrics[1]
    assert plain.summary["engine"] == "stacked on cpu, float32"
    assert small.summary["engine"] == "stacked on cpu, float32; at most 1 clients of main at once, for memory"


def test_a_single_client_that_does_not_fit_is_left_to_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 0)
    small = shoal.run(RUN, out=tmp_path / "small")
    assert small.summary["engine"].startswith("stacked on cpu, float32; main by the reference kernel")
