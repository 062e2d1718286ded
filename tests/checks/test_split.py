"""Checkpoints above the split size: one file per changed part, and a manifest that is written last."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal import checkpoint
from shoal.bank import Bank, Buffers, Entry, State
from shoal.checkpoint import Checkpoints
from shoal.checks.fingerprint import difference, fingerprint
from shoal.errors import RunError


def vector(seed: int, size: int = 50) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def first_state() -> State:
    entries: dict[str, Entry | None] = {
        "global": Entry(vector(0), buffers=Buffers(vector(1, 4), torch.tensor([3])), extra={"c": vector(2)}),
        "client/1": Entry(vector(3), segments=("features",), server={"m": vector(4), "steps": torch.tensor(2)}),
        "odd key/ä:*?": Entry(vector(5, 0), segments=(), weight=2.5),
    }
    clients = {7: {"control/global": vector(6), "count": 3}, 11: {"deep": {"list": [1, 2.5, None, vector(8, 3)]}}}
    measured = {"accuracy": {"targets": {"x": [1, 0.5]}}}
    return State(1, Bank().put(entries, record=[1, {"a": vector(9, 2)}]), clients, measured, 123)


def after(state: State, **changes: Entry | None) -> State:
    """The next round, with these entries changed (``_`` is ``/``)."""
    put = {key.replace("_", "/"): entry for key, entry in changes.items()}
    return replace(state, round=state.round + 1, bank=state.bank.put(put), metrics_bytes=state.metrics_bytes + 10)


def parts(folder: Path) -> set[str]:
    return {path.name for path in (folder / "parts").iterdir()}


def loaded(folder: Path) -> tuple[State, list[str]]:
    state, complaints = Checkpoints(folder, split_bytes=0).load()
    assert state is not None
    return state, complaints


def test_a_state_comes_back_to_the_bit(tmp_path: Path) -> None:
    state = first_state()
    Checkpoints(tmp_path, split_bytes=0).save(state)
    assert len(parts(tmp_path)) == 5
    found, complaints = loaded(tmp_path)
    assert difference(state, found) is None
    assert fingerprint(state) == fingerprint(found)
    assert complaints == []


def test_it_splits_above_the_limit_only(tmp_path: Path) -> None:
    state = first_state()
    # global 4 * (50 + 4 + 50) + 8 (a counter); client/1 4 * (50 + 50) + 8 (steps); clients 4 * 50 and 4 * 3,
    # memory 4 * 2.
    size = 424 + 408 + 200 + 12 + 8
    Checkpoints(tmp_path / "one", split_bytes=size).save(state)
    assert not (tmp_path / "one/parts").exists()
    Checkpoints(tmp_path / "many", split_bytes=size - 1).save(state)
    assert len(parts(tmp_path / "many")) == 5
    assert difference(loaded(tmp_path / "one")[0], loaded(tmp_path / "many")[0]) is None


def test_only_what_changed_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = checkpoint.write_file

    def remember(path: Path, value: Any) -> None:
        written.append(path.name)
        write(path, value)

    monkeypatch.setattr(checkpoint, "write_file", remember)
    store = Checkpoints(tmp_path, split_bytes=0)
    state = first_state()
    store.save(state)
    assert len(written) == 6
    for number, again in enumerate((False, True)):  # a process that resumed knows as well what is there
        store = Checkpoints(tmp_path, split_bytes=0) if again else store
        state = store.load()[0] or state if again else state
        written.clear()
        state = after(state, **{"global": state.bank["global"].new(weight=float(number))})
        state = replace(state, clients={**state.clients, 7: {"count": number}})
        store.save(state)
        assert len(written) == 3
        assert written[-1] == f"round-{state.round:08d}.safetensors"
        assert difference(state, loaded(tmp_path)[0]) is None


def test_parts_that_nobody_needs_are_removed(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, split_bytes=0)
    state = first_state()
    for round in range(1, 6):
        store.save(state)
        assert store.rounds() == [r for r in (round, round - 1) if r]
        # The five parts of this round, and the old version of the one that changes.
        assert len(parts(tmp_path)) == (5 if round == 1 else 6)
        state = after(state, **{"global": state.bank["global"].new(vector=vector(round))})
    state = after(state, client_1=None)
    store.save(state)
    store.save(after(state))
    assert len(parts(tmp_path)) == 4


def test_a_key_that_was_retired_and_born_again_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, split_bytes=0)
    state = first_state()
    old = state.bank["client/1"]
    store.save(state)
    for _ in range(3):
        state = after(state, client_1=None)
        store.save(state)
    state = after(state, client_1=old)
    store.save(state)
    found, complaints = loaded(tmp_path)
    assert difference(state, found) is None
    assert complaints == []


def test_a_size_around_the_limit_loses_no_part(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, split_bytes=2000)
    small = first_state()
    large = after(small, big=Entry(vector(0, 1000)))
    rounds = [large, *[replace(small, round=r) for r in (3, 4, 5)], replace(large, round=6)]
    for state in rounds:
        store.save(state)
        found, complaints = loaded(tmp_path)
        assert difference(state, found) is None
        assert complaints == []


def test_retired_entries_are_not_held(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, split_bytes=0)
    state = first_state()
    store.save(state)
    gone = weakref.ref(state.bank["client/1"].vector)
    state = after(state, client_1=None)
    store.save(state)
    gc.collect()
    assert gone() is None


class Killed(BaseException):
    """What a test raises in the place of a kill."""


def _dying(monkeypatch: pytest.MonkeyPatch, stop: Callable[[Path], bool]) -> None:
    write = checkpoint.write_file

    def dying(path: Path, value: Any) -> None:
        if stop(path):
            raise Killed
        write(path, value)

    monkeypatch.setattr(checkpoint, "write_file", dying)


@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_a_kill_before_the_manifest_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survivors: int
) -> None:
    store = Checkpoints(tmp_path, split_bytes=0)
    old = first_state()
    store.save(old)
    changed = {name: old.bank[name].new(weight=9.0) for name in ("global", "client/1")}
    new = after(old, **changed)
    left = [survivors]

    def stop(path: Path) -> bool:
        left[0] -= 1
        return left[0] < 0

    with monkeypatch.context() as patched:
        _dying(patched, stop)
        with pytest.raises(Killed):
            store.save(new)
    (tmp_path / "parts/.half.safetensors.tmp").write_bytes(b"half a part")
    (tmp_path / ".round-00000007.safetensors.tmp").write_bytes(b"half a manifest")
    assert len(parts(tmp_path)) == 5 + survivors + 1
    found, complaints = loaded(tmp_path)
    assert difference(old, found) is None
    assert complaints == []
    # The resumed process plays the round again, and leaves nothing behind.
    store = Checkpoints(tmp_path, split_bytes=0)
    resumed = store.load()[0]
    assert resumed is not None
    new = after(resumed, **{name: resumed.bank[name].new(weight=9.0) for name in ("global", "client/1")})
    store.save(new)
    assert difference(new, loaded(tmp_path)[0]) is None
    assert len(parts(tmp_path)) == 7
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "garbage", "empty"])
def test_a_damaged_part_leads_back_to_the_checkpoint_before(tmp_path: Path, damage: str) -> None:
    store = Checkpoints(tmp_path, split_bytes=0)
    old = first_state()
    store.save(old)
    before = parts(tmp_path)
    new = after(old, **{"global": old.bank["global"].new(weight=1.0)})
    store.save(new)
    (name,) = parts(tmp_path) - before
    spoil(tmp_path / "parts" / name, damage)
    found, (complaint,) = loaded(tmp_path)
    assert difference(old, found) is None
    assert complaint.startswith("checkpoint of round 2: ")
    assert name in complaint


def spoil(path: Path, damage: str) -> None:
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
        return
    if damage == "flipped":
        content[-3] ^= 0x10
    new = {"cut": content[: len(content) // 2], "flipped": content, "garbage": b"\xff" * 5000, "empty": b""}[damage]
    path.write_bytes(bytes(new))


@pytest.mark.parametrize("damage", ["cut", "flipped", "garbage", "empty"])
@pytest.mark.parametrize("split", [0, 10**9])
def test_a_damaged_checkpoint_does_not_count_as_one_of_the_two(tmp_path: Path, damage: str, split: int) -> None:
    store = Checkpoints(tmp_path, split)
    states = [first_state()]
    for _ in range(4):
        states.append(after(states[-1]))
    for state in states[:3]:
        store.save(state)
    spoil(store.path(3), damage)
    store = Checkpoints(tmp_path, split)
    resumed, (complaint,) = store.load()
    assert difference(states[1], resumed) is None
    assert complaint.startswith("checkpoint of round 3: round-00000003.safetensors")
    # The next checkpoint is put off: round 3 is not written again, round 4 is.
    store.save(states[3])
    assert store.rounds() == [4, 2]
    spoil(store.path(4), damage)
    assert difference(states[1], loaded(tmp_path)[0]) is None


def test_nothing_that_can_be_read_is_an_error_that_names_all(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, split_bytes=0)
    state = first_state()
    store.save(state)
    store.save(after(state))
    spoil(store.path(1), "garbage")
    spoil(store.path(2), "cut")
    with pytest.raises(RunError, match=r"no checkpoint can be read: checkpoint of round 2: .*checkpoint of round 1: "):
        store.load()


@pytest.mark.parametrize("split", [0, 10**9])
def test_one_tensor_in_many_places_is_stored_and_comes_back(tmp_path: Path, split: int) -> None:
    # An anchor that clients keep is the very tensor of the bank; views of one tensor share its memory.
    anchor = torch.randn(1000)
    clients = {c: {"anchor": anchor, "half": anchor[:500], "row": anchor.view(10, 100)[:, 3]} for c in range(20)}
    state = State(1, Bank().put({"global": Entry(anchor)}), clients)
    Checkpoints(tmp_path, split).save(state)
    assert difference(state, loaded(tmp_path)[0]) is None
    if not split:
        return
    # Written once: the anchor, its half (2000 bytes) and the row (40), not twenty times.
    assert (tmp_path / "round-00000001.safetensors").stat().st_size < 20_000
