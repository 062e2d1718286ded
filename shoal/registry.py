"""Parts by their ``kind``: one line here makes a part known to the configuration, the laws and ``shoal methods``.

A part is a class or function. Its settings are its keyword-only parameters: their annotations are checked by
pydantic, their defaults are written into the run's ``config.yaml``. A parameter annotated with a class that
has a ``part`` attribute is a part itself and is configured by a mapping with a ``kind``. A user's own part
is named by import path, ``kind: my_package.my_module:MyClass``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pydantic

from .errors import ConfigError, nearest
from .wanted import union_at

PARTS: dict[str, dict[str, str]] = {
    "data": {
        "arrays": "shoal.data.arrays:Arrays",
        "digits": "shoal.data.digits:Digits",
        "folder": "shoal.data.folder:Folder",
        "hub": "shoal.data.hub:Hub",
        "idx": "shoal.data.idx:Idx",
        "parquet": "shoal.data.parquet:Parquet",
        "table": "shoal.data.table:Table",
        "union": "shoal.data.union:Union",
    },
    "stream": {
        "concepts": "shoal.streams.concepts:ConceptStream",
        "shifts": "shoal.streams.shifts:ShiftStream",
        "static": "shoal.streams.static:StaticStream",
        "tasks": "shoal.streams.tasks:TaskStream",
    },
    "partition": {
        "column": "shoal.streams.partitions:ByColumn",
        "dirichlet": "shoal.streams.partitions:Dirichlet",
        "draw": "shoal.streams.partitions:Draw",
        "iid": "shoal.streams.partitions:Iid",
        "shards": "shoal.streams.partitions:Shards",
        "sizes": "shoal.streams.partitions:Sizes",
    },
    "model": {
        "cnn": "shoal.models.cnn:cnn",
        "decomposed": "shoal.models.decomposed:decomposed",
        "efficientnet-lite0": "shoal.models.efficientnet:efficientnet_lite0",
        "lenet": "shoal.models.lenet:lenet",
        "mlp": "shoal.models.mlp:mlp",
        "nettailor": "shoal.models.nettailor:nettailor",
        "resnet18": "shoal.models.resnet18:resnet18",
        "resnet20": "shoal.models.resnet:resnet20",
        "vgg11": "shoal.models.vgg:vgg11",
    },
    "method": {
        "concept-matching": "shoal.methods.clustered_matching:ConceptMatching",
        "dac": "shoal.methods.dac:Dac",
        "fedavg": "shoal.methods.fedavg:FedAvg",
        "feddrift": "shoal.methods.clustered_feddrift:FedDrift",
        "fedweit": "shoal.methods.fedweit:FedWeit",
        "hast": "shoal.methods.hast:Hast",
        "ifca": "shoal.methods.clustered_ifca:Ifca",
        "local": "shoal.methods.gossip:Local",
        "oracle": "shoal.methods.gossip:Oracle",
        "pens": "shoal.methods.pens:Pens",
        "random": "shoal.methods.gossip:Random",
    },
    "topology": {
        "complete": "shoal.gossip.topologies:Complete",
        "erdos-renyi": "shoal.gossip.topologies:ErdosRenyi",
        "listed": "shoal.gossip.topologies:Listed",
        "random-regular": "shoal.gossip.topologies:RandomRegular",
        "ring": "shoal.gossip.topologies:Ring",
        "sequence": "shoal.gossip.topologies:Sequence",
        "torus": "shoal.gossip.topologies:Torus",
    },
    "detector": {
        "jump": "shoal.gossip.detectors:Jump",
        "river": "shoal.gossip.river:River",
    },
    "score": {
        "inverse-loss": "shoal.gossip.similarities:inverse_loss",
    },
    "learner": {
        "adaptive-rate": "shoal.learners.adaptive_rate:AdaptiveRate",
        "early-stopping": "shoal.learners.early_stopping:EarlyStopping",
        "ewc": "shoal.learners.ewc:Ewc",
        "plain": "shoal.learners.base:Learner",
        "proximal": "shoal.learners.proximal:Proximal",
        "scaffold": "shoal.learners.scaffold:Scaffold",
        "svrg": "shoal.learners.svrg:Svrg",
    },
    "compression": {
        "qsgd": "shoal.compression.qsgd:Qsgd",
        "topk": "shoal.compression.topk:TopK",
    },
    "mean": {
        "clipped": "shoal.server.robust:Clipped",
        "fednova": "shoal.server.fednova:FedNova",
        "listed": "shoal.server.means:Listed",
        "median": "shoal.server.robust:Median",
        "trimmed": "shoal.server.robust:Trimmed",
        "unbiased": "shoal.server.unbiased:Unbiased",
        "uniform": "shoal.server.means:Uniform",
        "weighted": "shoal.server.means:Weighted",
    },
    "server": {
        "adagrad": "shoal.server.adaptive:Adagrad",
        "adam": "shoal.server.adaptive:Adam",
        "adaptive-fedavg": "shoal.server.adaptive_rate:AdaptiveFedAvg",
        "amsgrad": "shoal.server.adaptive:AMSGrad",
        "flash": "shoal.server.flash:Flash",
        "momentum": "shoal.server.plain:Momentum",
        "sgd": "shoal.server.plain:SGD",
        "yogi": "shoal.server.adaptive:Yogi",
    },
    "calibration": {
        "epsilon": "shoal.server.calibrations:Epsilon",
        "p": "shoal.server.calibrations:Power",
        "softplus": "shoal.server.calibrations:Softplus",
    },
    "schedule": {
        "cosine": "shoal.schedules:Cosine",
        "exponential": "shoal.schedules:Exponential",
        "plateau": "shoal.schedules:Plateau",
        "stages": "shoal.schedules:Stages",
    },
    "clusterer": {
        "agglomerative": "shoal.clustering.partitioning:Agglomerative",
        "birch": "shoal.clustering.partitioning:Birch",
        "dbscan": "shoal.clustering.density:Dbscan",
        "hdbscan": "shoal.clustering.density:Hdbscan",
        "kmeans": "shoal.clustering.partitioning:KMeans",
        "optics": "shoal.clustering.density:Optics",
        "spectral": "shoal.clustering.partitioning:Spectral",
    },
    "matching": {
        "gated": "shoal.clustering.gate:Gated",
        "nearest": "shoal.clustering.matching:Nearest",
        "nearest-merged": "shoal.clustering.matching:NearestMerged",
        "one-to-one": "shoal.clustering.matching:OneToOne",
        "paper": "shoal.clustering.record:Paper",
    },
    "augmentation": {
        "crop": "shoal.engine.augment:crop",
        "flip": "shoal.engine.augment:flip",
    },
    "loss": {
        "cross_entropy": "shoal.losses:CrossEntropy",
        "huber": "shoal.losses:Huber",
        "mae": "shoal.losses:MeanAbsolute",
        "mse": "shoal.losses:MeanSquared",
        "nettailor": "shoal.losses.nettailor:NetTailorLoss",
    },
    "metric": {
        "auc": "shoal.metrics.classification:auc",
        "balanced_accuracy": "shoal.metrics.classification:balanced_accuracy",
        "f1": "shoal.metrics.classification:f1",
        "mae": "shoal.metrics.regression:mae",
        "r2": "shoal.metrics.regression:r2",
        "rmse": "shoal.metrics.regression:rmse",
    },
    "tracker": {
        "tensorboard": "shoal.track.tensorboard:TensorBoard",
    },
    "measure": {
        "accuracy": "shoal.metrics.accuracy:Accuracy",
        "alarms": "shoal.metrics.alarms:Alarms",
        "costs": "shoal.metrics.costs:Costs",
        "drift": "shoal.metrics.drift:ClientDrift",
        "backward_transfer": "shoal.metrics.transfer:BackwardTransfer",
        "concepts": "shoal.metrics.concepts:Concepts",
        "confusion": "shoal.metrics.confusion:Confusion",
        "contacts": "shoal.metrics.contacts:Contacts",
        "forgetting": "shoal.metrics.forgetting:Forgetting",
        "forward_transfer": "shoal.metrics.forward:ForwardTransfer",
        "movement": "shoal.metrics.movement:Movement",
        "probes": "shoal.metrics.probes:Probes",
        "server": "shoal.metrics.server:ServerStep",
        "shift": "shoal.metrics.shift:Shift",
        "similarity": "shoal.metrics.similarity:Similarity",
        "validation": "shoal.metrics.validation:Validation",
    },
}

ALIASES: dict[str, dict[str, dict[str, Any]]] = {
    "method": {
        "fedadagrad": {"kind": "fedavg", "server": {"kind": "adagrad"}},
        "fedadam": {"kind": "fedavg", "server": {"kind": "adam"}},
        "fedamsgrad": {"kind": "fedavg", "server": {"kind": "amsgrad"}},
        "fedmomentum": {"kind": "fedavg", "server": {"kind": "momentum"}},
        "fedsgd": {"kind": "fedavg", "server": {"kind": "sgd"}},
        "fedyogi": {"kind": "fedavg", "server": {"kind": "yogi"}},
        "nettailor": {"kind": "fedavg", "per": "task"},
    },
}
"""Names of known systems for settings of several parts; the run's ``config.yaml`` has the expanded form."""

SYSTEMS: dict[str, dict[str, dict[str, Any]]] = {
    "nettailor": {"model": {"kind": "nettailor"}},
}
"""What an alias of a method says of parts outside of ``method``."""

BASES: dict[str, str] = {
    "calibration": "shoal.server.base:Calibration",
    "compression": "shoal.compression.base:Compression",
    "data": "shoal.data.source:Source",
    "detector": "shoal.gossip.detectors:Detector",
    "learner": "shoal.learners.base:Learner",
    "matching": "shoal.clustering.matching:Matching",
    "mean": "shoal.server.base:Mean",
    "measure": "shoal.metrics.base:Measure",
    "partition": "shoal.streams.cells:Partition",
    "schedule": "shoal.schedules:Schedule",
    "server": "shoal.server.base:ServerOptimizer",
    "stream": "shoal.streams.base:Stream",
    "topology": "shoal.gossip.topologies:Topology",
    "tracker": "shoal.track.base:Tracker",
}
"""What a part of one's own must be derived from, where nothing else checks it: known by its attribute ``part``."""


class Setting(NamedTuple):
    """One setting of a part: its annotation and default, and the part that it is configured as, if any."""

    annotation: Any
    default: Any
    part: str | None


def find(part: str, kind: str, key: str = "") -> Callable[..., Any]:
    """The class or function behind a kind; raises `ConfigError` for an unknown one, naming the nearest known.

    ``key`` is where the kind stands in the configuration, ``PART.kind`` if left out.
    """
    known = PARTS[part]
    key = key or f"{part}.kind"
    path = known.get(kind, kind)
    if ":" not in path:
        raise ConfigError(
            f"{key}: no {part} is called {kind!r}; {nearest(kind, [*known, *ALIASES.get(part, {})])} "
            f"(or your own by import path, with a colon: kind: my_module:MyClass)"
        )
    module_name, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            hint = f"; modules of your own are looked for in the folder where you call shoal, {Path.cwd()}"
        raise ConfigError(f"{key}: cannot import {path!r}: {error}{hint}") from error
    if not callable(found):
        raise ConfigError(f"{key}: {path!r} is a {type(found).__name__}, not a class or function")
    return typing.cast("Callable[..., Any]", found)


def _part_of(annotation: Any) -> str | None:
    options = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else ()
    for option in (annotation, *options):
        part = getattr(option, "part", None)
        if isinstance(option, type) and isinstance(part, str):
            return part
    return None


def _annotation(function: Any, name: str, parameter: inspect.Parameter) -> Any:
    """A parameter's annotation, evaluated; those of other parameters may be there for type checkers only."""
    annotation = Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, getattr(function, "__globals__", {}))
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigError(
            f"the setting {name!r} of {getattr(function, '__qualname__', function)} has the annotation "
            f"{annotation!r}, which cannot be evaluated: {error}; import it outside TYPE_CHECKING"
        ) from None


@functools.cache
def settings_of(target: Callable[..., Any]) -> dict[str, Setting]:
    """The settings of a part: the keyword-only parameters of the function or of the class's ``__init__``."""
    function: Any = inspect.getattr_static(target, "__init__") if isinstance(target, type) else target
    found: dict[str, Setting] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            annotation = _annotation(function, name, parameter)
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            found[name] = Setting(annotation, default, _part_of(annotation))
    return found


class Strict(pydantic.BaseModel):
    """A schema that knows its names, and does not take YAML's ``true`` (or ``yes``, ``on``) for the number 1."""

    model_config = pydantic.ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, protected_namespaces=(), ser_json_inf_nan="constants"
    )

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _booleans_are_no_numbers(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        annotation = str(cls.model_fields[str(info.field_name)].annotation)
        numeric = "int" in annotation or "float" in annotation
        if numeric and "bool" not in annotation and _has_boolean(value):
            raise ValueError("a number, not true or false")
        return value


def _has_boolean(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_boolean(item) for item in value)
    return isinstance(value, bool)


@functools.cache
def _schema(target: Callable[..., Any]) -> type[pydantic.BaseModel]:
    fields = {
        name: (setting.annotation, setting.default)
        for name, setting in settings_of(target).items()
        if setting.part is None
    }
    return pydantic.create_model(  # type: ignore[call-overload,no-any-return]
        getattr(target, "__name__", "settings"),
        __base__=Strict,
        **fields,
    )


def explain(
    error: pydantic.ValidationError,
    where: str,
    known: typing.Iterable[str],
    schema: Any = None,
) -> ConfigError:
    """A validation error in our words: one line per fault, with the place, what came, and the nearest name.

    What fits no branch of a union (``int | str``) is one fault, of which pydantic gives one for each branch;
    ``schema``, the model or annotation that was checked, says where the unions are.
    """
    lines = []
    names = list(known)
    told: set[tuple[int | str, ...]] = set()
    faults = error.errors()
    for fault in faults:
        place = ".".join([where, *(str(item) for item in fault["loc"])]).strip(".")
        union = None if schema is None else union_at(schema, fault["loc"])
        if union is not None:
            depth, wanted = union
            at = fault["loc"][:depth]
            if at not in told:
                told.add(at)
                # A branch that fails as a whole has all that came, others what is wrong inside it.
                whole = min((f for f in faults if f["loc"][:depth] == at), key=lambda f: len(f["loc"]))
                place = ".".join([where, *map(str, at)]).strip(".")
                lines.append(f"{place}: {wanted}; got {whole['input']!r}")
        elif fault["type"] == "extra_forbidden":
            lines.append(f"{place}: no such setting; {nearest(str(fault['loc'][-1]), names)}")
        elif fault["type"] == "missing":
            lines.append(f"{place}: this setting is required")
        else:
            lines.append(f"{place}: {fault['msg'].removeprefix('Value error, ')}; got {fault['input']!r}")
    return ConfigError("\n".join(lines))


def resolve(
    part: str, given: Any, where: str = "", extra: typing.Iterable[str] = (), default: str | None = None
) -> dict[str, Any]:
    """The settings of a part with every default filled in, checked; ``given`` is a mapping with ``kind``, or a kind.

    ``extra`` names settings that belong to somebody else and pass through untouched (``mean`` and ``server`` of
    a method). ``default`` is the kind of a mapping that names none. Raises `ConfigError`.
    """
    where = where or part
    if isinstance(given, str):
        given = {"kind": given}
    if isinstance(given, Mapping) and "kind" not in given and default is not None:
        given = {"kind": default, **given}
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        raise ConfigError(
            f"{where}: needs a mapping with a 'kind', such as {{kind: {next(iter(PARTS[part]))}}}; got {given!r}"
        )
    kind = given["kind"]
    target = find(part, kind, f"{where}.kind")
    settings = settings_of(target)
    nested = {name: setting for name, setting in settings.items() if setting.part is not None}
    own = {name: value for name, value in given.items() if name not in ("kind", *nested, *extra)}
    positional = [name for name in own if name not in settings and name in inspect.signature(target).parameters]
    if positional:
        raise ConfigError(
            f"{where}.{positional[0]}: {kind} takes it as a positional parameter; settings are keyword-only, "
            f"put it after * in the signature"
        )
    try:
        checked = _schema(target)(**own)
    except pydantic.ValidationError as error:
        raise explain(error, where, [*settings, *extra], _schema(target)) from None
    resolved: dict[str, Any] = {"kind": kind, **checked.model_dump(mode="json")}
    for name, setting in nested.items():
        value = given.get(name, setting.default)
        if value is ...:
            raise ConfigError(f"{where}.{name}: this setting is required")
        usual = setting.default.get("kind") if isinstance(setting.default, Mapping) else None
        resolved[name] = None if value is None else resolve(str(setting.part), value, f"{where}.{name}", default=usual)
    return resolved


def build(part: str, settings: Mapping[str, Any], *args: Any, where: str = "", **more: Any) -> Any:
    """Builds a part from its resolved settings; ``args`` and ``more`` are what the caller supplies beside them.

    ``where`` is the part's path in the configuration, such as ``method.topology``, and stands in front of every fault.
    A constructor need not know it: what it says of one of its settings (``rows: ...``) or of its kind of part
    (``topology.rows: ...``) gets the path, and so does anything else that it raises as a ``ValueError``. Raises
    `ConfigError`.
    """
    where = where or part
    target = find(part, settings["kind"], f"{where}.kind")
    known = settings_of(target)
    own = {}
    for name, value in settings.items():
        if name in known:
            nested = known[name].part
            if nested is not None and value is not None:
                # A part inside one of its own kind, such as a learner around a learner, is supplied like it.
                inner = args if nested == part else ()
                value = build(nested, value, *inner, where=f"{where}.{name}")
            own[name] = value
    plain = {name: value for name, value in own.items() if known[name].part is None}
    try:
        # Back through the schema: a tuple or an enumeration became a list or a string in config.yaml.
        checked = _schema(target)(**plain)
    except pydantic.ValidationError as error:
        raise explain(error, where, known, _schema(target)) from None
    own.update({name: getattr(checked, name) for name in plain})
    if isinstance(target, type):
        _check_base(target, target.__name__, part, where, settings["kind"])
    try:
        made = target(*args, **own, **more)
    except ValueError as error:
        raise ConfigError(_placed(str(error), part, where, known) or f"{where}: {error}") from error
    except ConfigError as error:
        placed = _placed(str(error), part, where, known)
        if placed is None:
            raise
        raise ConfigError(placed) from error
    _check_base(made, type(made).__name__, part, where, settings["kind"])
    return made


def _check_base(thing: Any, name: str, part: str, where: str, kind: str) -> None:
    """Better here than in the middle of the first round."""
    if part in BASES and getattr(thing, "part", None) != part:
        said = f"a kind of {part} is a class derived from {BASES[part]}"
        raise ConfigError(f"{where}.kind: {kind} gives a {name}; {said}")


def _placed(text: str, part: str, where: str, known: typing.Container[str]) -> str | None:
    """A constructor's message with the path ``where`` in front of each line that begins with one of its ``known``
    settings or its part; ``None`` if the first line does not."""
    lines: list[str] = []
    for line in text.split("\n"):
        name = re.split(r"[.:\[]", line, maxsplit=1)[0]
        if name == part != line:
            lines.append(where + line[len(name) :])
        elif name in known and name != line:
            lines.append(f"{where}.{line}")
        elif lines:
            lines.append(line)
        else:
            return None
    return "\n".join(lines)


def accepted(part: str, kind: str, **offered: Any) -> dict[str, Any]:
    """Those of ``offered`` that the kind takes: it names them as parameters that are not settings."""
    target = find(part, kind)
    parameters = inspect.signature(target).parameters
    settings = settings_of(target)
    return {name: value for name, value in offered.items() if name in parameters and name not in settings}


def register(part: str, kind: str) -> Callable[[type], type]:
    """A decorator that makes a class known under ``kind`` in this process (import paths work everywhere)."""
    if part not in PARTS:
        raise ConfigError(f"no kind of part is called {part!r}; {nearest(part, PARTS)}")

    def remember(target: type) -> type:
        if "." in target.__qualname__:
            raise ConfigError(f"{target.__qualname__} is defined inside something else; a part stands in its module")
        PARTS[part][kind] = f"{target.__module__}:{target.__qualname__}"
        return target

    return remember
