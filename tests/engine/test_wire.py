"""What is sent to another process arrives as it was, and large tensors are sent once."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.bank import Entry
from shoal.engine.sent import Sent
from shoal.engine.wire import flat, for_the_client, owned, pack, unpack
from shoal.messages import Assignment, Client, Job
from shoal.models import Model
from shoal.randomness import Moment


def through(thing: Any, known: dict[str, object] | None = None) -> Any:
    parcel = pack(thing, known)
    return unpack(parcel.data, [owned(flat(tensor).numpy().copy()) for tensor in parcel.tensors], known)


IMAGES = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
TENSORS = {
    "plain": torch.arange(5.0),
    "single": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "bool": torch.tensor([True, False]),
    "bf16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "channels last": IMAGES.contiguous(memory_format=torch.channels_last),
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "a part": torch.arange(10.0)[3:7],
    "every other": torch.arange(10.0)[::2],
    "expanded": torch.tensor([1.0, 2.0])[:, None].expand(2, 4),
    "not a number": torch.tensor([float("nan"), -0.0]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_arrive_bit_for_bit(name: str) -> None:
    tensor = TENSORS[name]
    found = through([tensor])[0]
    assert found.dtype == tensor.dtype
    assert found.shape == tensor.shape
    assert found.contiguous().flatten().view(torch.uint8).tolist() == (
        tensor.contiguous().flatten().view(torch.uint8).tolist()
    )
    assert found.data_ptr() % 64 == 0  # where torch's own memory begins


def test_the_layout_is_kept_because_convolutions_round_by_it() -> None:
    found = through(TENSORS["channels last"])
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert not found.is_contiguous()


def test_one_tensor_in_two_places_is_one_tensor_there_too() -> None:
    tensor = torch.ones(3)
    parcel = pack({"a": tensor, "b": [tensor]})
    assert len(parcel.tensors) == 1
    found = through({"a": tensor, "b": [tensor]})
    assert found["a"] is found["b"][0]


def test_what_arrives_may_be_written_to() -> None:
    tensor = torch.zeros(3)
    through(tensor).add_(1)
    assert tensor.tolist() == [0, 0, 0]


def test_what_both_sides_have_is_named() -> None:
    model = Model("main", lambda: nn.Linear(2, 3))
    parcel = pack((model, "x"), {"main": model})
    assert parcel.tensors == []
    other = object()
    assert unpack(parcel.data, [], {"main": other})[0] is other


def test_a_model_arrives_with_its_frozen_weights_and_makes_the_same_module() -> None:
    def make() -> nn.Module:  # a closure: no other process could import it
        net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2))
        net[0].requires_grad_(False)
        return net

    model = Model("main", make)
    found = through(model)
    assert found.space.size == model.space.size == 8  # of the linear layer: 3 x 2 weights and 2 biases
    mine, theirs = model.build().state_dict(), found.build().state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert [p.requires_grad for p in found.build().parameters()] == [False, False, True, True]


def test_what_lives_in_this_process_alone_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="lock"):
        pack(threading.Lock())


def test_numbers_of_the_server_stay_there() -> None:
    entry = Entry(torch.ones(2), extra={"c": torch.ones(1)}, server={"m": torch.ones(2)}, version=3)
    none = torch.empty(0, dtype=torch.int64)
    job = Job(Assignment(0, ("k",), entries={"k": entry}), Client(0, Moment(0, 1), none, none), none)
    sent = for_the_client(job).given.entries["k"]
    assert sent.server == {}
    assert sent.extra == entry.extra
    assert sent.vector is entry.vector
    assert entry.server  # the bank's own is as it was


# ---- sent once ----------------------------------------------------------------------------------------------


class Store:
    """In the place of Ray's: a reference is the place in a list."""

    def __init__(self) -> None:
        self.put: list[np.ndarray] = []

    def __call__(self, array: np.ndarray) -> int:
        self.put.append(array.copy())
        return len(self.put) - 1


def test_a_tensor_is_stored_once_and_another_with_the_same_numbers_is_another() -> None:
    store = Store()
    sent = Sent(store)
    a, b = torch.ones(4), torch.ones(4)
    assert sent.of(a) == sent.of(a)
    assert len(store.put) == 1
    assert sent.of(b)[0] != sent.of(a)[0]
    assert sent.bytes == 32


def test_a_tensor_that_was_written_to_is_stored_anew() -> None:
    store = Store()
    sent = Sent(store)
    a = torch.ones(2)
    before = sent.of(a)[0]
    a.add_(1)
    token, reference = sent.of(a)
    assert token != before
    assert store.put[reference].view(np.float32).tolist() == [2, 2]
    assert sent.bytes == 8


def test_what_nobody_holds_is_given_back() -> None:
    sent = Sent(Store())
    tensor = torch.ones(4)
    gone = weakref.ref(tensor)
    first = sent.of(tensor)[0]
    del tensor
    assert gone() is None
    assert sent.bytes == 0
    assert sent.of(torch.ones(4))[0] != first  # even if it lies where the old one lay


def test_the_longest_unused_makes_room() -> None:
    store = Store()
    sent = Sent(store, most=32)
    a, b, c = (torch.full((4,), float(i)) for i in range(3))
    sent.of(a), sent.of(b), sent.of(a), sent.of(c)  # b was used longest ago
    assert sent.bytes == 32
    sent.of(a)
    assert len(store.put) == 3
    sent.of(b)
    assert len(store.put) == 4


def test_what_is_larger_than_the_room_is_sent_all_the_same() -> None:
    sent = Sent(Store(), most=8)
    large: Tensor = torch.ones(100)
    assert sent.of(large) == sent.of(large)
