"""Runs in their folders: what a resume refuses and warns of, locks, estimates, and the Python interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.bank import State
from shoal.checkpoint import Checkpoints
from shoal.data.arrays import from_arrays
from shoal.data.dataset import Dataset
from shoal.engine import make_engine
from shoal.errors import RunError
from shoal.estimate import duration, estimate
from shoal.experiment import Experiment, Played
from shoal.folder import RunFolder
from shoal.progress import Quiet
from shoal.running import Interrupted, start_run
from shoal.setup import assemble, resolve_config

CONFIG: dict[str, Any] = {
    "rounds": 4,
    "stream": {"kind": "static", "clients": 3},
    "model": {"kind": "mlp", "hidden": [4]},
    "execution": {"kind": "serial"},
}


def table(seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return from_arrays(rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3)


class Listener(Quiet):
    """Remembers what was said; interrupts after a round if asked to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.said: list[str] = []
        self.stop_after = stop_after

    def say(self, text: str) -> None:
        self.said.append(text)

    def played(self, round: int, lines: list[dict[str, Any]]) -> None:
        if round == self.stop_after:
            raise KeyboardInterrupt


def interrupted(path: Path, after: int = 2) -> RunFolder:
    with pytest.raises(Interrupted, match=f"after round {after}; go on with: shoal resume {path}"):
        start_run(resolve_config({**CONFIG, "data": "arrays"}), path, dataset=table(), progress=Listener(after))
    return RunFolder(path)


def test_an_interrupted_run_goes_on_to_the_same_lines(tmp_path: Path) -> None:
    whole = shoal.run(CONFIG, out=tmp_path / "whole", data=table())
    for after in (1, 2, 3, 4):
        folder = interrupted(tmp_path / f"cut{after}", after)
        assert not folder.finished
        shoal.resume(folder.path, data=table())
        for name in ("metrics.jsonl", "model.safetensors"):
            assert (folder.path / name).read_bytes() == (whole.folder / name).read_bytes()
        rounds = [line["round"] for line in map(json.loads, (folder.path / "timings.jsonl").read_text().splitlines())]
        assert rounds == [1, 2, 3, 4]


def test_an_unfinished_run_points_to_resume(tmp_path: Path) -> None:
    interrupted(tmp_path / "run")
    with pytest.raises(RunError, match="unfinished run of this configuration; go on with: shoal resume"):
        shoal.run(CONFIG, out=tmp_path / "run", data=table())
    with pytest.raises(RunError, match="unfinished run of another configuration"):
        shoal.run(CONFIG, {"local.lr": 0.2}, out=tmp_path / "run", data=table())


def test_resume_refuses_other_data(tmp_path: Path) -> None:
    folder = interrupted(tmp_path / "run")
    with pytest.raises(RunError, match="not those that the run was started with"):
        shoal.resume(folder.path, data=table(seed=1))
    with pytest.raises(shoal.ShoalError, match="data="):
        shoal.resume(folder.path)


def test_resume_warns_of_other_versions(tmp_path: Path) -> None:
    folder = interrupted(tmp_path / "run")
    environment = folder.environment()
    environment["packages"]["numpy"] = "0.9"
    folder.write_json("environment.json", environment)
    listener = Listener()
    shoal.resume(folder.path, data=table(), progress=listener)
    assert any("versions changed" in text and "numpy 0.9 ->" in text for text in listener.said)


def test_lines_that_were_cut_from_outside_are_played_again_from_the_checkpoint_before(tmp_path: Path) -> None:
    whole = shoal.run(CONFIG, out=tmp_path / "whole", data=table())
    folder = interrupted(tmp_path / "run")
    metrics = folder.path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-5])
    listener = Listener()
    shoal.resume(folder.path, data=table(), progress=listener)
    assert "checkpoint of round 2: counts on lines that metrics.jsonl has lost" in " ".join(listener.said)
    assert metrics.read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()


def test_resume_refuses_lines_that_no_checkpoint_goes_without(tmp_path: Path) -> None:
    folder = interrupted(tmp_path / "run")
    metrics = folder.path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:50])
    with pytest.raises(RunError, match="changed from outside"):
        shoal.resume(folder.path, data=table())
    assert metrics.stat().st_size == 50


def test_a_folder_is_locked_while_it_is_used(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked(), pytest.raises(RunError, match="another process"), RunFolder(tmp_path / "run").locked():
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"), RunFolder(tmp_path / "file").locked():
        pass


def test_data_and_configuration_must_agree(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="leave one of them out"):
        shoal.run(CONFIG, {"data": "digits"}, out=tmp_path / "run", data=table())


def test_results_read_from_their_folder(tmp_path: Path) -> None:
    result = shoal.run(CONFIG, out=tmp_path / "run", data=table())
    frame = result.frame()
    assert set(frame["round"]) == {1, 2, 3, 4}
    assert set(frame.query("metric == 'accuracy'")["rows"]) == {12}
    assert result.summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert result.report.exists()
    empty = shoal.run(CONFIG, {"rounds": 0, "evaluate.measures": []}, out=tmp_path / "empty", data=table())
    assert list(empty.frame().columns) == ["round", "metric", "value"]


def test_torch_threads_are_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        shoal.run(CONFIG, {"execution": {"kind": "workers", "workers": 2}}, out=tmp_path / "run", data=table())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_estimate_changes_nothing_and_scales_with_the_rounds() -> None:
    def guess(rounds: int) -> tuple[float, State, Played]:
        setup = assemble(resolve_config({**CONFIG, "rounds": rounds, "data": "arrays"}), table())
        engine = make_engine(setup.config.execution, setup.world.models, setup.stream.dataset, "cross_entropy")
        experiment = Experiment(setup, engine)
        state = experiment.start()
        found = estimate(experiment, state)
        assert found is not None
        assert found.clients == 3
        assert found.seconds == pytest.approx(rounds * (3 * found.client_seconds + found.evaluation_seconds))
        assert str(found).startswith("about ")
        return found.seconds, state, experiment.play(state)

    seconds, state, played = guess(1000)
    assert seconds > 0
    setup = assemble(resolve_config({**CONFIG, "rounds": 1000, "data": "arrays"}), table())
    untouched = Experiment(
        setup, make_engine(setup.config.execution, setup.world.models, setup.stream.dataset, "cross_entropy")
    )
    assert untouched.play(untouched.start()).lines == played.lines
    assert state.round == 0
    assert estimate(untouched, State(1000, played.state.bank)) is None


@pytest.mark.parametrize(("seconds", "text"), [(45, "45 s"), (240, "4 min"), (9000, "2.5 h")])
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_models_can_be_read_without_shoal(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    result = shoal.run(CONFIG, {"model": {"kind": "cnn"}}, out=tmp_path / "run", data=images())
    tensors = load_file(result.folder / "model.safetensors")
    state, _ = RunFolder(result.folder).checkpoints.load()
    assert state is not None
    module = (
        assemble(resolve_config({**CONFIG, "model": "cnn", "data": "arrays"}), images()).world.models["main"].build()
    )
    loaded = {name.removeprefix("global/"): value for name, value in tensors.items()}
    assert {n: v.shape for n, v in loaded.items()} == {n: p.shape for n, p in module.named_parameters()}
    module.load_state_dict(loaded, strict=False)
    # The same numbers in another order: 4-d weights lie channels-last in an entry's vector.
    assert torch.equal(
        torch.cat([v.reshape(-1) for v in loaded.values()]).sort().values, state.bank["global"].vector.sort().values
    )


def images() -> Dataset:
    rng = np.random.default_rng(0)
    return from_arrays(rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8), np.arange(60) % 3)


def test_checkpoints_that_cost_too_much_are_put_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    save = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", lambda self, state: (saved.append(state.round), save(self, state))[1])
    every = shoal.run(CONFIG, {"rounds": 6}, out=tmp_path / "every", data=table())
    saved.clear()
    monkeypatch.setattr("shoal.running.CHECKPOINT_SHARE", -1.0)
    seldom = shoal.run(CONFIG, {"rounds": 6}, out=tmp_path / "seldom", data=table())
    assert saved == [1, 6]  # the first, so that there is one, and the last
    saved.clear()
    never = shoal.run(CONFIG, {"rounds": 6, "checkpoint.every": 0}, out=tmp_path / "never", data=table())
    assert saved == [6]
    for result in (seldom, never):
        for name in ("metrics.jsonl", "model.safetensors"):
            assert (result.folder / name).read_bytes() == (every.folder / name).read_bytes()
