"""Top-k with error feedback: by hand, and against torch.topk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal import registry
from shoal.compression.topk import TopK, largest
from shoal.errors import ConfigError
from shoal.randomness import Moment

RNG = np.random.default_rng(0)
SHAPES = [(10, 30), (30,), (2, 3, 1, 5), ()]
SIZES = [math.prod(shape) for shape in SHAPES]
TOTAL = 300 + 30 + 30 + 1


class Client:
    """One client of one entry, and the server's side of it."""

    def __init__(self, compression: TopK, shapes: list[tuple[int, ...]]) -> None:
        self.compression, self.shapes = compression, shapes
        self.kept: Mapping[str, Tensor] = {}
        self.bytes = 0

    def send(self, start: Tensor, vector: Tensor, round: int = 1) -> Tensor:
        """What the server makes of it."""
        when = Moment(0, round)
        before = {name: tensor.clone() for name, tensor in self.kept.items()}
        message, kept = self.compression.encode(start, vector, self.shapes, self.kept, when, RNG)
        assert all(torch.equal(self.kept[name], tensor) for name, tensor in before.items())  # nothing in place
        self.kept, self.bytes = kept, len(message)
        return self.compression.decode(start, message, self.shapes, when)

    def sent(self, change: list[float], round: int = 1) -> list[float]:
        """What is sent of this change of a model of zeros."""
        zeros = torch.zeros(len(change))
        return self.send(zeros, torch.tensor(change), round).tolist()


def dyadic(rng: np.random.Generator, size: int = TOTAL) -> Tensor:
    """Multiples of 1/64 up to 8, of which sums of many are exact in float32."""
    return torch.from_numpy(rng.integers(-512, 513, size) / 64).to(torch.float32)


# ---- which coordinates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 250, 999, 1000])
def test_exactly_the_largest_are_chosen(count: int) -> None:
    values = torch.from_numpy(np.random.default_rng(count).permutation(1000).astype(np.float32))
    expected = torch.topk(values, count).indices.sort().values
    assert largest(values.numpy(), count).tolist() == expected.tolist()


def test_of_equal_ones_the_first_are_chosen() -> None:
    sizes = np.array([1, 3, 2, 3, 2, 2, 0, 3], dtype=np.float32)
    chosen = {count: largest(sizes, count).tolist() for count in (1, 2, 4, 5, 8)}
    assert chosen == {1: [1], 2: [1, 3], 4: [1, 2, 3, 7], 5: [1, 2, 3, 4, 7], 8: list(range(8))}
    assert largest(np.zeros(5, np.float32), 2).tolist() == [0, 1]


@pytest.mark.parametrize("share", [0.003, 0.1, 0.5])
def test_each_tensor_sends_its_own_share_and_one_dimension_all(share: float) -> None:
    client = Client(TopK(share=share), SHAPES)
    start, change = torch.zeros(TOTAL), torch.randn(TOTAL, generator=torch.Generator().manual_seed(3))
    made = client.send(start, change)
    begin = 0
    for shape, size in zip(SHAPES, SIZES, strict=True):
        mine, sent = change[begin : begin + size], made[begin : begin + size]
        count = size if len(shape) <= 1 else math.ceil(share * size)
        expected = torch.zeros(size).scatter(0, at := mine.abs().topk(count).indices, mine[at])
        assert torch.equal(sent, expected)
        assert torch.equal(client.kept["v"][begin : begin + size], mine - expected)
        begin += size


def test_the_whole_model_has_one_choice() -> None:
    client = Client(TopK(share=0.25, per="model"), [(2, 2), (4,)])
    assert client.sent([1, -2, 3, 0, -9, 4, 5, -6]) == [0, 0, 0, 0, -9, 0, 0, -6]
    assert client.kept["v"].tolist() == [1, -2, 3, 0, 0, 4, 5, 0]


@pytest.mark.parametrize(("share", "size", "count"), [(0.07, 100, 7), (0.01, 62_006, 621), (0.1, 30, 3), (1e-9, 50, 1)])
def test_the_share_is_rounded_up(share: float, size: int, count: int) -> None:
    client = Client(TopK(share=share), [(1, size)])
    made = client.send(torch.zeros(size), torch.arange(1.0, size + 1))
    assert int((made != 0).sum()) == count


# ---- what is kept ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["tensor", "model"])
@pytest.mark.parametrize("share", [0.004, 0.1, 0.6, 1.0])
def test_what_is_sent_and_what_is_kept_sum_to_what_changed(share: float, per: Any) -> None:
    rng = np.random.default_rng(8)
    client = Client(TopK(share=share, per=per), SHAPES)
    sent, changed, start = torch.zeros(TOTAL), torch.zeros(TOTAL), dyadic(rng)
    for round in range(1, 8):
        change = dyadic(rng)
        made = client.send(start, start + change, round)
        sent += made - start
        changed += change
        assert torch.equal(sent + client.kept["v"], changed)
        start = made + dyadic(rng)  # what others did to the model
    assert torch.equal(client.kept["v"], torch.zeros(TOTAL)) == (share == 1)


def test_momentum_correction_by_hand() -> None:
    client = Client(TopK(share=0.3, momentum=0.5), [(1, 3)])
    # u = (4, 2, 1), v = u; the first is sent, and cleared in both.
    assert client.sent([4, 2, 1]) == [4, 0, 0]
    assert (client.kept["u"].tolist(), client.kept["v"].tolist()) == ([0, 2, 1], [0, 2, 1])
    # u = (1, 1 + 1, 0.5 - 3), v = (1, 4, -1.5).
    assert client.sent([1, 1, -3], 2) == [0, 4, 0]
    assert (client.kept["u"].tolist(), client.kept["v"].tolist()) == ([1, 0, -2.5], [1, 0, -1.5])
    # u = (0.5, 0, -1.25), v = (1.5, 0, -2.75): what is not sent goes on moving.
    assert client.sent([0, 0, 0], 3) == [0, 0, -2.75]
    assert (client.kept["u"].tolist(), client.kept["v"].tolist()) == ([0.5, 0, 0], [1.5, 0, 0])


def test_error_feedback_by_hand() -> None:
    client = Client(TopK(share=0.3), [(1, 3)])
    assert client.sent([4, 2, 1]) == [4, 0, 0]
    assert client.sent([1, 1, -3], 2) == [0, 3, 0]  # (1, 3, -2)
    assert client.sent([0, 0, 0], 3) == [0, 0, -2]  # (1, 0, -2)
    assert client.kept.keys() == {"v"}
    assert client.kept["v"].tolist() == [1, 0, 0]


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"per": "model"}, {"momentum": 0.9, "warmup": [1.0, 1.0]}])
def test_a_share_of_one_is_no_compression_to_the_bit(settings: dict[str, Any]) -> None:
    client = Client(TopK(**{"share": 1.0, **settings}), SHAPES)
    generator = torch.Generator().manual_seed(1)
    inexact = 0
    for round in range(1, 5):
        # Of very unlike sizes, so that start + (vector - start) is not the vector.
        start, vector = torch.randn(2, TOTAL, generator=generator) * torch.tensor([[1.0], [1e-5]])
        inexact += int((start + (vector - start) != vector).sum())
        made = client.send(start, vector, round)
        assert made.numpy().tobytes() == vector.numpy().tobytes()
        assert client.bytes == 4 * TOTAL
    assert inexact > 100


# ---- bytes and rounds ------------------------------------------------------------------------------------------


def test_the_message_has_the_bytes_of_its_formula() -> None:
    shapes = [(10, 30), (30,)]
    change = torch.randn(330, generator=torch.Generator().manual_seed(0))

    def sent(**settings: Any) -> int:
        client = Client(TopK(**settings), shapes)
        client.send(torch.zeros(330), change)
        return client.bytes

    # 30 places of 9 bits (34 bytes, less than a bit for each of 300: 38), 30 numbers, and 30 biases.
    assert sent(share=0.1) == 34 + 4 * 30 + 4 * 30
    # 90 places of 9 bits are 102 bytes, so there is a bit for each of 300.
    assert sent(share=0.3) == 38 + 4 * 90 + 4 * 30
    # 33 of 330, 9 bits each (38 bytes against 42).
    assert sent(share=0.1, per="model") == 38 + 4 * 33
    assert sent(share=1.0) == 4 * 330


def test_warm_up_has_the_shares_of_the_authors() -> None:
    by_code = TopK(share=0.001, warmup=5)
    # Their code's default; the share falls by the same factor in every round.
    assert [by_code.share_of(t) for t in range(1, 6)] == pytest.approx([0.316, 0.1, 0.0316, 0.01, 0.00316], rel=2e-3)
    assert [by_code.share_of(t) for t in (6, 7, 100)] == [0.001] * 3
    by_paper = TopK(share=0.001, warmup=[0.25, 0.0625, 0.015625, 0.004])
    assert [by_paper.share_of(t) for t in range(1, 7)] == [0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001]
    assert by_paper.share_of(0) == 0.25  # before the first round
    client = Client(by_paper, [(1, 64)])
    assert [sum(x != 0 for x in client.sent([1.0] * 64, t)) for t in (1, 2, 3, 5)] == [16, 4, 1, 1]


def test_a_message_of_another_length_is_refused() -> None:
    compression, shapes = TopK(share=0.1), [(10, 30)]
    start = torch.zeros(300)
    message, _ = compression.encode(start, torch.ones(300), shapes, {}, Moment(0, 1), RNG)
    with pytest.raises(ValueError, match="ends after 153 bytes; 154 were expected"):
        compression.decode(start, message[:-1], shapes, Moment(0, 1))
    with pytest.raises(ValueError, match="has 155 bytes; 154 were expected"):
        compression.decode(start, message + b"\0", shapes, Moment(0, 1))


@pytest.mark.parametrize(
    "wrong", [{"share": 0}, {"share": 1.5}, {"momentum": 1}, {"per": "layer"}, {"warmup": -1}, {"warmup": [0.5, 2]}]
)
def test_wrong_settings_are_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=rf"local\.compression\.{name}"):
        registry.resolve("compression", {"kind": "topk", **wrong}, "local.compression")
