"""Which tensors Ray's object store already has, so that an entry is sent once and not once a round."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from .wire import flat

LARGE = 2**16
"""A tensor of fewer bytes goes with the message: an object of its own would cost more than its bytes."""
KEPT_BYTES = 2**30
"""So much is kept in the store; what was used longest ago makes room, and is sent again when it is needed."""


class _Sent(NamedTuple):
    tensor: weakref.ref[Tensor]
    version: int
    token: int
    reference: Any
    bytes: int


class Sent:
    """The references of large tensors. An entry that did not change is the same tensor, and is found again.

    ``put`` stores bytes and gives the reference. What nobody here holds any more is given back.
    """

    def __init__(self, put: Callable[[np.ndarray], Any], most: int = KEPT_BYTES) -> None:
        self._put = put
        self._most = most
        self._known: OrderedDict[int, _Sent] = OrderedDict()
        self._last = 0
        self.bytes = 0
        """How much is kept now."""

    def of(self, tensor: Tensor) -> tuple[int, Any]:
        """The tensor's token, which no other content ever has, and the reference of its bytes."""
        key = id(tensor)
        found = self._known.get(key)
        version = -1 if tensor.is_inference() else tensor._version  # such a tensor counts no writes
        if found is None or found.tensor() is not tensor or found.version != version or version < 0:
            self._forget(key)
            self._last += 1
            watched = weakref.ref(tensor, lambda _: self._forget(key))
            found = _Sent(watched, version, self._last, self._put(flat(tensor).numpy()), tensor.nbytes)
            self._known[key] = found
            self.bytes += found.bytes
        self._known.move_to_end(key)
        while self.bytes > self._most and len(self._known) > 1:
            self._forget(next(iter(self._known)))
        return found.token, found.reference

    def _forget(self, key: int) -> None:
        found = self._known.pop(key, None)
        if found is not None:
            self.bytes -= found.bytes
