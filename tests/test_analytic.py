"""Whole runs whose every number can be worked out by hand: a model with one weight and constant gradients."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.data.arrays import from_arrays
from shoal.data.dataset import Dataset
from shoal.folder import RunFolder
from shoal.losses import Loss
from shoal.messages import Assignment, Client, Update
from shoal.methods.base import Program
from shoal.methods.fedavg import FedAvg
from shoal.streams.base import Holding, Stream, Target

HERE = "test_analytic"


class OneWeight(nn.Module):
    """w, applied to one feature; starts at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


class Slope(Loss):
    """mean(w x): its gradient is mean(x), whatever w is. Its score is NaN for the row that holds 7."""

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor, **args: float) -> Tensor:
        out: Tensor = module(x).mean()
        return out

    def score(self, outputs: Tensor, y: Tensor, **args: Any) -> tuple[Tensor, Tensor]:
        flat = outputs[:, 0].float()
        flat = torch.where(flat == 7, torch.nan, flat)
        return flat, (flat > 0).float()


class ByValue(Stream):
    """Client c holds the rows whose label is c; every client is a target of its own."""

    def __init__(self, data: Dataset, seed: int, rounds: int, heads_by_task: bool, *, clients: int) -> None:
        self.dataset = data
        self.clients = clients
        self.outputs = 1

    def holding(self, client: int, round: int) -> Holding:
        rows = self.dataset.train[self.dataset.labels[self.dataset.train] == client]
        return Holding(rows, rows[:0], self.targets(round)[client].test)

    def targets(self, round: int) -> list[Target]:
        test = self.dataset.test
        return [Target({"client": c}, test[self.dataset.labels[test] == c], test[:0]) for c in range(self.clients)]


class Raising(FedAvg):
    """FedAvg with clients that fail: ``who`` raise in every round."""

    def __init__(self, *args: Any, who: list[int] = [1]) -> None:  # noqa: B006
        super().__init__(*args)
        self.who = who

    def train(self, given: Assignment, client: Client) -> Program:
        if client.id in self.who:
            raise ZeroDivisionError("no luck")
        update = yield from super().train(given, client)
        return update


class Counting(FedAvg):
    """FedAvg whose clients count their own rounds in their private state."""

    def train(self, given: Assignment, client: Client) -> Program:
        update = yield from super().train(given, client)
        seen = [*client.state.get("rounds", []), client.when.round]  # type: ignore[misc]
        return Update(update.parts, update.weight, {"rounds": seen, "name": f"client {client.id}"})


def run(
    tmp_path: Path, gradients: dict[int, list[float]], test: dict[int, list[float]] | None = None, **more: Any
) -> Any:
    """Clients whose rows are these numbers: a full-batch step moves w by -lr times their mean."""

    def table(values: dict[int, list[float]]) -> tuple[np.ndarray, np.ndarray]:
        x = np.array([[v] for rows in values.values() for v in rows], dtype=np.float32)
        return x, np.array([c for c, rows in values.items() for _ in rows])

    data = from_arrays(*table(gradients), *table(test or {c: [1.0] for c in gradients}))
    # The features as they are: from_arrays normalises.
    ones = torch.ones(1)
    data = Dataset(**{**vars(data), "scale": ones, "offset": ones * 0})
    config = {
        "rounds": 1,
        "stream": {"kind": f"{HERE}:ByValue", "clients": len(gradients)},
        "model": {"kind": f"{HERE}:OneWeight"},
        "local": {"lr": 1.0, "batch_size": 1000, "loss": f"{HERE}:Slope"},
        "execution": {"kind": "workers", "workers": 2},
    }
    changes = {key.replace("__", "."): value for key, value in more.items()}
    return shoal.run(config, changes, out=tmp_path / f"run{len(list(tmp_path.iterdir()))}", data=data)


def weight(result: Any) -> float:
    from safetensors.torch import load_file

    return float(load_file(result.folder / "model.safetensors")["global/linear.weight"])


def records(result: Any, kind: str) -> list[dict[str, Any]]:
    return [line for line in RunFolder(result.folder).lines() if line.get("record") == kind]


@pytest.mark.parametrize("order", [(1.0, 2.0, -1.0), (-1.0, 1.0, 2.0)])
def test_every_client_starts_from_the_servers_model(tmp_path: Path, order: tuple[float, ...]) -> None:
    # Ends at 1 - g: 0, -1, 2 with mean 1/3. Were client 2 to start where client 1 ended, the mean would be -1 or 2/3.
    result = run(tmp_path, {c: [g] for c, g in enumerate(order)})
    assert weight(result) == pytest.approx(1 / 3)


def test_weights_are_those_of_the_rows_of_who_answered(tmp_path: Path) -> None:
    # 3 rows of 1 and 1 row of -3: -(3 * 1 - 3) / 4 = 0, unweighted -(1 - 3) / 2 = 1.
    gradients = {0: [1.0, 1.0, 1.0], 1: [-3.0]}
    assert weight(run(tmp_path, gradients)) == pytest.approx(1.0)
    assert weight(run(tmp_path, gradients, method__mean="uniform")) == pytest.approx(2.0)
    listed = {"kind": "listed", "weights": [1.0, 0.5]}
    # Ends 0 and 4, weights 2/3 and 1/3.
    assert weight(run(tmp_path, gradients, method__mean=listed)) == pytest.approx(4 / 3)


def test_one_client_split_into_two_with_the_same_rows_changes_nothing(tmp_path: Path) -> None:
    whole = run(tmp_path, {0: [1.0, 2.0, 4.0, 5.0], 1: [-2.0]}, rounds=3)
    split = run(tmp_path, {0: [1.0, 5.0], 1: [2.0, 4.0], 2: [-2.0]}, rounds=3)
    # (1 + 2 + 4 + 5 - 2) / 5 = 2 a round.
    assert weight(whole) == pytest.approx(1 - 3 * 2)
    assert weight(split) == pytest.approx(1 - 3 * 2)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        # Delta is -2 in every round. FedSGD at 0.5: three times -1.
        ({"kind": "sgd", "lr": 0.5}, 1 - 3.0),
        # m = -2 (1 - 0.5), (1 - 0.25), (1 - 0.125).
        ({"kind": "momentum", "lr": 1.0, "beta": 0.5}, 1 - 2 * (0.5 + 0.75 + 0.875)),
        # v = 0 + 4, 8, 12 and tau 1: lr * 2 / (sqrt(v) + 1).
        (
            {"kind": "adagrad", "lr": 0.1, "tau": 1.0, "v_init": "zero"},
            1 - 0.2 * (1 / 3 + 1 / (math.sqrt(8) + 1) + 1 / (math.sqrt(12) + 1)),
        ),
    ],
)
def test_servers_in_a_whole_run(tmp_path: Path, server: dict[str, Any], expected: float) -> None:
    result = run(tmp_path, {0: [1.0], 1: [3.0]}, rounds=3, method={"kind": "fedavg", "server": server})
    assert weight(result) == pytest.approx(expected, rel=1e-6)
    assert result.summary["server"]["lr"] == server["lr"]


def test_drift_bytes_and_steps_by_hand(tmp_path: Path) -> None:
    result = run(tmp_path, {0: [1.0], 1: [3.0]}, rounds=2, local__epochs=2, local__batch_size=1)
    # One step an epoch: squared distances 1, 4 and 9, 36; over clients and epochs (1 + 4 + 9 + 36) / 4.
    assert result.summary["client_drift"] == pytest.approx(12.5)
    assert result.summary["client_steps"] == 2 * 2 * 2
    assert result.summary["bytes_down_per_round"] == result.summary["bytes_up_per_round"] == 4
    assert result.summary["total_bytes_up"] == 2 * 2 * 4


def test_a_raising_client_is_named_and_the_round_goes_on(tmp_path: Path) -> None:
    result = run(tmp_path, {0: [1.0], 1: [100.0], 2: [3.0]}, method=f"{HERE}:Raising", rounds=2)
    assert weight(result) == pytest.approx(1 - 2 * 2)
    failed = records(result, "failed")
    assert [(line["round"], line["client"]) for line in failed] == [(1, 1), (2, 1)]
    assert "ZeroDivisionError: no luck" in failed[0]["reason"]
    assert result.summary["problems"]["failed"] == 2


def test_a_round_in_which_nobody_is_left_changes_nothing(tmp_path: Path) -> None:
    everyone = {"kind": f"{HERE}:Raising", "who": [0, 1]}
    result = run(tmp_path, {0: [1.0], 1: [3.0]}, method=everyone, rounds=2)
    assert weight(result) == 1.0
    assert len(records(result, "unchanged")) == 2
    # A quorum of two of three.
    one = {"kind": f"{HERE}:Raising", "who": [1]}
    gradients = {0: [1.0], 1: [9.0], 2: [3.0]}
    assert weight(run(tmp_path, gradients, method=one, participation__minimum=2)) == pytest.approx(-1.0)
    assert weight(run(tmp_path, gradients, method=one, participation__minimum=3)) == 1.0


def test_nobody_holds_a_row(tmp_path: Path) -> None:
    # Client 1 exists, but all rows are client 0's, and client 0 never takes part.
    gradients = {0: [1.0], 1: [2.0], 2: [3.0]}
    none = run(tmp_path, gradients, stream__clients=4, participation__probabilities=[0, 0, 0, 1.0], rounds=2)
    assert weight(none) == 1.0
    assert [line["client"] for line in records(none, "skipped")] == [3, 3]
    some = run(tmp_path, gradients, stream__clients=4)
    assert weight(some) == pytest.approx(1 - 2)


def test_private_state_stays_with_its_client(tmp_path: Path) -> None:
    gradients = {c: [1.0] for c in range(10)}
    result = run(tmp_path, gradients, method=f"{HERE}:Counting", rounds=5, participation__count=3)
    state, _ = RunFolder(result.folder).checkpoints.load()
    assert state is not None
    took_part: dict[int, list[int]] = {}
    for line in records(result, "round"):
        for client in line["participants"]:
            took_part.setdefault(client, []).append(line["round"])
    assert sum(len(rounds) for rounds in took_part.values()) == 15
    assert {c: s["rounds"] for c, s in state.clients.items()} == took_part
    assert all(s["name"] == f"client {c}" for c, s in state.clients.items())


def test_a_target_that_cannot_be_scored_is_null_and_the_run_goes_on(tmp_path: Path) -> None:
    # The weight stays 1, so client 0's row of 7 gives NaN in every round.
    result = run(tmp_path, {0: [1.0], 1: [-1.0]}, test={0: [2.0, 7.0], 1: [1.0]}, rounds=2)
    losses = [line for line in RunFolder(result.folder).lines() if line.get("metric") == "loss"]
    assert [line["value"] for line in losses if line["client"] == 0] == [None, None]
    assert [line["value"] for line in losses if line["client"] == 1] == [1.0, 1.0]
    assert result.summary["loss"] == 1.0
    text = (result.folder / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert result.summary["finished"]


def test_sizes_1_and_99_show_both_means(tmp_path: Path) -> None:
    # The weight stays 1: a row is right where it is positive. Accuracy 0 on one row, 1 on 99 rows.
    result = run(tmp_path, {0: [1.0], 1: [-1.0]}, test={0: [-1.0], 1: [1.0] * 99})
    assert result.summary["acc"] == 0.5
    assert result.summary["acc_weighted"] == 0.99


@pytest.mark.parametrize(
    "more", [{"evaluate__every": 0}, {"rounds": 0}, {"evaluate__measures": []}, {"evaluate__every": 99}]
)
def test_every_switch_off_still_ends_in_a_report(tmp_path: Path, more: dict[str, Any]) -> None:
    result = run(tmp_path, {0: [1.0], 1: [3.0]}, **{"rounds": 2, **more})
    assert result.report.exists()
    assert result.summary["finished"]
    assert (result.summary.get("acc") is None) == (more != {"evaluate__every": 99})
    json.loads((result.folder / "summary.json").read_text())
