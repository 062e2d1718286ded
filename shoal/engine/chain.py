"""`Chain`: what the stacked engine must know of an architecture to run it for many clients at once.

A stack is ``[clients, P]``: one flat parameter vector per client. Inputs are ``[clients, rows, values]``; no number of
one client depends on another, not even in its last bit, see `shoal.engine.products`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from ..bank import Buffers
from ..models.base import Dropout
from ..parameters import ParameterSpace
from ..requests import Served

if TYPE_CHECKING:
    from .kernel import Kernel

Masks = Sequence[Tensor | None]
"""For each dropout layer what its outputs are multiplied by, ``[clients, rows, width]``; ``None``: nothing."""


@dataclass
class Statistics:
    """The buffers of a stack's models: ``floats`` ``[clients, F]`` and ``counters`` ``[clients, C]``, where there are
    any. In training they follow the batches, in place."""

    floats: Tensor | None = None
    counters: Tensor | None = None

    def of(self, client: int) -> Buffers:
        """Copies of those of one client."""
        return Buffers(*(None if all is None else all[client].clone() for all in (self.floats, self.counters)))

    def to(self, device: torch.device) -> Statistics:
        """The same on a device; on theirs the same memory."""
        return Statistics(*(None if all is None else all.to(device) for all in (self.floats, self.counters)))

    def first(self, count: int) -> Statistics:
        """Those of the first clients; the same memory."""
        return Statistics(*(None if all is None else all[:count] for all in (self.floats, self.counters)))


@dataclass(frozen=True)
class Pass:
    """How the rows of a stack go through its models."""

    counts: Tensor | None = None
    """How many rows of each client count, ``[clients]``, the others being padding; ``None``: evaluation mode."""
    masks: Masks = ()
    statistics: Statistics = field(default_factory=Statistics)
    follow: bool = True
    """Whether the statistics follow this batch, in training."""
    full: bool = False
    """Whether it is known that no row is padding; of the ``counts`` a GPU could only tell by waiting for it."""


class Source(Protocol):
    """The rows of a stack's clients, one client's behind those of another."""

    def ready(self, at: Tensor) -> Tensor:
        """Places as `take` wants them: where its rows are, so that a step moves nothing."""

    def take(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs ``[clients, rows, values]`` and targets of the rows at these places, ``[clients, rows]``."""


class Chain:
    """The stacked forward and backward pass of one architecture."""

    space: ParameterSpace
    row_step: int = 1
    """With a multiple of so many rows, the numbers of each client begin at a multiple of `ALIGNED` where they must."""
    coupled: bool = False
    """Whether a row's output depends on the other rows of its batch."""
    exact: bool = False
    """Whether a batch must have no padding, because what the layers do with the rows of a batch is not known."""
    threaded: bool = False
    """Whether several threads may run stacks of it at the same time: it reads nothing that a kernel keeps."""
    descends: bool = False
    """Whether it has `descend`."""
    has_gradients: bool = False
    """Whether requests for a gradient are answered, too."""
    has_scores: bool = True
    """Whether requests for scores are answered."""
    dropouts: Sequence[Dropout] = ()

    @cached_property
    def signature(self) -> Hashable:
        """Equal for models that do the same with equal vectors and rows, also where only some segments are trained."""
        raise NotImplementedError

    def holds(self, served: Served) -> bool:
        """Whether this is the plain model: a vector of its size, and nothing beside it that is not understood."""
        return is_vector(served.vector, self.space.size) and not served.constants and served.buffers.empty

    def reads(self, kernel: Kernel, rows: Tensor) -> bool:
        """Whether the inputs of a request's rows can be had."""
        return True

    def source(self, kernel: Kernel, rows: Sequence[Tensor], again: bool) -> Source:
        """The rows of some requests; ``again``: they are taken more than once."""
        raise NotImplementedError

    def statistics(self, served: Sequence[Served]) -> Statistics:
        """The buffers of these models, as a stack's own."""
        return Statistics()

    def dropout_shapes(self, x: Tensor) -> Sequence[tuple[int, ...] | None]:
        """Of each of the ``dropouts`` the shape of what it is given for a row of the inputs ``x``; ``None``: it never
        drops anything."""
        return ()

    def wanted(self, slices: Sequence[slice]) -> Any:
        """What `backward` must write where only these slices of the vectors are trained."""
        raise NotImplementedError

    def opened(self, vectors: Tensor) -> Any:
        """The parameters in vectors, or their gradients, as `forward`, `backward` and `descend` take them; the same
        memory. Made once for many steps."""
        return vectors

    def forward(self, vectors: Any, x: Tensor, how: Pass, kept: list[Tensor] | None = None) -> Tensor:
        """The outputs ``[clients, rows, outputs]``. ``kept`` is filled for `backward`."""
        raise NotImplementedError

    def backward(
        self,
        vectors: Any,
        gradients: Any,
        kept: list[Tensor],
        d: Tensor,
        how: Pass,
        wanted: Any = None,
        power: int = 1,
    ) -> None:
        """Writes the gradients of what is ``wanted`` (default: everything), from ``d``, the loss's derivative by the
        outputs.

        The others are left as they are. With ``power`` 2 the gradients of single rows are squared before they are
        summed. ``kept`` is used up.
        """
        raise NotImplementedError

    def descend(self, vectors: Any, kept: list[Tensor], d: Tensor, how: Pass, rate: float | Tensor) -> None:
        """As `backward`, but subtracts the gradients times the rate (one number, or a column ``[clients, 1]``) from the
        vectors at once, without writing them."""
        raise NotImplementedError


def is_vector(value: Any, size: int) -> bool:
    """Whether this is a float32 vector of so many numbers."""
    return isinstance(value, Tensor) and value.shape == (size,) and value.dtype == torch.float32


def is_hooked(module: nn.Module) -> bool:
    """Whether a module does something else than its class: by hooks, or a ``forward`` of its own."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)
