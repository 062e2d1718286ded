"""FedWeIT: whole runs against the same arithmetic in numpy; what is sent, collected, kept and served."""

from __future__ import annotations

from typing import Any

import clustered_lab as lab
import numpy as np
import pytest
import torch
from torch import nn

from shoal.bank import Bank, State
from shoal.engine import make_engine, one_torch_thread
from shoal.errors import ConfigError
from shoal.experiment import Experiment
from shoal.loading import merged
from shoal.methods.fedweit import FedWeit
from shoal.methods.fedweit_parts import decoded, encoded
from shoal.setup import Setup, assemble, resolve_config
from shoal.terms import Capped

LR, L1, L1_MASK, DECAY, PAST = 0.5, 0.02, 0.03, 0.1, 0.7
UNITS, INPUTS = 4, 3
SIZES = [30, 50]


class Toy(nn.Sequential):
    """tanh(x theta^T + b) H^T + c, from 3 numbers over 4 units to 3 classes."""

    def __init__(self, outputs: int) -> None:
        super().__init__(nn.Linear(INPUTS, UNITS), nn.Tanh(), nn.Linear(UNITS, outputs))


def config(method: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """Two clients that swap their tasks after two rounds, and then share the third one."""
    base = {
        "rounds": 6,
        "stream": {"sizes": SIZES, "plan": [[0, 1], [1, 0], [2, 2]], "lasting": 2, "named": True, "fresh": False},
        "model": {"kind": "decomposed", "network": {"kind": "test_fedweit:Toy"}, "parts": 2},
        "local": {"lr": LR},
    }
    own = {"kind": "fedweit", "l1": L1, "l1_mask": L1_MASK, "decay": DECAY, "past": PAST, "threshold": 0.2}
    return merged(lab.config(own | (method or {})), merged(base, parts))


class Run:
    """A run without fault: the states, the first one included, and the lines of each round."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.setup: Setup = assemble(resolve_config(raw), lab.rows())
        self.states: list[State] = []
        self.lines: list[list[dict[str, Any]]] = []
        settings = self.setup.config
        with one_torch_thread():
            models, data = self.setup.world.models, self.setup.stream.dataset
            engine = make_engine(settings.execution, models, data, settings.local.loss)
            experiment = Experiment(self.setup, engine)
            self.states.append(experiment.start())
            while self.states[-1].round < settings.rounds:
                played = experiment.play(self.states[-1])
                self.states.append(played.state)
                self.lines.append(played.lines)
            engine.close()
        for record in ("failed", "rejected", "straggler", "skipped", "diverged", "unchanged"):
            assert not [line for line in self.all() if line.get("record") == record]

    @property
    def method(self) -> FedWeit:
        assert isinstance(self.setup.method, FedWeit)
        return self.setup.method

    def bank(self, round: int = -1) -> Bank:
        return self.states[round].bank

    def all(self, **wanted: Any) -> list[dict[str, Any]]:
        every = [line for lines in self.lines for line in lines]
        return [line for line in every if all(line.get(name) == value for name, value in wanted.items())]


def numbers(run: Run, entry: Any) -> dict[str, np.ndarray]:
    """An entry's parameters by their last names, in double precision."""
    space = run.setup.world.models[entry.model].space
    whole = torch.zeros(space.size)
    for segment in entry.segments:
        whole[space.segments[segment]] = space.part(entry, segment)
    every = {name: space.view(whole, name).double().numpy() for name in space.names}
    names = {"0.base": "B", "0.mask": "m", "0.adaptive": "A", "0.attention": "a", "0.bias": "b"}
    names |= {"2.weight": "H", "2.bias": "c"}
    found = {short: every[f"network.{name}"] for name, short in names.items()}
    covered = {"base": "B", "mask": "m", "adaptive": "A", "attention": "a", "private": "bHc"}
    return {short: found[short] for segment in entry.segments for short in covered[segment]}


def sigmoid(m: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-m)))[:, None]


class Reference:
    """The same in numpy: every client's base and own numbers, the server's base and collected parts."""

    def __init__(self, run: Run, implicit: bool, retroactive: bool) -> None:
        self.run, self.implicit, self.retroactive = run, implicit, retroactive
        self.base = numbers(run, run.bank(0)["base"])["B"]
        self.sent = np.ones(UNITS, dtype=bool)
        self.mine: dict[int, np.ndarray] = {}
        self.own: dict[tuple[int, int], dict[str, Any]] = {}
        self.parts: dict[tuple[int, int], np.ndarray] = {}
        self.task: dict[int, int] = {}
        self.anchor: dict[int, Any] = {}

    def round(self, number: int) -> None:
        tasks = {c: self.run.setup.stream.holding(c, number).task for c in (0, 1)}
        begins = {c: self.task.get(c) != t for c, t in tasks.items()}
        for c in (0, 1):
            if begins[c] and c in self.task:
                part = self.own[c, self.task[c]]["A"]
                self.parts[c, self.task[c]] = np.where(np.abs(part) > 0.2, part, 0)
        answers = {c: self.client(c, tasks[c], begins[c], *self.rows(c, number)) for c in (0, 1)}
        kept = {c: np.abs(self.own[c, tasks[c]]["m"]) for c in (0, 1)}
        # floor(0.3 * 4) + 1 = 2 units are left out.
        masks = {c: np.isin(np.arange(UNITS), np.argsort(kept[c])[2:]) for c in (0, 1)}
        self.sent = masks[0] | masks[1]
        for unit in np.flatnonzero(self.sent):
            who = [c for c in (0, 1) if masks[c][unit]]
            self.base[unit] = np.average([answers[c][unit] for c in who], axis=0, weights=[SIZES[c] for c in who])
        self.task = tasks

    def rows(self, client: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        held, data = self.run.setup.stream.holding(client, number).train, self.run.setup.stream.dataset
        return data.features[held].double().numpy(), np.eye(3)[data.labels[held].numpy()]

    def client(self, c: int, task: int, begins: bool, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        before = self.mine.get(c)
        earlier = [t for i, t in self.own if i == c and t != task]
        if begins and earlier:
            thetas = {t: before * sigmoid(self.own[c, t]["m"]) + self.own[c, t]["A"] for t in earlier}
            self.anchor[c] = (before, thetas)
        start = self.base if before is None else np.where(self.sent[:, None], self.base, before)
        if (c, task) not in self.own:
            fresh = {k: v.copy() for k, v in numbers(self.run, self.run.method.fresh[task]).items()}
            pool = sorted(key for key in self.parts if key[0] != c)
            latest = [max((p for p in pool), key=lambda p: self.order.index(p))] if pool else []
            self.own[c, task] = {**fresh, "A": start / 3, "pool": latest}
        w = self.own[c, task]
        others = [self.parts[key] for key in w["pool"]]
        w["B"] = start.copy()
        theta = w["B"] * sigmoid(w["m"]) + w["A"] + sum(a * p for a, p in zip(w["a"], others, strict=False))
        hidden = np.tanh(x @ theta.T + w["b"])
        scores = hidden @ w["H"].T + w["c"]
        powers = np.exp(scores - scores.max(1, keepdims=True))
        away = (powers / powers.sum(1, keepdims=True) - y) / len(y)
        inner = (away @ w["H"]) * (1 - hidden**2)
        step = inner.T @ x
        s = sigmoid(w["m"])
        g = {"B": step * s, "m": (step * w["B"] * s * (1 - s)).sum(1), "A": step + L1 * np.sign(w["A"])}
        g["m"] += L1_MASK * np.sign(w["m"])
        g["a"] = np.array([(step * p).sum() for p in others] + [0.0] * (2 - len(others)))
        g |= {"b": inner.sum(0), "H": away.T @ hidden, "c": away.sum(0)}
        # Each penalty is k / 2 (w - anchor)^2 for some k and anchor.
        squares = {"A": (DECAY, 0.0), "m": (DECAY, 0.0)}
        if not earlier:
            squares["B"] = (DECAY, 0.0)
        elif not self.retroactive:
            scales = [sigmoid(self.own[c, t]["m"]) for t in earlier]
            k = PAST * sum(scale**2 for scale in scales)
            wanted = sum(
                scale * (self.anchor[c][1][t] - self.own[c, t]["A"]) for scale, t in zip(scales, earlier, strict=True)
            )
            squares["B"] = (k, PAST * wanted / k)
        else:
            for t in earlier:
                scale, theta_t = sigmoid(self.own[c, t]["m"]), self.anchor[c][1][t]
                best = soft(theta_t - w["B"] * scale)
                g["B"] = g["B"] + PAST * scale * (w["B"] * scale + best - theta_t)
        for name, (k, wanted) in squares.items():
            if not self.implicit:
                g[name] = g[name] + k * (w[name] - wanted)
        for name in g:
            w[name] = w[name] - LR * g[name]
        for name, (k, wanted) in squares.items():
            if self.implicit:
                w[name] = (w[name] + LR * k * wanted) / (1 + LR * k)
        if self.retroactive:
            for t in earlier:
                scale, theta_t = sigmoid(self.own[c, t]["m"]), self.anchor[c][1][t]
                self.own[c, t]["A"] = soft(theta_t - w["B"] * scale)
        self.mine[c] = w["B"]
        return np.asarray(w["B"])

    @property
    def order(self) -> list[tuple[int, int]]:
        return list(self.parts)


def soft(values: np.ndarray) -> np.ndarray:
    """The A that makes PAST / 2 (A - values)^2 + L1 |A| smallest."""
    return np.asarray(np.sign(values) * np.maximum(np.abs(values) - L1 / PAST, 0))


@pytest.mark.parametrize(("implicit", "retroactive"), [(True, False), (False, False), (True, True), (False, True)])
def test_six_rounds_of_two_clients_and_three_tasks(implicit: bool, retroactive: bool) -> None:
    run = Run(config({"implicit": implicit, "retroactive": retroactive}))
    reference, unsent = Reference(run, implicit, retroactive), 0
    for number in range(1, 7):
        reference.round(number)
        bank = run.bank(number)
        unsent += (~reference.sent).sum()
        assert bank["base"].extra["units"].tolist() == reference.sent.tolist()
        np.testing.assert_allclose(numbers(run, bank["base"])["B"], reference.base, atol=2e-5)
        for c in (0, 1):
            np.testing.assert_allclose(numbers(run, bank[f"base/{c}"])["B"], reference.mine[c], atol=2e-5)
        for (c, t), own in reference.own.items():
            entry = bank[f"own/{c}/{t}"]
            assert [tuple(pair) for pair in entry.extra["pool"].tolist()] == own["pool"]
            for name, found in numbers(run, entry).items():
                np.testing.assert_allclose(found, own[name], atol=2e-5, err_msg=f"{name} of {c}, {t}")
        for (c, t), part in reference.parts.items():
            stored = decoded(bank[f"part/{c}/{t}"], UNITS * INPUTS).view(UNITS, INPUTS)
            np.testing.assert_allclose(stored.numpy(), part, atol=2e-5)
    assert unsent, "some unit must have been sent by nobody, or nothing was kept by the clients"
    assert any(own["pool"] for own in reference.own.values())


def test_what_is_sent_is_counted_in_its_own_bytes() -> None:
    run = Run(config())
    base, units, bits = 4 * UNITS * INPUTS, UNITS, 2  # 12 numbers of 4 bytes, one byte for each unit, 12 bits
    down = {line["round"]: line["value"] for line in run.all(metric="total_bytes_down")}
    up = {line["round"]: line["value"] for line in run.all(metric="total_bytes_up")}
    # Two of four units go up, and a bit for each of the numbers.
    assert (down[1], up[1]) == (2 * (base + units), 2 * (base // 2 + bits))
    parts = [run.bank(3)[f"part/{c}/{c}"] for c in (0, 1)]
    collected = sum(4 * part.vector.numel() + bits for part in parts)
    assert (down[3] - down[1], up[3] - up[1]) == (collected, collected)
    assert (down[4], up[4]) == (down[1], up[1])
    assert sum(part.bytes for part in parts) == collected


def test_what_lies_at_a_client_is_its_own_and_what_it_borrows() -> None:
    run = Run(config(evaluate={"measures": ["costs"]}))
    (last,) = [line for line in run.all(metric="bank_bytes") if line["round"] == 6]
    # The base as it came with a byte for each unit, and the copy; of each task mask, part, attention of two parts,
    # biases and head, and client and task of each part that it borrows from.
    each = 0
    for c in (0, 1):
        each += 2 * 4 * UNITS * INPUTS + UNITS
        for t in range(3):
            pool = run.bank()[f"own/{c}/{t}"].extra["pool"].tolist()
            each += 4 * (UNITS + UNITS * INPUTS + 2 + UNITS + 3 * UNITS + 3) + 16 * len(pool)
        each += sum(4 * run.bank()[f"part/{other}/{t}"].vector.numel() + 2 for other, t in pool)
    assert pool
    assert last["held"] == each / 2


def test_a_part_is_encoded_without_loss() -> None:
    values = torch.randn(29, generator=torch.Generator().manual_seed(0))
    where = values.abs() > 0.5
    entry = encoded(values, where, 3.0)
    assert entry.bytes == 4 * int(where.sum()) + 4
    assert torch.equal(decoded(entry, 29), torch.where(where, values, 0.0))


def test_served_is_the_trained_model_but_for_small_numbers() -> None:
    run = Run(config({"threshold": 0.0}))
    (keys,) = run.method.candidates(run.bank(), {"task": 2, "client": 1})
    assert keys[:2] == ("base/1", "own/1/2")
    assert [key.split("/")[:2] for key in keys[2:]] == [["part", "0"]]
    own = numbers(run, run.bank()["own/1/2"]) | numbers(run, run.bank()["base/1"])
    part = decoded(run.bank()[keys[2]], UNITS * INPUTS).view(UNITS, INPUTS).double().numpy()
    theta = own["B"] * sigmoid(own["m"]) + own["A"] + own["a"][0] * part
    x = torch.randn(5, INPUTS, generator=torch.Generator().manual_seed(1))
    served, model = run.method.compose(run.bank(), keys), run.setup.world.models["main"]
    module = model.build()
    model.space.bind(module, served.vector.clone(), torch.zeros(model.space.size))
    expected = np.tanh(x.double().numpy() @ theta.T + own["b"]) @ own["H"].T + own["c"]
    np.testing.assert_allclose(module(x).detach().numpy(), expected, atol=1e-5)


def test_small_numbers_of_a_part_serve_nobody() -> None:
    run = Run(config())
    for c in (0, 1):
        served = run.method.compose(run.bank(), (f"base/{c}", f"own/{c}/2"))
        space = run.setup.world.models["main"].space
        part, own = served.vector[space.segments["adaptive"]], numbers(run, run.bank()[f"own/{c}/2"])["A"].ravel()
        assert 0 < (np.abs(own) <= 0.2).sum() < own.size
        np.testing.assert_allclose(part.numpy(), np.where(np.abs(own) > 0.2, own, 0), atol=1e-7)


def test_an_exchange_that_asks_nobody_counts_for_nothing() -> None:
    run = Run(config(rounds=3))
    models, data = run.setup.world.models, run.setup.stream.dataset
    experiment = Experiment(run.setup, make_engine(run.setup.config.execution, models, data, "cross_entropy"))
    assert [experiment.asking(state) for state in run.states] == [1, 1, 2, 1]
    assert experiment.trial(run.states[0]) == 2


def test_who_answers_for_what() -> None:
    run = Run(config())
    found = {tuple(keys[:2]) for keys in run.method.candidates(run.bank(), {"task": 0})}
    assert found == {("base/0", "own/0/0"), ("base/1", "own/1/0")}
    assert len(run.method.candidates(run.bank(), {"client": 0})) == 3
    assert run.method.candidates(run.bank(), {"concept": 1}) == run.method.candidates(run.bank(), {"task": 1})
    assert run.method.candidates(run.bank(0), {"task": 0}) == []


def test_measured_by_clients_each_answers_for_its_own_tasks_so_far() -> None:
    stream = {"kind": "tasks", "tasks": 3, "targets": "client", "clients": 2, "head": "shared"}
    run = Run(config(stream=stream))
    for round, phases in ((2, 1), (4, 2), (6, 3)):
        found = run.all(metric="accuracy", round=round)
        assert len({(line["client"], line["task"]) for line in found}) == len(found) == 2 * phases
        for line in found:
            assert line["entry"].split("+")[:2] == [f"base/{line['client']}", f"own/{line['client']}/{line['task']}"]


@pytest.mark.parametrize(("pool", "most"), [("latest", 2), ("all", 3)])
def test_the_pool_is_bounded(pool: str, most: int) -> None:
    # Three clients go through three tasks again and again.
    plan = [[(step + c) % 3 for c in range(3)] for step in range(9)]
    stream = {"sizes": [8, 8, 8], "plan": plan, "lasting": 1}
    run = Run(config({"pool": pool, "sparsity": 0.0}, stream=stream, model={"parts": 3}, rounds=9))
    for state in run.states:
        keys = list(state.bank.entries)
        assert sum(key.startswith("part/") for key in keys) <= 9
    for c in range(3):
        for t in range(3):
            listed = [tuple(pair) for pair in run.bank()[f"own/{c}/{t}"].extra["pool"].tolist()]
            assert len(set(listed)) == len(listed) == most
            assert all(other != c for other, _ in listed)
            assert pool == "all" or len({other for other, _ in listed}) == most


def test_a_part_that_changed_is_sent_again_and_no_other() -> None:
    # Client 1 stays at its task: client 0 comes and goes, and holds client 1's part from round 4 on.
    plan = [[0, 1], [0, 2], [1, 2], [0, 2], [1, 2]]
    # Whoever is asked alone for its part makes a quorum.
    run = Run(config(stream={"plan": plan, "lasting": 1}, rounds=5, participation={"minimum": 2}))
    base = 2 * (4 * UNITS * INPUTS + UNITS)
    down = [line["value"] - base for line in run.all(metric="total_bytes_down")]
    part = run.bank(2)["part/1/1"].bytes
    assert down == [0, 0, part, 0, 0]


def test_capped_is_the_gradient_of_the_smallest_sum() -> None:
    rng = np.random.default_rng(0)
    scale, anchor, w = (torch.from_numpy(rng.normal(size=40)) for _ in range(3))
    g = torch.zeros(40, dtype=torch.float64)
    Capped(PAST, L1, scale, anchor).gradient(w, g, slice(0, 40))

    def least(values: np.ndarray) -> np.ndarray:
        grid = np.linspace(-8, 8, 16_001)  # a second vector by brute force
        away = (scale.numpy() * values - anchor.numpy())[:, None] + grid
        return np.asarray((PAST / 2 * away**2 + L1 * np.abs(grid)).min(1))

    slope = (least(w.numpy() + 1e-2) - least(w.numpy() - 1e-2)) / 2e-2
    np.testing.assert_allclose(g.numpy(), slope, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stream": {"named": False}}, "keeps a model for each task"),
        ({"model": {"kind": "mlp", "hidden": [4]}}, "not decomposed"),
        ({"local": {"learner": {"kind": "scaffold"}}}, "joins numbers of all clients"),
        ({"local": {"compression": {"kind": "topk", "share": 0.1}}}, "local.compression would change nothing"),
        ({"method": {"retroactive": True, "past": 0.0}}, "set past above 0"),
        ({"method": {"implicit": False, "past": 4.0}}, "implicit: true"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        assemble(resolve_config(config(changes.pop("method", None), **changes)), lab.rows())


def test_learners_that_stay_with_the_client_compose() -> None:
    held = Run(config(rounds=2, local={"learner": {"kind": "proximal", "mu": 1e6, "implicit": True}}))
    start = held.bank(0)["base"].vector
    for key in ("base", "base/0", "base/1"):
        torch.testing.assert_close(held.bank()[key].vector, start, rtol=0, atol=1e-4)
    ewc = Run(config(local={"learner": {"kind": "ewc", "fisher": "batch"}}))
    kept = {name for name in ewc.states[-1].clients[0] if name.startswith("ewc/")}
    assert kept == {f"ewc/own/0/{t}" for t in range(3)}
