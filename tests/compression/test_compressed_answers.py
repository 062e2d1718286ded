"""Compression in whole runs: what goes through it, what does not, and with which methods it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from shoal import registry
from shoal.bank import Entry
from shoal.checks.case import Case, Run, require_clean
from shoal.checks.standin import NORMED
from shoal.compression.base import Compressed, Compression
from shoal.compression.topk import TopK
from shoal.config import Execution
from shoal.errors import ConfigError
from shoal.messages import Assignment, Client, Part, Update
from shoal.randomness import Moment
from shoal.setup import assemble, resolve_config

TOPK: dict[str, Any] = {"kind": "topk", "share": 0.2}
QSGD: dict[str, Any] = {"kind": "qsgd", "bits": 4, "bucket": 16}
# 5 inputs, 4 hidden and 5 outputs: tensors of 20, 4, 20 and 5 numbers.
WEIGHTS = 49
# 4 of 20 places of 5 bits, as long as 20 bits: 3 bytes, and 4 numbers; twice. Biases whole.
TOPK_BYTES = 2 * (3 + 16) + 4 * (4 + 5)
# 4 scales, and half a byte for each number.
QSGD_BYTES = 4 * 4 + 25


def played(compression: Mapping[str, Any] | None, **parts: Any) -> Run:
    case = Case()
    setup = case.setup(local={**parts.pop("local", {}), "compression": compression}, **parts)
    run = case.play(setup, engine=Execution(kind="serial"))
    require_clean(run)
    return run


def bytes_up(run: Run) -> list[float]:
    """Of each client, in each round."""
    lines = [line for lines in run.lines for line in lines if '"bytes_up"' in line]
    return [float(line.split('"value":')[1].split(",")[0].rstrip("}")) for line in lines]


def banks(run: Run) -> list[Any]:
    return [
        {key: (entry.vector.numpy().tobytes(), entry.weight) for key, entry in state.bank.entries.items()}
        for state in run.states
    ]


# ---- what is sent ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("compression", "expected"), [(None, 4 * WEIGHTS), (TOPK, TOPK_BYTES), (QSGD, QSGD_BYTES)])
def test_the_bytes_of_the_messages_are_counted(compression: Any, expected: int) -> None:
    assert bytes_up(played(compression)) == [expected] * 3


def test_what_goes_down_is_whole() -> None:
    plain, sparse = (
        [line for lines in run.lines for line in lines if '"total_bytes_down"' in line]
        for run in (played(None), played(TOPK))
    )
    assert plain == sparse


def test_buffers_are_sent_as_they_are() -> None:
    # 5 x 4 and 4, norm 4 and 4, 4 x 5 and 5: the two matrices are sparse. Mean, variance and the counter as they are.
    buffers = 4 * 8 + 8
    assert bytes_up(played(TOPK, model=NORMED)) == [2 * (3 + 16) + 4 * (4 + 4 + 4 + 5) + buffers] * 3
    plain, sparse = played(None, model=NORMED), played(TOPK, model=NORMED)
    first = [run.states[1].bank.entries["global"].buffers.floats for run in (plain, sparse)]
    assert first[0] is not None
    assert torch.equal(first[0], first[1])  # type: ignore[arg-type]


def test_numbers_of_a_learner_are_sent_as_they_are() -> None:
    run = played(TOPK, learner={"kind": "scaffold"})
    assert bytes_up(run) == [TOPK_BYTES + 4 * WEIGHTS] * 3  # the change of the variate
    # After the first round the server's variate is that of plain training: the mean of the clients' variates.
    plain = played(None, learner={"kind": "scaffold"})
    variates = [state.bank.entries["global"].extra["control/c"] for state in (run.states[1], plain.states[1])]
    assert torch.equal(*variates)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("parts", [{}, {"method": {"kind": "fedadam", "server": {"lr": 0.1}}}, {"model": NORMED}])
def test_a_share_of_one_is_the_run_without_compression(parts: dict[str, Any], momentum: float) -> None:
    plain = played(None, **parts)
    whole = played({"kind": "topk", "share": 1.0, "momentum": momentum}, **parts)
    assert banks(whole) == banks(plain)
    assert whole.lines == plain.lines  # what was measured, and what it cost


def answered(given: Assignment, parts: dict[str, Part], state: Any = None) -> Update:
    world = Case().setup().world
    update = Update(parts, 1.0)
    program = Compressed(lambda given, client: update, TopK(share=0.2), world)(
        given, Client(0, Moment(0, 1), torch.arange(2), torch.arange(0), state or {})
    )
    with pytest.raises(StopIteration) as stop:
        next(program)
    found = stop.value.value
    assert isinstance(found, Update)
    return found


def test_only_changes_of_models_that_the_server_sent_are_compressed() -> None:
    entry = Entry(torch.zeros(WEIGHTS))
    given = Assignment(
        0,
        ("sent", "masked", "lost", "told"),
        ("own",),
        entries=dict.fromkeys(("sent", "own", "masked", "lost", "told"), entry),
    )
    vector = torch.arange(1.0, WEIGHTS + 1)
    lost = vector.clone()
    lost[3] = float("nan")
    parts = {
        "sent": Part(vector, extra={"c": torch.ones(3)}),
        "own": Part(vector),
        "masked": Part(vector, mask=vector > 5),
        "born": Part(vector),
        "lost": Part(lost),
        "told": Part(None, extra={"gradient": vector}),
    }
    found = answered(given, parts)
    assert {key for key, part in found.parts.items() if part is not parts[key]} == {"sent"}
    assert found.parts["sent"].bytes == TOPK_BYTES + 12
    assert set(found.state) == {"compression/sent"}


def test_numbers_that_belong_to_no_model_are_sent_whole() -> None:
    entry = Entry(torch.zeros(7), segments=())
    vector = torch.arange(7.0)
    part = answered(Assignment(0, ("a",), entries={"a": entry}), {"a": Part(vector)}).parts["a"]
    assert part.vector is not None
    assert (part.vector.tolist(), part.bytes) == (vector.tolist(), 28)


def test_a_part_of_a_model_has_the_shapes_of_its_segments() -> None:
    entry = Entry(torch.zeros(25), segments=("classifier",))
    part = answered(Assignment(0, ("a",), entries={"a": entry}), {"a": Part(torch.arange(25.0))}).parts["a"]
    assert part.vector is not None
    assert part.vector.nonzero().flatten().tolist() == [16, 17, 18, 19, 20, 21, 22, 23, 24]  # 4 of 20, and the biases
    assert part.bytes == 3 + 16 + 20


def test_what_was_kept_of_a_model_of_another_size_is_dropped() -> None:
    given = Assignment(0, ("a",), entries={"a": Entry(torch.zeros(WEIGHTS))})
    vector = torch.arange(1.0, WEIGHTS + 1)
    old = answered(given, {"a": Part(vector)}, {"compression/a": {"v": torch.full((3,), 1e6)}})
    new = answered(given, {"a": Part(vector)})
    assert torch.equal(old.parts["a"].vector, new.parts["a"].vector)  # type: ignore[arg-type]


# ---- what is kept ----------------------------------------------------------------------------------------------


def test_each_entry_has_a_residual_of_its_own() -> None:
    # Client 0 trains task 0 in rounds 1 and 2, and task 1 in round 3.
    run = played(TOPK, method={"kind": "fedavg", "per": "task"})
    kept = [state.clients.get(0, {}) for state in run.states]
    assert [sorted(state) for state in kept[1:]] == [["compression/task/0"]] * 2 + [
        ["compression/task/0", "compression/task/1"]
    ]
    residuals = [state["compression/task/0"]["v"] for state in kept[1:]]  # type: ignore[call-overload,index]
    assert residuals[0].any()
    assert not torch.equal(residuals[0], residuals[1])
    assert torch.equal(residuals[1], residuals[2])


# ---- with what it goes -----------------------------------------------------------------------------------------

WITH: dict[str, dict[str, Any]] = {
    "concept-matching": {
        "method": {"kind": "concept-matching", "concepts": "auto", "most": 2, "agree": 1, "least": 0.0}
    },
    "ifca": {"method": {"kind": "ifca", "concepts": 2}},
    "feddrift": {"method": {"kind": "feddrift", "step": 1, "delta": 0.02}},
    "median": {"method": {"kind": "fedavg", "mean": "median"}},
    "trimmed": {"method": {"kind": "fedavg", "mean": "trimmed"}},
    "fednova": {"method": {"kind": "fedavg", "mean": "fednova"}},
    "unbiased": {"method": {"kind": "fedavg", "mean": "unbiased"}, "participation": {"count": 2}},
    "yogi": {"method": {"kind": "fedyogi", "server": {"lr": 0.1}}},
    "svrg": {"learner": {"kind": "svrg", "anchor": "global"}},
    "early-stopping": {"learner": {"kind": "early-stopping"}, "local": {"epochs": 3, "keep": True, "momentum": 0.9}},
}


@pytest.mark.parametrize("name", WITH)
def test_it_goes_with_every_method_that_has_a_server(name: str) -> None:
    plain, sparse = played(None, **WITH[name]), played(TOPK, **WITH[name])
    assert sum(bytes_up(sparse)) < sum(bytes_up(plain))
    assert banks(sparse)[0] == banks(plain)[0]
    assert banks(sparse)[-1] != banks(plain)[-1]


def _serverless(kind: str) -> bool:
    return bool(registry.find("method", kind).serverless)  # type: ignore[attr-defined]


GOSSIP = [kind for kind in registry.PARTS["method"] if _serverless(kind)]


def test_there_are_methods_without_a_server() -> None:
    assert {"local", "random", "dac", "hast", "pens", "oracle"} <= set(GOSSIP)


@pytest.mark.parametrize("kind", GOSSIP)
def test_methods_without_a_server_refuse_it(kind: str) -> None:
    more = {"local": {}, "pens": {"drawn_peers": 2, "best": 1}}
    method = {"kind": kind, **more.get(kind, {"contacts": 1})}
    with pytest.raises(ConfigError, match=rf"local\.compression: .* method {kind} has no server"):
        Case().setup(method=method, local={"compression": TOPK})


def test_an_unknown_kind_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"local\.compression\.kind: no compression is called 'topc'.*'topk'"):
        Case().setup(local={"compression": "topc"})


def test_a_kind_of_ones_own_must_be_a_compression() -> None:
    with pytest.raises(ConfigError, match=r"derived from shoal\.compression\.base:Compression"):
        Case().setup(local={"compression": {"kind": "shoal.bank:Buffers"}})


class Unfinished(Compression):
    """Says neither half."""


class Longer(Unfinished):
    """Makes more numbers than there were."""

    def encode(self, *given: Any) -> Any:
        return b"", {}

    def decode(self, start: torch.Tensor, *given: Any) -> torch.Tensor:
        return torch.cat([start, start])


class Stranger:
    """Is no compression, and cannot be made either."""

    def __init__(self, words: str) -> None:
        self.words = words


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Unfinished, r"local.compression: \S+:Unfinished cannot send eight numbers: NotImplementedError"),
        (Longer, r"made \(16,\) torch.float32 of eight numbers, through bytes; encode gives bytes"),
        (Stranger, r"local.compression.kind: \S+:Stranger gives a Stranger; a kind of compression is a class derived"),
    ],
)
def test_a_kind_of_ones_own_is_tried_before_any_training(kind: type, told: str) -> None:
    local = {"compression": {"kind": f"{__name__}:{kind.__name__}"}}
    with pytest.raises(ConfigError, match=told):
        assemble(resolve_config({"stream": {"kind": "static", "clients": 2}, "local": local}))
