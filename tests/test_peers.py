"""The benchmark beside other simulators: the work that it hands out, what it makes of the times. No peer is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark as a module, with the scripts beside it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(FOLDER / "peers")
    monkeypatch.syspath_prepend(FOLDER)
    import peers

    yield peers
    for name in {"peers", "work", "on_shoal", "bare_stack"} - before:
        sys.modules.pop(name, None)


def made(peers: Any, path: Path, model: str, shape: tuple[int, ...]) -> Any:
    from work import Given

    peers.Work(model, model, clients=4, sampled=2, shape=shape, turns=(1, 1), rows=20, batch=5).make(path)
    return Given(path)


@pytest.mark.parametrize(
    ("model", "shape", "size"),
    [("cnn", (32, 32, 3), 62_006), ("simple_cnn", (32, 32, 3), 1_626_442), ("mlp", (784,), 79_510)],
)
def test_shoal_is_given_the_same_tensors(
    peers: Any, tmp_path: Path, model: str, shape: tuple[int, ...], size: int
) -> None:
    import on_shoal

    given = made(peers, tmp_path, model, shape)
    assert len(given.start) == size
    setup = on_shoal.set_up(given, {"kind": "serial"})
    space = setup.world.models["main"].space
    assert space.size == size
    names = [tuple(p.shape) for p in given.model().parameters()]
    assert [space.slots[name].shape for name in space.names] == names
    for client in range(4):
        rows = setup.stream.holding(client, 1).train
        x = setup.stream.dataset.batch(rows)
        expected = given.x[client] if x.dim() == 2 else given.x[client].movedim(1, -1)
        assert torch.equal(x, expected)
        assert torch.equal(setup.stream.dataset.labels_of(rows), given.y[client])


def test_shoals_first_model_is_the_one_of_the_peers(peers: Any, tmp_path: Path) -> None:
    import on_shoal

    from shoal.engine import Serial
    from shoal.experiment import Experiment
    from shoal.models.base import Model

    given = made(peers, tmp_path, "cnn", (32, 32, 3))
    setup = on_shoal.set_up(given, {"kind": "serial"})
    engine = Serial(setup.world.models, setup.stream.dataset, torch.device("cpu"))
    state = on_shoal.started(Experiment(setup, engine), given)
    model: Model = setup.world.models["main"]
    ours = model.build()
    model.space.bind(ours, state.bank["global"].vector.clone(), torch.zeros(model.space.size))
    torch.testing.assert_close(ours(given.x[0]), given.model()(given.x[0]))


def test_the_bare_stack_trains_as_torch_does(peers: Any, tmp_path: Path) -> None:
    import bare_stack

    given = made(peers, tmp_path, "mlp", (784,))
    found = bare_stack.train(given.start, given.x, given.y, batch=5, lr=0.1)
    for c in range(4):
        net = given.model()
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        for begin in range(0, 20, 5):
            sgd.zero_grad()
            s = slice(begin, begin + 5)
            torch.nn.functional.cross_entropy(net(given.x[c, s]), given.y[c, s]).backward()
            sgd.step()
        expected = torch.nn.utils.parameters_to_vector(net.parameters())
        torch.testing.assert_close(found[c], expected, rtol=1e-4, atol=1e-6)


def test_a_model_of_the_work_is_no_view_of_the_first_one(peers: Any, tmp_path: Path) -> None:
    given = made(peers, tmp_path, "mlp", (784,))
    before, net = given.start.clone(), given.model()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
    assert torch.equal(given.start, before)
    assert given.ended(net)["distance"] == pytest.approx(79_510**0.5, rel=1e-5)


def test_ratios_are_of_the_same_repetition(peers: Any) -> None:
    case = peers.Case(1, seconds={"shoal": [1.0, 2.0, 4.0], "pfl": [2.0, 3.0, 4.0], "flower": [9.0, 9.0, 9.0]})
    assert case.ratio("pfl") == [1.5, 1.0, 2.0]
    assert case.fastest == "pfl"
    case.ended = {"shoal": {"loss": 1.0, "distance": 2.0}, "pfl": {"loss": 1.1, "distance": 2.1}}
    assert case.same()
    case.ended["flower"] = {"loss": 1.3, "distance": 2.0}
    assert not case.same()


def test_processor_time_is_that_of_a_family(peers: Any) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    burn = "import time\nwhile time.process_time() < 0.3: pass\ntime.sleep(60)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], start_new_session=True) as process:
        try:
            end = time.monotonic() + 60
            while peers.processor_seconds(process.pid) < 0.25 and time.monotonic() < end:
                time.sleep(0.05)
            assert peers.processor_seconds(process.pid) >= 0.25
        finally:
            os.killpg(process.pid, 9)


def test_a_peer_that_is_not_there_is_left_out_with_the_reason(peers: Any, tmp_path: Path) -> None:
    with pytest.raises(peers.Skipped, match="not installed"):
        peers.environment("pfl", tmp_path, "torch", install=False)
    case = peers.Case(1)
    broken = (sys.executable, "-c", "raise RuntimeError('no such peer')")
    peers.play(case, {"broken": lambda: broken}, tmp_path, repetitions=1)
    assert "no such peer" in case.skipped["broken"]
    assert "broken" not in case.seconds
    assert json.loads(json.dumps(case.skipped)) == case.skipped


def test_rows_of_a_class_are_near_each_other(peers: Any, tmp_path: Path) -> None:
    given = made(peers, tmp_path, "mlp", (784,))
    x, y = given.x.flatten(0, 1).numpy(), given.y.flatten().numpy()
    middles = np.stack([x[y == label].mean(0) for label in np.unique(y)])
    own = middles[np.searchsorted(np.unique(y), y)]
    assert ((x - own) ** 2).sum(1).mean() < ((x - middles.mean(0)) ** 2).sum(1).mean()
