"""Need: a local optimiser that outlives the round. Here: Adam's moments in the client's private state."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from example_lab import config, digits, on_digits, play, prove

from shoal.data.dataset import inputs
from shoal.learners.base import Learner
from shoal.messages import Part


class Kept(Learner):
    """Plain training whose optimiser goes on where it stopped; nothing of it is ever sent."""

    def fit(self, key, start, entry, client, **request):
        slots = client.state.get(f"kept/{key}", {})
        result = yield self.request(start, client, slots=slots, **request)
        part = Part(result.vector, result.buffers, steps=result.steps, loss=result.loss)
        return part, {f"kept/{key}": result.slots}


KEPT = {"learner": {"kind": "test_example_kept_adam:Kept"}}
SETTINGS = {
    "adam": ({"optimizer": "adam", "lr": 0.01}, lambda p: torch.optim.Adam(p, lr=0.01)),
    "adamw": (
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    ),
    "momentum": (
        {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_one_client_equals_torch_optim_over_four_rounds(name):
    local, make = SETTINGS[name]
    raw = config(rounds=4, stream={"sizes": [40]}, local={**local, **KEPT, "batch_size": 64, "epochs": 2})
    run = play(raw)
    module = run.setup.world.models["main"].build()
    torch.nn.utils.vector_to_parameters(run.states[0].bank["global"].vector, module.parameters())
    optimizer = make(module.parameters())
    rows = run.setup.stream.holding(0, 1).train
    for state in run.states[1:]:
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(module(inputs(digits().batch(rows))), digits().wanted(rows)).backward()
            optimizer.step()
        expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
        torch.testing.assert_close(state.bank["global"].vector, expected, rtol=1e-4, atol=2e-6)
    fresh = play({**raw, "local": {**raw["local"], "learner": {"kind": "plain"}}})
    assert float((fresh.bank["global"].vector - expected).abs().max()) > 1e-3


def test_the_laws():
    run = prove(config(local={**KEPT, "optimizer": "adam", "lr": 0.01}, participation={"count": 3}))
    steps = {}
    for record in run.all(record="round"):
        for client in record["participants"]:
            rows = len(run.setup.stream.holding(client, 1).train)
            steps[client] = steps.get(client, 0) + -(-rows // 16)
    kept = {i: int(numbers["kept/global"]["steps"]) for i, numbers in run.states[-1].clients.items()}
    assert kept == {i: steps[i] for i in kept}
    assert sorted(kept) == sorted(steps)


def test_nothing_of_it_is_sent():
    run = play(config(local={**KEPT, "optimizer": "adam"}, rounds=2))
    size = 4 * run.bank["global"].vector.numel()
    assert {line["value"] for way in ("down", "up") for line in run.all(metric=f"bytes_{way}")} == {size}


def test_on_digits(tmp_path):
    local = {**KEPT, "optimizer": "adam", "lr": 0.02}
    assert on_digits(tmp_path / "run", local=local).summary["acc"] > 0.5
