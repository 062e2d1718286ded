"""With which settings the laws are tried on a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import registry


class Example(NamedTuple):
    """Settings of one part. ``shares_rows``, ``leaves_rows``, ``clients``: what a partition or stream may do then.

    ``model``: the model that a method or learner needs; it takes rows of five numbers. ``local``: the local training
    that a learner is tried with, beside what the laws set.
    """

    settings: Mapping[str, Any] = {}
    shares_rows: bool = False
    leaves_rows: bool = False
    clients: int | None = None
    model: Mapping[str, Any] | None = None
    local: Mapping[str, Any] = {}

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in {**self.settings, **self.local}.items()) or "defaults"


_SHIFTS: dict[str, Any] = {"clients": 4, "steps": 3, "rounds_per_step": 3, "rows": 4, "validation_rows": 2}
_CONCEPTS: dict[str, Any] = {"clients": 3, "window": 4}
_SELECTED = [{"domain": "north", "classes": ["u", "w"]}, [{"domain": ["south", "west"], "classes": ["x", "y", "z"]}]]
_LATE = [{"concept": "south", "from": 3}, {"concept": "north", "until": 5}]
_SKEWED = {"kind": "dirichlet", "by": "class", "alpha": 0.3}

# With the small rate of the laws every loss counts as one that stands still.
_PLATEAU = {"kind": "plateau", "patience": 0, "gamma": 0.5, "threshold": 0.9}

_DECOMPOSED = {"kind": "decomposed", "network": {"kind": "shoal.checks.standin:normed"}, "parts": 2}

# It alarms at the first loss that is not below the ones before.
_WARY = {"kind": "jump", "threshold": 0.0, "rise": 0.0, "warmup": 2}

EXAMPLES: dict[tuple[str, str], list[Example]] = {
    ("method", "fedavg"): [Example(), Example({"per": "task"})],
    ("method", "concept-matching"): [
        Example({"concepts": 2}),
        Example({"concepts": "auto", "most": 2, "gap": 0.5, "agree": 1, "unused": 1, "least": 0.0}),
        Example({"concepts": 3, "client_matching": "remembered", "learn": 1, "matching": "paper", "rows": 2}),
        Example({"concepts": 2, "client_matching": "oracle", "server_matching": "choices"}),
    ],
    ("method", "feddrift"): [
        Example({"step": 1, "delta": 0.02}),
        Example({"step": 2, "delta": 0.0, "first": "each", "join": 0.5, "score": "accuracy", "keep_rows": False}),
        Example({"step": 1, "delta": 0.0, "eager": True, "born": "fresh", "most": 2}),
    ],
    ("method", "fedweit"): [
        Example(model={"kind": "decomposed", "network": {"kind": "mlp", "hidden": [4]}}),
        Example({"retroactive": True, "pool": "all", "sparsity": 0.5, "threshold": 0.05}, model=_DECOMPOSED),
        Example({"implicit": False, "past": 5.0, "l1_mask": 0.01}, model=_DECOMPOSED, local={"optimizer": "adam"}),
    ],
    ("method", "ifca"): [Example({"concepts": 3})],
    ("method", "dac"): [
        Example({"contacts": 2}),
        Example({"contacts": 2, "first_contact": "overwritten", "temperature": {}, "initial_similarity": "zero"}),
        Example({"contacts": 2, "awareness": _WARY}),
    ],
    ("method", "hast"): [
        Example({"contacts": 2}),
        Example({"contacts": 1, "similar_losses": "used", "finetune": "always", "segment": "head", "kept": 2}),
        Example({"contacts": 1, "awareness": {**_WARY, "rows": "training"}, "on_shift": "age"}),
    ],
    ("method", "local"): [Example({"initial": "own"})],
    ("method", "pens"): [
        Example({"drawn_peers": 2, "best": 1, "selection_rounds": 2, "reselect_every": 3}),
        Example({"drawn_peers": 2, "best": 1, "selection_rounds": 1, "awareness": _WARY}),
    ],
    ("method", "random"): [
        Example({"contacts": 2, "topology": {"kind": "ring"}, "offline": "reachable", "finetune": "if_better"}),
        Example({"per": "task", "probes": True, "loss_mean": "batches"}),
    ],
    ("learner", "plain"): [
        Example(),
        Example(local={"lr_schedule": _PLATEAU}),
        Example(local={"optimizer": "adam", "keep": True}),
    ],
    ("learner", "adaptive-rate"): [Example(), Example(local={"lr_schedule": {"kind": "exponential", "gamma": 0.5}})],
    ("learner", "early-stopping"): [Example({"gamma": 0.1}, local={"epochs": 3, "momentum": 0.9})],
    ("learner", "ewc"): [Example(), Example({"per": "task", "fisher": "batch", "strength": 5000.0})],
    ("learner", "proximal"): [Example({"mu": 0.5}), Example({"mu": 100.0, "implicit": True})],
    ("learner", "scaffold"): [Example(), Example({"option": "I"}), Example(local={"lr_schedule": _PLATEAU})],
    ("learner", "svrg"): [
        Example(),
        Example({"anchor": "local"}),
        Example({"anchor": "global"}),
    ],
    ("compression", "qsgd"): [Example({"bits": 4, "bucket": 7})],
    ("compression", "topk"): [
        Example({"share": 0.3, "momentum": 0.9}),
        Example({"share": 0.1, "per": "model", "warmup": 2}),
    ],
    # Within the bound it is a mean like any other; what a tighter one does breaks the law of equal answers, by design.
    ("mean", "clipped"): [Example({"bound": 100.0})],
    ("mean", "trimmed"): [Example(), Example({"beta": 0.3})],
    ("mean", "listed"): [Example({"weights": [3.0, 50.0, 7.0, 1.0]})],
    ("server", "sgd"): [
        Example(),
        Example({"lr": 0.5}),
        Example({"lr_schedule": {"kind": "plateau", "patience": 0, "gamma": 0.5}}),
        Example({"lr_schedule": {"kind": "stages", "at": [0.5]}}),
    ],
    ("server", "momentum"): [Example(), Example({"form": "heavy-ball", "nesterov": True, "lr": 0.3})],
    ("server", "adam"): [
        Example(),
        Example({"bias_correction": True}),
        Example({"second_moment": "momentum", "lr_schedule": "cosine"}),
    ],
    ("server", "amsgrad"): [Example(), Example({"form": "reddi", "lr_schedule": {"kind": "exponential"}})],
    ("calibration", "epsilon"): [Example(), Example({"epsilon": "auto", "window": 2})],
    ("calibration", "softplus"): [Example(), Example({"beta": "auto", "quantile": 0.25, "window": 1})],
    ("server", "adaptive-fedavg"): [Example(), Example({"over_t": True})],
    ("server", "flash"): [Example(), Example({"v_init": "zero", "tau": 0.001})],
    ("partition", "column"): [Example({"column": "domain"}, clients=3)],
    ("partition", "dirichlet"): [
        Example({"by": "class", "alpha": 0.3}),
        Example({"by": "client", "alpha": 0.1}),
        Example({"by": "client", "alpha": 1.0, "rows": 12}, leaves_rows=True),
        Example({"by": "client", "alpha": 0.3, "group": 2, "prior": "ones"}),
    ],
    ("partition", "draw"): [Example({"rows": 15}, shares_rows=True), Example({"rows": 15, "alpha": 0.2}, True)],
    ("partition", "shards"): [Example(), Example({"per_client": 3, "distinct": True}, clients=6)],
    ("partition", "sizes"): [
        Example({"exponent": 1.0}),
        Example({"sizes": [40, 20, 0, 10]}, leaves_rows=True, clients=4),
        Example({"sizes": [0.5, 0.25, 0.25]}, clients=3),
    ],
    ("stream", "concepts"): [
        Example({"clients": 3, "concepts": {"by": "domain"}, "order": "cyclic", "known": True}),
        Example({**_CONCEPTS, "concepts": {"classes": [["u", "v"], ["w", "x", "y"]]}, "split": "given"}, False, True),
        Example({**_CONCEPTS, "concepts": {"by": "transform", "groups": ["identity", "invert"]}}, leaves_rows=True),
        Example({**_CONCEPTS, "concepts": _SELECTED, "weights": {"dirichlet": 0.5}, "head": "concept"}, False, True),
        Example({**_CONCEPTS, "concepts": {"by": "domain"}, "schedule": _LATE, "targets": "client"}, leaves_rows=True),
    ],
    ("stream", "shifts"): [
        Example({**_SHIFTS, "clusters": [["u", "v", "w"], ["x", "y", "z"]]}, leaves_rows=True),
        Example({**_SHIFTS, "by": "domain", "fresh": "changed", "gradual": 1, "stagger": 1}, True, True),
        Example({**_SHIFTS, "by": "swap", "clusters": [[], ["u", "v"]], "fresh": "never", "pattern": "rotate"}, True),
        Example({**_SHIFTS, "by": "transform", "clusters": ["identity", "invert"], "gradual": 2}, leaves_rows=True),
    ],
    ("stream", "static"): [
        Example({"clients": 4}),
        Example({"clients": 6, "partition": _SKEWED, "validation": 0.3}),
        Example({"clients": 50, "partition": {"kind": "draw", "rows": 12}}, shares_rows=True),
        Example({"clients": 5, "partition": _SKEWED, "targets": "client"}),
        Example({"clients": 4, "partition": {"kind": "shards"}, "targets": "client", "test_rows": 3}),
        Example({"partition": {"kind": "column", "column": "domain"}, "targets": "client"}),
    ],
    ("stream", "tasks"): [
        Example({"clients": 4, "tasks": 2, "by": "transform"}),
        Example({"clients": 4, "tasks": 3, "by": "class", "partition": _SKEWED, "shuffle_classes": True}),
        Example({"clients": 3, "tasks": 3, "by": "domain", "order": "synchronous"}),
        Example({"clients": 3, "tasks": 2, "by": "class", "order": "multi-task"}),
        Example({"clients": 3, "tasks": 2, "by": "transform", "targets": "client"}),
        Example({"clients": 3, "tasks": 2, "by": "class", "classes": [["u"], ["w", "z"]]}, leaves_rows=True),
    ],
}
"""Kinds that need settings, or whose settings change what the laws see. All others are tried as they are."""


def examples_of(part: str, kind: str) -> Sequence[Example]:
    """The examples of a kind; a class of a user's own lists its settings in an attribute ``examples``.

    Its attributes ``shares_rows`` and ``leaves_rows`` say what its partition or stream may do, ``example_model``
    which model its method or learner needs.
    """
    if (part, kind) in EXAMPLES:
        return EXAMPLES[part, kind]
    target = registry.find(part, kind)
    flags: dict[str, Any] = {name: bool(getattr(target, name, False)) for name in ("shares_rows", "leaves_rows")}
    model = getattr(target, "example_model", None)
    return [Example(settings, **flags, model=model) for settings in getattr(target, "examples", [{}])]
