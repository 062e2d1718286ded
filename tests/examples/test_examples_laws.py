"""Every example keeps the laws that every built-in part keeps."""

from __future__ import annotations

import pytest

from shoal.checks.runner import check_target
from shoal.engine import one_torch_thread

EXAMPLES = (
    "births:Births",
    "concepts:Concepts",
    "ewc:Ewc",
    "gossip:Gossip",
    "heads:PerTask",
    "kept_adam:Kept",
    "median:Median",
    "nested:Proximal",
    "own_heads:OwnHeads",
    "plateau:Plateau",
    "probe:Probing",
    "rates:Decaying",
    "rates:Travelling",
    "rates:Watching",
    "real_steps:Nova",
    "scaffold:Scaffold",
    "stopping:Stopping",
    "svrg:Svrg",
)


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_laws(name):
    with one_torch_thread():
        results = check_target(f"test_example_{name}")
    assert len(results) > 10
    assert [f"{result.law}: {result.detail}" for result in results if not result.passed] == []
