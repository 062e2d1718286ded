"""The schema of a configuration. Every part has a ``kind``; the registry knows its settings."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from .registry import Strict
from .requests import Optimizer


def _as_part(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def _as_name(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[^\W_][\w.-]*", value):
        return value
    hint = "; YAML reads on, off, yes and no as true and false: quote them" if isinstance(value, bool) else ""
    raise ValueError(f"letters, digits, '.', '_' and '-', the first a letter or a digit: it becomes a folder{hint}")


Part = Annotated[dict[str, Any], pydantic.BeforeValidator(_as_part)]
"""The settings of a part; a part without settings may be written as a word."""
LossArgument = Annotated[float | str, Field(union_mode="left_to_right")]
"""A number where it can be read as one, else a word."""
Probability = Annotated[float, Field(ge=0, le=1)]


class _Strict(Strict, BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Local(_Strict):
    """Local training: what a client does with one entry in one round.

    ``keep``: the optimiser's moments go on where the client's last fit of the entry left them, else every round begins
    with a new optimiser. ``compression``: how the model that comes out is sent to the server, as it is without.
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(0.05, gt=0, allow_inf_nan=False)
    lr_schedule: Part | None = None
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    undecayed: list[str] = []
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    clip: float | None = Field(None, gt=0)
    keep: bool = False
    epochs: float = Field(1, gt=0, allow_inf_nan=False)
    steps: int | None = Field(None, ge=1)
    batch_size: int = Field(32, ge=1)
    loss: str = "cross_entropy"
    loss_args: dict[str, LossArgument] = {}
    augment: list[str] = []
    learner: Part = {"kind": "plain"}
    compression: Part | None = None

    @pydantic.model_validator(mode="after")
    def _momentum_is_of_sgd(self) -> Local:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"local.momentum belongs to optimizer: sgd; {self.optimizer} has beta1")
        return self

    @pydantic.model_validator(mode="after")
    def _keeps_something(self) -> Local:
        if self.keep and self.optimizer == "sgd" and not self.momentum:
            raise ValueError(
                "local.keep: sgd without momentum has nothing to keep; set local.momentum, or optimizer: adam or adamw"
            )
        return self

    def request(self) -> Optimizer:
        """The optimiser that this asks for."""
        return Optimizer(
            self.optimizer,
            self.lr,
            self.momentum,
            self.weight_decay,
            tuple(self.undecayed),
            (self.beta1, self.beta2),
            self.eps,
            self.clip,
        )


class Participation(_Strict):
    """Which clients take part in a round, and what goes wrong with them.

    ``fraction`` of the clients (to the nearest whole number, at least one) or exactly ``count``. Without
    ``probabilities`` every client is equally likely; they are a list with one number per client, or ``rows`` (in
    proportion to the training rows of round 1). ``replacement`` defaults to true exactly when there are
    probabilities, which makes the plain mean of the updates unbiased. A straggler trains and its update is lost;
    a crash raises half-way. With ``partial_probability`` a client takes a share of its local steps only, drawn evenly
    from ``partial_least`` to 1, to whole steps and at least one, and its update counts. ``minimum`` is the quorum: a
    round with fewer accepted updates changes nothing.
    """

    fraction: float = Field(1.0, gt=0, le=1)
    count: int | None = Field(None, ge=1)
    probabilities: list[float] | Literal["rows"] | None = None
    replacement: bool | None = None
    straggler_probability: Probability = 0.0
    crash_probability: Probability = 0.0
    partial_probability: Probability = 0.0
    partial_least: Probability = 0.0
    minimum: int = Field(1, ge=1)

    @pydantic.model_validator(mode="after")
    def _one_size(self) -> Participation:
        if self.count is not None and "fraction" in self.model_fields_set and self.fraction != 1.0:
            raise ValueError("participation: fraction and count exclude each other; give one of them")
        return self


class Evaluation(_Strict):
    """When and what is measured: after every ``every``-th round and the last five; 0 measures no accuracy at all.

    Phase boundaries and the rounds after them are measured whatever ``every`` says (unless it is 0). ``metrics`` are
    measured on every target beside its accuracy and loss, see `shoal.metrics.functions`. ``similarity_rounds`` are the
    rounds whose matrix of similarities is kept; ``null`` chooses up to twelve around the boundaries.
    """

    every: int = Field(1, ge=0)
    metrics: list[str] = []
    measures: list[str] = [
        "accuracy",
        "backward_transfer",
        "forgetting",
        "forward_transfer",
        "drift",
        "movement",
        "costs",
        "probes",
        "server",
        "confusion",
        "validation",
        "shift",
        "contacts",
        "similarity",
        "alarms",
        "concepts",
    ]
    similarity_rounds: list[Annotated[int, Field(ge=1)]] | None = Field(None, max_length=50)


class Execution(_Strict):
    """Where and how the clients' work is done. ``workers: null`` is one per core.

    ``auto`` is ``stacked`` where every model is dense and on the CPU in float32, else ``workers``; never by the
    number of cores. ``stack`` says what ``stacked`` puts into stacks: ``auto`` what gains by it, which on a CPU are
    models with a form of their own in float32, on a GPU all; ``any`` everything that can be. ``cluster`` are Ray
    actors: so many ``actors`` (``null``: one per processor of the cluster) of the cluster at ``address`` (``null``: one
    that is started on this machine for the run).
    """

    kind: Literal["serial", "workers", "stacked", "cluster", "auto"] = "workers"
    workers: int | None = Field(None, ge=1)
    actors: int | None = Field(None, ge=1)
    address: str | None = None
    device: str = "cpu"
    precision: Literal["float32", "bf16"] = "float32"
    stack: Literal["auto", "any"] = "auto"

    @pydantic.model_validator(mode="after")
    def _stacks_of_stacked(self) -> Execution:
        if self.stack != "auto" and self.kind != "stacked":
            raise ValueError(
                f"execution.stack: {self.stack}, but kind is {self.kind}; only kind: stacked has stacks: set it, or "
                f"leave stack out"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _cluster_apart(self) -> Execution:
        given = {"actors": self.actors, "address": self.address}
        if self.kind != "cluster":
            extra = [f"execution.{name}: {value!r}" for name, value in given.items() if value is not None]
            if extra:
                raise ValueError(f"{', '.join(extra)}, but kind is {self.kind}; only kind: cluster has actors")
            return self
        if self.workers is not None:
            raise ValueError(
                f"execution.workers: {self.workers} are threads of one machine, and kind: cluster has actors; set "
                f"execution.actors"
            )
        if self.device != "cpu":
            raise ValueError(
                f"execution.device: {self.device!r}, but the actors of kind: cluster train on processors alone; leave "
                f"device out, or use kind: workers on the machine with the device"
            )
        if self.address is not None and not re.fullmatch(r"auto|[^:/\s]+:[0-9]+", self.address):
            raise ValueError(
                f"execution.address: auto or HOST:PORT of a Ray cluster that this machine belongs to (no ray:// "
                f"client); got {self.address!r}"
            )
        return self


class Checkpoint(_Strict):
    """A checkpoint after every ``every``-th round and the last one; 0 keeps only the last.

    One that is due is put off while checkpoints took more than 5% of the run's time.
    """

    every: int = Field(1, ge=0)


class Config(_Strict):
    """A whole experiment."""

    name: Annotated[str, pydantic.BeforeValidator(_as_name)] = "run"
    description: str = ""
    seed: int = Field(0, ge=0, lt=2**63)
    rounds: int = Field(10, ge=0)
    data: Part = {"kind": "digits"}
    stream: Part
    model: Part = {"kind": "mlp"}
    method: Part = {"kind": "fedavg"}
    local: Local = Local()
    participation: Participation = Participation()
    evaluate: Evaluation = Evaluation()
    execution: Execution = Execution()
    checkpoint: Checkpoint = Checkpoint()
    track: Part | None = None
    variants: dict[str, dict[str, Any]] = {}
    seeds: list[int] = []
    grid: dict[str, Any] = {}
