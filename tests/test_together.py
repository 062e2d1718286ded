"""Runs of one sweep share the stacks of one engine, and have the numbers that each of them has alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal as library
from shoal import engine as engines
from shoal import together
from shoal.engine import shared
from shoal.engine.program import Stopped
from shoal.engine.stack import FitStack
from shoal.errors import ConfigError
from shoal.folder import RunFolder
from shoal.metrics.base import Line
from shoal.progress import Quiet
from shoal.running import Interrupted

BASE: dict[str, Any] = {
    "name": "small",
    "rounds": 4,
    "data": {"kind": "digits", "limit": 200, "limit_test": 60},
    "stream": {"kind": "tasks", "tasks": 2, "by": "transform", "clients": 3},
    "model": {"kind": "mlp", "hidden": [4]},
    "method": {"kind": "fedadam", "per": "task"},
    "execution": {"kind": "stacked"},
    "local": {"lr": 0.1, "epochs": 2},
    "participation": {"fraction": 0.7},
}
NET = {"kind": "resnet20", "width": 2}
"""No dense model."""
GRID = {"local.lr": [0.1, 0.2], "method.server.tau": [0.01, 0.1]}


def numbers(path: Path) -> list[Line]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def same(a: Path, b: Path) -> None:
    """Equal to rounding; in fact every bit was equal wherever this was tried."""
    ours, theirs = numbers(a), numbers(b)
    assert len(ours) == len(theirs)
    for x, y in zip(ours, theirs, strict=True):
        assert x.keys() == y.keys()
        for name in x:
            if name == "value" and isinstance(x[name], float):
                assert x[name] == pytest.approx(y[name], rel=1e-3, abs=1e-6)
            else:
                assert x[name] == y[name]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> library.Sweep:
    return library.sweep(BASE, GRID, seeds=2, best="validation_accuracy", out=tmp_path_factory.mktemp("whole") / "s")


def test_every_cell_has_the_numbers_of_the_same_run_alone(whole: library.Sweep, tmp_path: Path) -> None:
    for place in ("lr=0.1,tau=0.01/0", "lr=0.2,tau=0.1/1"):
        rate, tau = (float(part.split("=")[1]) for part in place.split("/")[0].split(","))
        changes = {"local.lr": rate, "method.server.tau": tau, "seed": int(place[-1])}
        alone = library.run(BASE, changes, out=tmp_path / place)
        same(whole.folder / place, alone.folder)
        assert "together with 7 other runs" in whole.runs[place].summary["engine"]
        assert "together" not in alone.summary["engine"]


def test_stacked_is_what_serial_says_to_rounding(whole: library.Sweep, tmp_path: Path) -> None:
    serial = library.run(BASE, {"execution.kind": "serial"}, out=tmp_path / "serial")
    ours = {(line["round"], line["over"]): line["value"] for line in drifts(whole.folder / "lr=0.1,tau=0.01" / "0")}
    theirs = {(line["round"], line["over"]): line["value"] for line in drifts(serial.folder)}
    assert ours[1, "all"] == pytest.approx(theirs[1, "all"], rel=1e-4)
    assert ours.keys() == theirs.keys()


def drifts(path: Path) -> list[Line]:
    return [line for line in numbers(path) if line.get("metric") == "client_drift"]


def test_cells_are_fitted_in_common_stacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes: list[int] = []
    run = FitStack.run

    def counted(self: FitStack) -> Any:
        sizes.append(len(self.members))
        return run(self)

    monkeypatch.setattr(FitStack, "run", counted)
    base = {**BASE, "participation": {"fraction": 1.0}, "stream": {"kind": "static", "clients": 3}, "method": "fedavg"}
    library.sweep(base, {"local.lr": [0.1, 0.2, 0.3], "local.weight_decay": [0.0, 0.1]}, out=tmp_path / "s")
    assert sizes == [9, 9] * BASE["rounds"]  # with and without decay are two kinds of steps


class Stopping(Quiet):
    """Interrupts after so many rounds of all runs together."""

    def __init__(self, after: int) -> None:
        self.after = after

    def played(self, round: int, lines: list[Line]) -> None:
        if round >= self.after:
            raise KeyboardInterrupt


def test_an_interrupted_sweep_goes_on_to_the_same_numbers(whole: library.Sweep, tmp_path: Path) -> None:
    out = tmp_path / "s"
    with pytest.raises(Interrupted, match="shoal resume"):
        library.sweep(BASE, GRID, seeds=2, best="validation_accuracy", out=out, progress=Stopping(11))
    assert not any(thread.name == "shoal-run" for thread in threading.enumerate())
    states = [RunFolder(path.parent).checkpoints.rounds() for path in out.rglob("metrics.jsonl")]
    assert any(states)
    assert not (out / "comparison.json").exists()
    library.resume(out)
    for place in whole.runs:
        assert (out / place / "metrics.jsonl").read_bytes() == (whole.folder / place / "metrics.jsonl").read_bytes()
    assert (out / "best.yaml").read_bytes() == (whole.folder / "best.yaml").read_bytes()


def test_a_run_that_fails_ends_the_others_with_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = library.server.plain.SGD.step  # type: ignore[attr-defined]

    def breaking(self: Any, old: Any, mean: Any, when: Any, reported: Any) -> Any:
        if self.lr == 0.5 and when.round == 2:
            raise RuntimeError("the server is out of order")
        return step(self, old, mean, when, reported)

    monkeypatch.setattr("shoal.server.plain.SGD.step", breaking)
    with pytest.raises(RuntimeError, match="out of order") as found:
        library.sweep({**BASE, "method": "fedsgd"}, {"method.server.lr": [1.0, 0.5]}, out=tmp_path / "s")
    assert "lr=0.5/0; when that is mended" in found.value.__notes__[0]
    monkeypatch.undo()
    found = library.resume(tmp_path / "s")
    assert all(run.summary["finished"] for run in found.runs.values())


def test_variants_with_another_engine_run_on_their_own(tmp_path: Path) -> None:
    variants = {"a": {}, "b": {"execution.kind": "serial"}, "c": {"model": NET, "execution.kind": "auto"}}
    result = library.run({**BASE, "rounds": 2, "variants": variants}, out=tmp_path / "v")
    kinds = {name.split("/")[0]: run.summary["engine"].split()[0] for name, run in result.runs.items()}
    assert kinds == {"a": "stacked", "b": "serial", "c": "workers"}


def test_auto_is_decided_by_the_model_and_written_down(tmp_path: Path) -> None:
    auto = {"execution": {"kind": "auto"}, "rounds": 2}
    result = library.run({**BASE, **auto}, out=tmp_path / "dense")
    assert RunFolder(result.folder).config()["execution"]["kind"] == "stacked"
    other = library.run({**BASE, **auto, "model": NET}, out=tmp_path / "cnn")
    assert RunFolder(other.folder).config()["execution"]["kind"] == "workers"
    half = library.run({**BASE, **auto, "execution": {"kind": "auto", "precision": "bf16"}}, out=tmp_path / "bf16")
    assert RunFolder(half.folder).config()["execution"]["kind"] == "workers"


def test_a_stacked_run_is_not_gone_on_with_by_another_engine(tmp_path: Path) -> None:
    result = library.run(BASE, out=tmp_path / "a")
    (result.folder / "summary.json").unlink()
    config = RunFolder(result.folder).config()
    for kind, allowed in (("serial", False), ("workers", False), ("auto", True), ("stacked", True)):
        RunFolder(result.folder).write_yaml(
            "config.yaml", {**config, "execution": {**config["execution"], "kind": kind}}
        )
        if allowed:
            library.resume(result.folder)
            (result.folder / "summary.json").unlink()
        else:
            with pytest.raises(library.errors.RunError, match=r"execution\.kind"):  # type: ignore[attr-defined]
                library.resume(result.folder)


def test_a_gathering_waits_for_nobody_who_has_left() -> None:
    gathering = engines.Gathering(2)
    gathering.leave()
    assert gathering.runs == 2
    gathering.answer(None, [])  # type: ignore[arg-type]


def test_many_runs_are_played_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.together.MOST", 3)
    base = {**BASE, "rounds": 2}
    result = library.sweep(base, {"local.lr": [0.1, 0.2, 0.3, 0.4, 0.5]}, out=tmp_path / "s")
    together = [run.summary["engine"].partition("together with ")[2] for run in result.runs.values()]
    assert together == ["2 other runs"] * 3 + ["1 other runs"] * 2


def test_setting_up_in_several_threads_draws_the_same_models() -> None:
    from shoal.models.base import Model
    from shoal.models.mlp import mlp
    from shoal.randomness import generator

    def make(found: list[torch.Tensor], width: int) -> None:
        of = Model("main", lambda: mlp((30,), 5, hidden=(width,)))
        found.append(of.initial(generator(0, "initial")).vector)

    def drawn(threads: int) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        workers = [threading.Thread(target=make, args=(found, 200)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return found

    (alone,) = drawn(1)
    assert all(torch.equal(alone, vector) for vector in drawn(8))
    assert np.isfinite(alone.numpy()).all()


def test_a_bad_cell_is_named_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tau=-1"):
        library.sweep(BASE, {"method.server.tau": [0.1, -1]}, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_the_last_run_of_several_hears_that_it_shall_stop() -> None:
    gathering = engines.Gathering(1)
    begun, told = threading.Event(), threading.Event()
    rounds: list[int] = []

    def play(*_: Any) -> None:
        for number in range(2000):
            begun.set()
            told.wait(5)  # it holds the turn, and never waits for others
            gathering.answer(None, [])  # type: ignore[arg-type]
            rounds.append(number)

    party = together._Party([play], Quiet())
    party.gathering = gathering
    runner = threading.Thread(target=party._one, args=(play,))
    runner.start()
    assert begun.wait(5)
    stopper = threading.Thread(target=gathering.stop)
    stopper.start()
    while not gathering._stopped:
        pass
    told.set()
    runner.join(5)
    stopper.join(5)
    assert not runner.is_alive()
    assert not rounds
    assert isinstance(party.errors[0], Stopped)


def test_when_the_common_answer_fails_the_others_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer, calls = shared.answer_all, []

    def failing(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("no memory left")
        answer(*args)

    monkeypatch.setattr(shared, "answer_all", failing)
    with pytest.raises(RuntimeError, match="no memory left"):
        library.sweep({**BASE, "checkpoint": {"every": 0}}, {"local.lr": [0.1, 0.2, 0.3]}, out=tmp_path / "s")
    rounds = [RunFolder(path.parent).checkpoints.rounds() for path in (tmp_path / "s").rglob("metrics.jsonl")]
    assert sorted(rounds) == [[], [2], [2]]  # the others were saved
    monkeypatch.undo()
    library.resume(tmp_path / "s")


def test_torch_keeps_to_one_thread_until_the_last_run_has_ended() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    seen: list[int] = []
    try:

        def play(gathering: engines.Gathering, progress: Quiet) -> None:
            with engines.one_torch_thread():
                gathering.answer(object(), [])  # type: ignore[arg-type]
            fresh = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            fresh.start()
            fresh.join()

        together.play_together([(play, 1)] * 3, Quiet(), "s")
        assert seen == [1, 1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
