"""What a client program may ask of the engine: `Fit`, `Evaluate`, `Gradient`, `Probe`, and nothing else.

A request carries only vectors, row indices and numbers, so the same program runs serially, in worker threads,
stacked with other clients, or on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from .bank import Buffers, Entry


@dataclass(frozen=True)
class Served:
    """A model that can be run: the name of its architecture, its numbers, and constants by buffer name."""

    model: str
    vector: Tensor
    buffers: Buffers = Buffers()
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    """Values for the module's non-persistent buffers, by their names (FedWeIT's pool, a mask)."""

    @classmethod
    def of(cls, entry: Entry) -> Served:
        """The model of an entry that covers its whole space."""
        return cls(entry.model, entry.vector, entry.buffers)


@dataclass(frozen=True)
class Optimizer:
    """The local optimiser: ``sgd``, ``adam`` or ``adamw``, with the meaning that ``torch.optim`` gives its settings.

    ``undecayed`` names parameters without weight decay; ``clip`` bounds the Euclidean norm of the gradient
    (after the correction terms, before weight decay). Unlike there, a parameter that a step gives no gradient is one
    with a gradient of zero: weight decay and momentum move it.
    """

    kind: str = "sgd"
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    undecayed: tuple[str, ...] = ()
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = None


class Term(Protocol):
    """A correction of every local step. Elementwise, so that one body serves ``[P]`` and ``[clients, P]``.

    ``s`` is the slice of the parameters that is being trained: ``w`` and ``g`` are already cut to it, the term's
    own tensors are not.
    """

    def gradient(self, w: Tensor, g: Tensor, s: slice) -> None:
        """Changes the gradient ``g`` in place, before the step."""

    def after(self, w: Tensor, s: slice, lr: float) -> None:
        """Changes the parameters ``w`` in place, after the step (an implicit step: stable at any strength)."""


@dataclass(frozen=True)
class Fit:
    """Train ``start`` on ``rows`` -> `FitResult`.

    ``steps`` wins over ``epochs`` and cycles over the rows; a fractional ``epochs`` is rounded to whole steps, at
    least one. Only ``segments`` are trained, everything else keeps its bits. With ``anchor`` (SVRG) the gradient
    of the same batch at that vector is subtracted. ``slots`` are a kept local optimiser's moments (``{}`` starts
    to keep them). ``since`` is the vector that drift is measured from: of a fit that continues another one, the
    first one's start. All randomness comes from ``client.random(purpose)``; a purpose may be used once per
    program. In all requests the loss ``None`` is the run's own, ``local.loss``.
    """

    start: Served
    rows: Tensor
    optimizer: Optimizer = Optimizer()
    epochs: float = 1
    steps: int | None = None
    batch: int = 32
    segments: tuple[str, ...] | None = None
    terms: tuple[Term, ...] = ()
    anchor: Tensor | None = None
    since: Tensor | None = None
    loss: str | None = None
    loss_args: Mapping[str, float | str | Tensor] = field(default_factory=dict)
    purpose: str = "fit"
    augment: tuple[str, ...] = ()
    slots: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Drift:
    """How far a local model went from the model it received (`Fit.since`); over all parameters, and over ``head``."""

    squared: tuple[float, ...] = ()
    """Squared Euclidean distance after each local epoch."""
    squared_head: tuple[float, ...] = ()
    distance: float = 0.0
    """Euclidean distance at the end of the fit."""
    distance_head: float = 0.0
    cosine: float = 0.0
    """1 - cos between the two parameter vectors at the end of the fit."""
    cosine_head: float = 0.0


@dataclass(frozen=True)
class FitResult:
    """What training gave. ``loss`` is the mean training loss over the rows seen, ``rows`` how many were seen."""

    vector: Tensor
    buffers: Buffers
    steps: int
    rows: int
    loss: float
    drift: Drift = Drift()
    slots: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Evaluate:
    """Measure these models on ``rows`` in evaluation mode -> ``list[Score]``."""

    models: tuple[Served, ...]
    rows: Tensor
    loss: str | None = None


@dataclass(frozen=True)
class Score:
    """``loss`` is the mean over the rows; ``accuracy`` the share of rows that were right; NaN without rows.

    ``accuracy`` is NaN in a regression, too. ``metrics`` has what was asked for beside it, by name.
    """

    loss: float
    accuracy: float
    rows: int
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Gradient:
    """The gradient of the mean loss at a model -> ``Tensor``; ``power=2`` gives the diagonal Fisher.

    ``per="batch"``: mean over batches (weighted by their rows) of the batch gradient to the ``power``, in training
    mode, buffers untouched. ``per="row"``: the same with every row a batch of its own, in evaluation mode.
    """

    at: Served
    rows: Tensor
    power: int = 1
    per: str = "batch"
    batch: int = 32
    loss: str | None = None
    loss_args: Mapping[str, float | str | Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """Have a model measured on the client's test rows and logged under ``label``; answers ``None``.

    It is measured in the rounds in which accuracies are (`shoal.metrics.rounds.due`); in others the program goes on.
    """

    label: str
    model: Served


Request = Fit | Evaluate | Gradient | Probe
