"""From a configuration to the parts of a run. Everything that can be wrong with a configuration fails here."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic
from torch import Tensor

from . import registry
from .config import Config
from .data.dataset import Dataset
from .engine import check_engine, chosen
from .engine.augment import augmentation
from .errors import ConfigError
from .loading import merged
from .losses import check_arguments
from .losses.trial import try_loss
from .messages import World
from .methods.base import Method
from .metrics.accuracy import Accuracy
from .metrics.base import Context, Measure
from .metrics.functions import check_metrics
from .models.factory import build_models, resolve_model
from .models.pretraining import shared
from .participation import Selection
from .streams.base import Stream

HOOKS = ("start", "assign", "train", "candidates")
"""What every method must say for itself."""
LOOKED_AT = 200
"""Of so many clients the validation rows are looked at."""
METHOD_PARTS = ("mean", "server")
"""Parts that are written inside ``method`` and passed to every method."""


def _unaliased(part: str, settings: Any) -> Any:
    """The settings with an alias such as ``kind: fedadam`` expanded."""
    if isinstance(settings, str):
        settings = {"kind": settings}
    if isinstance(settings, Mapping) and settings.get("kind") in registry.ALIASES.get(part, {}):
        alias = registry.ALIASES[part][settings["kind"]]
        return merged(alias, {k: v for k, v in settings.items() if k != "kind"})
    return settings


def _with_system(raw: Any) -> Any:
    """The configuration with the parts that an alias such as ``method: nettailor`` sets outside of ``method``.

    Raises `ConfigError` for another kind of such a part.
    """
    method = raw.get("method") if isinstance(raw, Mapping) else None
    name = method.get("kind") if isinstance(method, Mapping) else method
    if not isinstance(name, str):
        return raw
    for part, meant in registry.SYSTEMS.get(name, {}).items():
        given = raw.get(part) or {}
        given = {"kind": given} if isinstance(given, str) else given
        if isinstance(given, Mapping) and given.get("kind", meant["kind"]) != meant["kind"]:
            raise ConfigError(
                f"{part}.kind: method {name} means {part} {meant['kind']}, too; got {given['kind']!r}. Leave it out, "
                f"or write the method as {json.dumps(registry.ALIASES['method'][name])}"
            )
        raw = {**raw, part: merged(meant, given)} if isinstance(given, Mapping) else raw
    return raw


def _resolve_method(given: Any) -> dict[str, Any]:
    settings = _unaliased("method", given)
    resolved = registry.resolve("method", settings, extra=METHOD_PARTS, default="fedavg")
    resolved["mean"] = registry.resolve("mean", settings.get("mean", "weighted"), "method.mean", default="weighted")
    resolved["server"] = registry.resolve("server", settings.get("server", "sgd"), "method.server", default="sgd")
    return resolved


def resolve_config(raw: Mapping[str, Any]) -> Config:
    """The configuration of one run with every default filled in, checked as far as that goes without data.

    Raises `ConfigError`.
    """
    raw = _with_system(raw)
    try:
        config = Config(**raw)
    except pydantic.ValidationError as error:
        raise registry.explain(error, "", _names(error), Config) from None
    except TypeError as error:
        raise ConfigError(f"a configuration is a mapping of names to settings: {error}") from None
    learner = registry.resolve("learner", config.local.learner, "local.learner", default="plain")
    schedule = config.local.lr_schedule
    if schedule is not None:
        schedule = registry.resolve("schedule", schedule, "local.lr_schedule")
    compression = config.local.compression
    if compression is not None:
        compression = registry.resolve("compression", compression, "local.compression")
    for name in config.local.augment:
        augmentation(name)
    check_arguments(config.local.loss, config.local.loss_args)
    method = _resolve_method(config.method)
    for name in config.evaluate.measures:
        registry.find("measure", name)
    for name in config.evaluate.metrics:
        registry.find("metric", name)
    check_engine(config.execution)
    return config.model_copy(
        update={
            "data": registry.resolve("data", config.data, default="digits"),
            "stream": registry.resolve("stream", config.stream),
            "model": resolve_model({"kind": "mlp", **config.model}, _task_models(method, config.stream)),
            "method": method,
            "local": config.local.model_copy(
                update={"learner": learner, "lr_schedule": schedule, "compression": compression}
            ),
            "track": None if config.track is None else registry.resolve("tracker", config.track, "track"),
        }
    )


def _task_models(method: Mapping[str, Any], stream: Mapping[str, Any]) -> int:
    """How many tasks have models of their own: those of the stream, where the method keeps one for each."""
    tasks = stream.get("tasks")
    return tasks if isinstance(tasks, int) and not isinstance(tasks, bool) and _by_task(method) else 0


def _by_task(method: Mapping[str, Any]) -> bool:
    target = registry.find("method", method["kind"])
    return bool(getattr(target, "keeps_task_models", lambda settings: False)(method))


def _names(error: pydantic.ValidationError) -> list[str]:
    """The names that were allowed where the first unknown one stands."""
    model: Any = Config
    for fault in error.errors():
        if fault["type"] == "extra_forbidden":
            for item in fault["loc"][:-1]:
                model = model.model_fields[str(item)].annotation
    return list(model.model_fields)


@dataclass(frozen=True)
class Setup:
    """The parts of one run. Nothing in here changes while it runs."""

    config: Config
    dataset: Dataset
    stream: Stream
    world: World
    method: Method
    measures: Mapping[str, Measure]
    selection: Selection

    @property
    def warnings(self) -> list[str]:
        """What makes the run's numbers better than they are; said before it begins, too."""
        return [note for note in self.notes if note.startswith("warning: ")]

    @functools.cached_property  # rows are compared with those of a pre-training: once for a run
    def notes(self) -> list[str]:
        """Remarks for the user, of the data, the models, the stream and the learner, each once."""
        models = [note for model in self.world.models.values() for note in model.notes]
        learner = _unvalidated(self.stream, self.method)
        oracle = _oracle(self.config.method["kind"], self.method)
        known = _pretrained(self.config, self.stream)
        compression = self.method.learner.compression
        sent = () if compression is None else compression.notes
        notes = [*self.dataset.notes, *models, *known, *self.stream.notes(), *learner, *oracle, *sent]
        return list(dict.fromkeys(notes))


def _pretrained(config: Config, stream: Stream) -> list[str]:
    """What is known of the rows that the models were pre-trained on, and must be said of this run."""

    def tested() -> list[Tensor]:
        moments = {1, *(last + 1 for last in stream.boundaries), max(1, config.rounds)}
        return [target.test for moment in sorted(moments) for target in stream.targets(moment)]

    return shared(config.model, stream.dataset, tested, config.data.get("normalize"))


def _unvalidated(stream: Stream, method: Method) -> list[str]:
    """What becomes of clients without validation rows where the learner or the method looks at them, or the loss on
    them is reported; of the first clients alone."""
    learner, server = method.learner, method.server
    if not (method.reads_validation or learner.reads_validation or learner.reads_reported or server.reads_reported):
        return []
    seen = min(stream.clients, LOOKED_AT)
    held = [stream.holding(client, 1) for client in range(seen)]
    without = sum(len(h.train) > 0 and not len(h.validation) for h in held)
    if not without:
        return []
    whose = f"of {seen} clients" if seen == stream.clients else f"of the first {seen} clients"
    effects = ["they never stop early"] if learner.reads_validation else []
    effects += ["what the method judges on them is left out (finetune: if_better)"] if method.reads_validation else []
    effects += ["local.lr_schedule hears nothing from them"] if learner.reads_reported else []
    effects += ["the server optimiser hears no loss from them"] if server.reads_reported else []
    return [f"{without} {whose} hold no validation rows in round 1: {', and '.join(effects)} (see stream.validation)"]


def build_stream(config: Config, dataset: Dataset) -> Stream:
    """The stream of a resolved configuration over a data set."""
    stream = registry.build("stream", config.stream, dataset, config.seed, config.rounds, _by_task(config.method))
    assert isinstance(stream, Stream)
    return stream


def build_method(config: Config, world: World, selection: Selection | None = None) -> Method:
    """The method of a resolved configuration, with its learner, mean and server optimiser.

    ``selection`` is how clients are drawn; it may be left out where nothing will be merged.
    """
    learner = registry.build("learner", config.local.learner, world, config.local, where="local.learner")
    parts = []
    for part in METHOD_PARTS:
        settings = config.method[part]
        offered = registry.accepted(part, settings["kind"], world=world, local=config.local, selection=selection)
        parts.append(registry.build(part, settings, where=f"method.{part}", **offered))
    own = {name: value for name, value in config.method.items() if name not in METHOD_PARTS}
    method: Method = registry.build("method", own, world, learner, *parts)
    _check_method(method, str(config.method["kind"]))
    return method


def _check_method(method: Any, kind: str) -> None:
    """Raises `ConfigError` for a class that is no method, or half of one: better here than in the first round."""
    if not isinstance(method, Method):
        raise ConfigError(f"method.kind: {kind} gives a {type(method).__name__}, not a shoal.methods.base.Method")
    missing = [name for name in HOOKS if getattr(type(method), name) is getattr(Method, name)]
    if missing:
        raise ConfigError(f"method.kind: {kind} lacks {', '.join(missing)}; a method defines {', '.join(HOOKS)}")
    if not hasattr(method, "learner"):
        raise ConfigError(f"method.kind: {kind}.__init__ must call super().__init__(world, learner, mean, server)")
    if method.serverless and method.learner.needs_server:
        raise ConfigError(
            f"local.learner: {type(method.learner).__name__} with these settings joins numbers of all clients on a "
            f"server, and method {kind} has none; use another learner (svrg: anchor local), or a method with a server"
        )
    if method.serverless and method.learner.compression is not None:
        raise ConfigError(
            f"local.compression: what is sent is the change of a model that the server knows, and method {kind} has no "
            f"server; leave local.compression out, or use a method with a server"
        )
    if method.serverless and method.mean.needs_server:
        raise ConfigError(
            f"method.mean: {type(method.mean).__name__} weighs by how a server draws the clients, and method {kind} "
            f"has none; use mean: weighted or uniform"
        )


def _check_truth(method: Method, stream: Stream, kind: str) -> None:
    """Raises `ConfigError` for a method that is told the truth, on a stream that has none of what it asks for."""
    if method.needs_truth:
        truth = stream.holding(0, 1).truth
        if not set(method.needs_truth) & set(truth):
            raise ConfigError(
                f"method.kind: {kind} is told the true {' or '.join(method.needs_truth)} of each client's rows, and "
                f"this stream's truth has {sorted(truth) or 'nothing'}; use a stream that has one, or another method"
            )


def _oracle(kind: str, method: Method) -> list[str]:
    """What must be said of a method that sees what no client can know."""
    if not method.needs_truth:
        return []
    return [f"method {kind} is an oracle: it is told the truth about the clients' rows, which no real client knows"]


def _check_metrics(metrics: Sequence[str], measures: Mapping[str, Measure], dataset: Dataset) -> None:
    """Raises `ConfigError` for metrics that could not be measured, or whose lines would be taken for others."""
    if metrics and not any(isinstance(measure, Accuracy) for measure in measures.values()):
        raise ConfigError(
            f"evaluate.metrics: {list(metrics)} are measured with the accuracy, but evaluate.measures has only "
            f"{list(measures)}; add accuracy"
        )
    known = [registry.find("measure", kind) for kind in {*registry.PARTS["measure"], *measures}]
    check_metrics(metrics, dataset, {line for kind in known for line in getattr(kind, "lines", ())})


def assemble(config: Config, dataset: Dataset | None = None) -> Setup:
    """All parts of a resolved configuration; loads the data unless they are given.

    Raises `ConfigError` or `DataError`, before any training.
    """
    if dataset is None:
        dataset = registry.build("data", config.data).load()
    assert isinstance(dataset, Dataset)
    if config.local.augment and not dataset.is_image:
        raise ConfigError(f"local.augment: {config.local.augment} need images; {dataset.name} has tables")
    stream = build_stream(config, dataset)
    shapes = stream.task_shapes
    shape = shapes[0] if shapes else stream.dataset.shape
    models, task_models = build_models(config.model, shape, stream.outputs, stream.task_outputs, config.seed, shapes)
    shape = shapes[task_models.index("main")] if shapes else shape
    config = config.model_copy(update={"execution": chosen(config.execution, models)})
    world = World(config.seed, stream.clients, config.rounds, models, stream.tasks, len(dataset.classes), task_models)
    for model in models.values():
        if model.batch_coupled and config.local.batch_size == 1:
            raise ConfigError(
                "local.batch_size: 1, but this model has BatchNorm, which cannot train on a single row; "
                "use batches of two or more, or a model without BatchNorm (resnet20 has norm: group)"
            )
        unknown = set(config.local.undecayed) - set(model.space.names)
        if unknown:
            raise ConfigError(
                f"local.undecayed: no parameter is called {sorted(unknown)}; the model has {list(model.space.names)}"
            )
    try_loss(config.local.loss, config.local.loss_args, stream.dataset, models["main"], shape)
    selection = Selection(config.participation, stream.clients, lambda c: len(stream.holding(c, 1).train), stream.sizes)
    method = build_method(config, world, selection)
    context = Context(world, stream, method, config.evaluate)
    measures = {name: registry.build("measure", {"kind": name}, context) for name in config.evaluate.measures}
    _check_metrics(config.evaluate.metrics, measures, stream.dataset)
    _check_truth(method, stream, str(config.method["kind"]))
    return Setup(config, dataset, stream, world, method, measures, selection)
