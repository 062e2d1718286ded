"""Need: numbers of a client's own, numbers that travel with the entry, and a server half. Here: SCAFFOLD."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from example_lab import QUADRATICS, changed, config, on_digits, play, prove, quadratics

from shoal.learners.base import Learner
from shoal.messages import Part
from shoal.terms import Shift


class Scaffold(Learner):
    """Karimireddy et al. (2020), option II: ``c`` travels with the entry, each ``c_i`` stays with its client."""

    def fit(self, key, start, entry, client, **request):
        fit = self.request(start, client, **request)
        c = entry.extra.get("control/c", torch.zeros_like(start.vector))
        mine = client.state.get(f"control/{key}", torch.zeros_like(start.vector))
        result = yield replace(fit, terms=(*fit.terms, Shift(c - mine)))
        new = mine - c + (start.vector - result.vector) / (max(1, result.steps) * fit.optimizer.lr)
        extra = {"control/delta": new - mine}
        part = Part(result.vector, result.buffers, extra, steps=result.steps, loss=result.loss)
        return part, {f"control/{key}": new}

    def extra(self, key, old, new, group, when):
        deltas = [part.extra["control/delta"] for part in group.parts if "control/delta" in part.extra]
        return {"control/c": old.extra.get("control/c", 0) + sum(deltas) / self.world.clients} if deltas else {}


SCAFFOLD = {"learner": {"kind": "test_example_scaffold:Scaffold"}}
TASKS = {"kind": "tasks", "tasks": 2, "by": "class", "order": "asynchronous", "clients": 4}


def bias(run, round):
    return float(run.states[round].bank["global"].vector[1])


def control(run, round):
    return float(run.states[round].bank["global"].extra["control/c"][1])


def own(run, round, client):
    return float(run.states[round].clients[client]["control/global"][1])


def test_the_laws():
    prove(config(local=SCAFFOLD, participation={"count": 3}))


def test_hand_numbers_with_one_of_two_clients_and_unequal_steps():
    # Client 0: loss (b - 2)^2 / 2, one step of 1/2. Client 1: (b + 4)^2 / 2, two steps.
    seed = next(s for s in range(200) if drawn(s) == [[0], [1], [0]])
    run = play(quadratics(seed=seed, participation={"count": 1}, local=SCAFFOLD), QUADRATICS, zero=True)
    # 1, client 0 from 0: step along -2; c_0 = (0 - 1) / (1/2) = -2 and c = -2/2: divided by both clients.
    assert (bias(run, 1), own(run, 1, 0), control(run, 1)) == (1, -2, -1)
    # 2, client 1 from 1: 5 - 0 - 1 = 4 to -1, then 3 - 0 - 1 = 2 to -2; c_1 = 0 + 1 + 3 / (2/2) = 4, c = -1 + 4/2.
    assert (bias(run, 2), own(run, 2, 1), control(run, 2)) == (-2, 4, 1)
    # 3, client 0 from -2: -4 + 2 + 1 = -1 to -3/2; c_0 = -2 - 1 - (1/2) / (1/2) = -4, c = 1 + (-4 + 2)/2 = mean(c_i).
    assert (bias(run, 3), own(run, 3, 0), own(run, 3, 1), control(run, 3)) == (-1.5, -4, 4, 0)


def drawn(seed):
    from shoal.config import Participation
    from shoal.participation import Selection
    from shoal.randomness import Moment

    selection = Selection(Participation(count=1), 2, lambda c: 1)
    return [[s.client for s in selection.draw(Moment(seed, r))] for r in (1, 2, 3)]


def test_against_numpy_over_two_rounds_with_both_clients():
    run = play(quadratics(rounds=2, local=SCAFFOLD), QUADRATICS)
    x, c, own_c = bias(run, 0), 0.0, [0.0, 0.0]
    for round in (1, 2):
        ends, news = [], []
        for goal, steps, mine in zip((2.0, -4.0), (1, 2), own_c, strict=True):
            y = x
            for _ in range(steps):
                y -= 0.5 * ((y - goal) - mine + c)
            ends.append(y)
            news.append(mine - c + (x - y) / (steps * 0.5))
        x = (2 * ends[0] + 4 * ends[1]) / 6
        c += sum(new - mine for new, mine in zip(news, own_c, strict=True)) / 2
        own_c = news
        assert bias(run, round) == pytest.approx(x, rel=1e-5)
        assert control(run, round) == pytest.approx(c, rel=1e-5)
        assert [own(run, round, i) for i in (0, 1)] == pytest.approx(own_c, rel=1e-5)


def test_c_is_the_mean_of_all_c_i_with_full_participation_and_not_of_those_drawn():
    full = play(config(rounds=4, local=SCAFFOLD))
    variates = torch.stack([full.states[-1].clients[i]["control/global"] for i in range(4)])
    torch.testing.assert_close(full.bank["global"].extra["control/c"], variates.mean(0), rtol=1e-4, atol=1e-6)
    some = play(config(rounds=1, local=SCAFFOLD, participation={"count": 2}))
    known = torch.stack([numbers["control/global"] for numbers in some.states[-1].clients.values()])
    assert len(known) == 2
    torch.testing.assert_close(some.bank["global"].extra["control/c"], known.sum(0) / 4, rtol=1e-4, atol=1e-6)


def test_the_first_round_equals_fedavg_and_the_second_does_not():
    plain, corrected = play(config(rounds=2)), play(config(rounds=2, local=SCAFFOLD))
    vectors = [
        (a.bank["global"].vector, b.bank["global"].vector) for a, b in zip(plain.states, corrected.states, strict=True)
    ]
    assert [torch.equal(a, b) for a, b in vectors] == [True, True, False]


def test_with_a_server_optimiser_and_an_entry_per_task():
    raw = config(
        rounds=6, stream=TASKS, local=SCAFFOLD, method={"kind": "fedavg", "per": "task", "server": {"kind": "adam"}}
    )
    run = prove(raw)
    assert set(changed(run.states[0].bank, run.bank)) == {"task/0", "task/1"}
    for key, entry in run.bank.entries.items():
        mine = [numbers.get(f"control/{key}", 0) for numbers in run.states[-1].clients.values()]
        assert any(isinstance(c, torch.Tensor) for c in mine)
        torch.testing.assert_close(entry.extra["control/c"], sum(mine) / 4, rtol=1e-4, atol=1e-6)
        assert {"m", "v"} <= set(entry.server)


class Late(Scaffold):
    """From round 2 on, client 1 sends a NaN."""

    def fit(self, key, start, entry, client, **request):
        part, state = yield from super().fit(key, start, entry, client, **request)
        if client.id == 1 and client.when.round > 1:
            part = replace(part, extra={"control/delta": part.extra["control/delta"] * float("nan")})
        return part, state


@pytest.mark.parametrize("trouble", ["rejected", "straggler"])
def test_a_client_whose_update_is_lost_keeps_its_old_variate(trouble):
    if trouble == "rejected":
        raw = config(rounds=3, local={"learner": {"kind": "test_example_scaffold:Late"}})
    else:
        raw = config(rounds=3, local=SCAFFOLD, participation={"straggler_probability": 0.4})
    run = play(raw, clean=False)
    lost = 0
    for old, new, lines in zip(run.states, run.states[1:], run.lines, strict=False):
        late = {line["client"] for line in lines if line.get("record") == trouble}
        lost += len(late)
        for client in range(4):
            before, after = (s.clients.get(client, {}).get("control/global", torch.zeros(1)) for s in (old, new))
            assert torch.equal(before, after) == (client in late)
        variates = [new.clients[i]["control/global"] for i in range(4) if i in new.clients]
        torch.testing.assert_close(new.bank["global"].extra["control/c"], sum(variates) / 4, rtol=1e-4, atol=1e-6)
    assert 0 < lost < 12


def test_bytes_down_count_the_variate_and_bytes_up_its_change():
    run = play(config(rounds=2, local=SCAFFOLD))
    size = 4 * run.bank["global"].vector.numel()
    down = [line["value"] for line in run.all(metric="bytes_down")]
    assert down == [size, 2 * size]
    assert [line["value"] for line in run.all(metric="bytes_up")] == [2 * size, 2 * size]


def test_on_digits(tmp_path):
    assert on_digits(tmp_path / "run", local=SCAFFOLD).summary["acc"] > 0.5
