"""What a kind of compression says, and how the answers of every method with a server go through it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..bank import Entry, Key, Value
from ..errors import ConfigError
from ..messages import Assignment, Client, Part, Update, World
from ..randomness import Moment
from ..records import changed

Shapes = Sequence[tuple[int, ...]]
"""The shapes of an entry's parameters, in the order of its vector."""
KEPT = "compression/"
"""The beginning of names in a client's state that hold what a compression keeps, before an entry's key."""


class Compression:
    """How a client's model is sent: as bytes, from which the server makes the model that it averages.

    Attributes never change after ``__init__``; what is remembered from round to round is private to the client, one set
    of numbers for each entry.
    """

    part: ClassVar[str] = "compression"
    notes: tuple[str, ...] = ()
    """What a user should know of these settings."""

    def encode(
        self,
        start: Tensor,
        vector: Tensor,
        shapes: Shapes,
        kept: Mapping[str, Tensor],
        when: Moment,
        rng: np.random.Generator,
    ) -> tuple[bytes, Mapping[str, Tensor]]:
        """The message, and what is kept for the next one; runs at the client.

        ``start`` is the entry's vector as it was received, ``vector`` the client's own after training: ``[P]``,
        float32 and finite. ``kept`` is what was kept when this entry's model was last sent and counted, nothing at
        first: tensors ``[P]``. Nothing may be changed in place.
        """
        raise NotImplementedError

    def decode(self, start: Tensor, message: bytes, shapes: Shapes, when: Moment) -> Tensor:
        """The model ``[P]``, float32, that the server makes of a message; it knows the vector that it sent.

        Raises ``ValueError`` for a message of another length.
        """
        raise NotImplementedError


class Compressed:
    """A method's ``train`` whose answers are sent compressed; what the engine runs in its place.

    The vector of a `Part` becomes what the server makes of the message, and its bytes are those of the message. Numbers
    that are not finite are sent as they are, to be rejected by name. So are buffers, extras, answers for entries that
    stay with the client (``own``) or that it was not given, and masked ones, which are sparse already.
    """

    def __init__(self, train: Callable[[Assignment, Client], Any], compression: Compression, world: World) -> None:
        self.train = train
        self.compression = compression
        self.world = world

    def __call__(self, given: Assignment, client: Client) -> Generator[Any, Any, Any]:
        """The method's program, and then the message."""
        program = self.train(given, client)
        answer = (yield from program) if isinstance(program, Generator) else program
        if not isinstance(answer, Update):
            return answer  # the engine says what is wrong with it
        parts, state = dict(answer.parts), dict(answer.state)
        for key, part in answer.parts.items():
            entry = given.entries.get(key)
            if entry is not None and key not in given.own and _can_be_sent(part, entry):
                parts[key], state[KEPT + key] = self._sent(key, part, entry, client)
        return changed(answer, parts=parts, state=state)

    def _sent(self, key: Key, part: Part, entry: Entry, client: Client) -> tuple[Part, Value]:
        assert part.vector is not None
        shapes = self._shapes(entry)
        kept = _fitting(client.state.get(KEPT + key), part.vector)
        rng = client.random(KEPT + key)
        message, keep = self.compression.encode(entry.vector, part.vector, shapes, kept, client.when, rng)
        vector = self.compression.decode(entry.vector, message, shapes, client.when)
        return changed(part, vector=vector, encoded=len(message)), dict(keep)

    def _shapes(self, entry: Entry) -> Shapes:
        """Loose numbers, and what is no part of the model, are one parameter of one dimension."""
        space = self.world.models[entry.model].space
        shapes = space.shapes(entry.segments)
        whole = sum(int(np.prod(shape)) for shape in shapes)
        return shapes if whole == entry.vector.numel() else [(entry.vector.numel(),)]


def try_compression(compression: Compression, kind: str) -> None:
    """Sends a small change and reads it again; raises `ConfigError` for a compression that cannot do that. Better here
    than with every update of the first round."""
    start, vector = torch.zeros(8), torch.linspace(-1.0, 1.0, 8)
    shapes, when, name = [(2, 3), (2,)], Moment(0, 1), f"local.compression: {kind}"
    try:
        message: Any = compression.encode(start, vector, shapes, {}, when, np.random.default_rng(0))[0]
        made: Any = compression.decode(start, message, shapes, when)
    except Exception as error:
        raise ConfigError(f"{name} cannot send eight numbers: {type(error).__name__}: {error}") from error
    good = isinstance(made, Tensor) and made.shape == (8,) and made.dtype == torch.float32
    if not isinstance(message, bytes) or not good:
        got = f"{tuple(made.shape)} {made.dtype}" if isinstance(made, Tensor) else type(made).__name__
        raise ConfigError(
            f"{name} made {got} of eight numbers, through {type(message).__name__}; encode gives bytes, and decode a "
            f"float32 tensor of the vector's shape"
        )


def _can_be_sent(part: Part, entry: Entry) -> bool:
    if not isinstance(part, Part) or part.vector is None or part.mask is not None or part.base is not None:
        return False
    if part.vector.shape != entry.vector.shape or part.vector.dtype != torch.float32:
        return False
    return bool(torch.isfinite(part.vector - entry.vector).all())


def _fitting(stored: Value, vector: Tensor) -> Mapping[str, Tensor]:
    """What was kept; nothing where the model has another size by now."""
    kept = stored if isinstance(stored, Mapping) else {}
    found = {name: tensor for name, tensor in kept.items() if isinstance(tensor, Tensor)}
    return found if all(tensor.shape == vector.shape for tensor in found.values()) else {}
