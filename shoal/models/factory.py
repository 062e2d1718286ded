"""From the ``model`` settings of a configuration to the architectures of a run."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pydantic
import torch
from torch import nn

from .. import registry
from ..data.members import in_words
from ..errors import ConfigError
from ..parameters import check_prefix, is_under
from .backbones import CUTS, Backbone, check_kind
from .base import GLOBAL_RANDOM, Model, Shape, set_mode
from .own import GIVEN, build_own, is_own, parameters_of, resolve_own
from .tasks import FILES, check, count, differs, is_by_task, named, of_task
from .weights import Weights, check_weights


class _Common(pydantic.BaseModel):
    """Settings that every kind of model has.

    ``segments``: names of parameters, or prefixes of them, by segment (default: ``features`` and
    ``classifier``). ``freeze``: prefixes of parameters that are constants: never trained, never sent. ``weights``:
    the file that every model starts from, see `shoal.models.weights`, or one for each task (`shoal.models.tasks`);
    ``weights_sha256`` is filled in, so that a run goes on with no other file.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    segments: dict[str, list[str]] | None = None
    freeze: list[str] = []
    weights: str | list[str | None] | None = None
    weights_sha256: str | list[str | None] | None = None


COMMON = tuple(_Common.model_fields)


def resolve_model(settings: Mapping[str, Any] | str, tasks: int = 0) -> dict[str, Any]:
    """The complete ``model`` settings with every default filled in, checked; a mapping with ``kind``, or a kind.
    ``tasks``: how many tasks have models of their own.

    The settings of an own module (``kind: my_module:Net``) are all its named parameters except ``shape`` and
    ``outputs``; those without an annotation are not checked, and defaults that JSON cannot say are left to the
    module. Raises `ConfigError`.
    """
    given = {"kind": settings} if isinstance(settings, str) else settings
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        return registry.resolve("model", given)  # raises
    try:
        common = _Common(**{name: given[name] for name in COMMON if name in given})
    except pydantic.ValidationError as error:
        raise registry.explain(error, "model", COMMON) from None
    target = registry.find("model", given["kind"])
    if is_own(target):
        own = {name: value for name, value in given.items() if name not in COMMON}
        resolved = resolve_own(target, own, COMMON)
    else:
        resolved = registry.resolve("model", given, extra=COMMON)
    complete = {**resolved, **common.model_dump(mode="json")}
    theirs = is_own(target)
    files = [name for name in FILES if name in COMMON or (name in complete and not theirs)]
    check(complete, files, tasks)
    for name in files:
        complete[f"{name}_sha256"] = _digests(complete, name, tasks)
    # A kind that has more to say of its settings than their schema, such as a model inside it.
    own_rules = getattr(target, "complete", None)
    return complete if own_rules is None or theirs else dict(own_rules(complete))


def _digests(settings: Mapping[str, Any], name: str, tasks: int) -> Any:
    """The SHA-256 of the file that a setting names, or of each task's; raises `ConfigError` for another than before."""
    given, known = settings[name], settings.get(f"{name}_sha256")
    if given is None:
        if known is not None:
            raise ConfigError(f"model.{name}_sha256: is of a file in model.{name}, which is not set")
        return None
    try:
        if not is_by_task(given):
            return check_weights(given, known)
        each = [named(given, task) for task in range(tasks)]
        digests = known if isinstance(known, list) else [None] * tasks
        return [None if one is None else check_weights(one, digest) for one, digest in zip(each, digests, strict=True)]
    except ConfigError as error:
        raise ConfigError(str(error).replace("model.weights", f"model.{name}")) from error


@contextlib.contextmanager
def _inside(name: str) -> Iterator[None]:
    """Errors of a model inside another one name its settings: ``model.backbone.weights``."""
    try:
        yield
    except ConfigError as error:
        # Names of files, such as model.safetensors, are no settings.
        said = re.sub(r"(?<![\w/])model\.(?!safetensors|pth?\b)", f"model.{name}.", str(error))
        raise ConfigError(said) from error


def resolve_backbone(settings: Mapping[str, Any] | str) -> dict[str, Any]:
    """The complete settings of a backbone inside a model: those of ``model``, of a kind that has blocks.

    Raises `ConfigError`.
    """
    kind = settings.get("kind") if isinstance(settings, Mapping) else settings
    check_kind(str(kind), list(registry.PARTS["model"]))
    if isinstance(settings, Mapping) and is_by_task(settings.get("weights")):
        raise ConfigError("model.backbone.weights: the backbone is one and the same for all tasks; name one file")
    with _inside("backbone"):
        found = resolve_model(settings)
    if found["segments"] or found["freeze"]:
        raise ConfigError("model.backbone: all of it is frozen and none of it sent; leave out segments and freeze")
    return found


def build_backbone(settings: Mapping[str, Any], shape: Shape) -> Backbone:
    """The frozen backbone of resolved settings, with the numbers of its weights file; raises `ConfigError`."""
    kind = settings["kind"]
    # The dense layers of a VGG belong to its head, and are most of it.
    lean = {**settings, "hidden": []} if kind == "vgg11" else settings
    module = made(lean, shape, 1)
    head, cut = CUTS.get(kind, ("", Backbone.of))
    if head:
        setattr(module, head, nn.Identity())
    else:
        module = Backbone.of(module)  # what else an own module has need not be in the file
    module.requires_grad_(False)  # before loading: a last linear layer is no head here, and must be in the file
    weights = _weights(settings)
    note = "the backbone's numbers are random: give model.backbone.weights"
    if weights is not None:
        with _inside("backbone"):
            note = f"backbone: {weights.load(module)}"
    backbone = cut(module)
    backbone.notes = (note,)
    return backbone


def resolve_network(settings: Mapping[str, Any] | str) -> dict[str, Any]:
    """The complete settings of a network inside a model, of any kind, trained and perhaps frozen in parts.

    Raises `ConfigError`.
    """
    with _inside("network"):
        found = resolve_model(settings)
    if found["segments"]:
        raise ConfigError("model.network.segments: the model around it has segments of its own; leave them out")
    if found.get("teacher") is not None:
        raise ConfigError("model.network.teacher: a network inside another model has no teacher; leave it out")
    return found


def build_network(settings: Mapping[str, Any], shape: Shape, outputs: int) -> nn.Module:
    """The network of resolved settings, its numbers new or from its weights file; what was taken is in ``notes``.

    Raises `ConfigError`.
    """
    said: dict[str, None] = {}
    network = _maker(settings, shape, outputs, _weights(settings), said)()
    network.notes = tuple(said)  # type: ignore[assignment]
    return network


def without_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Resolved settings that read no weights file, for a model whose numbers all come from elsewhere."""
    found = {
        k: without_files(v) if isinstance(v, Mapping) and "weights_sha256" in v else v for k, v in settings.items()
    }
    for name in FILES:
        key = f"{name}_sha256"
        if key in found:  # a list says that each task has a model of its own
            nothing = [None] * len(found[key]) if isinstance(found[key], list) else None
            found |= {name: nothing, key: nothing}
    return found


def build_models(
    settings: Mapping[str, Any],
    shape: Shape,
    outputs: int,
    task_outputs: Sequence[int],
    seed: int,
    task_shapes: Sequence[Shape] = (),
) -> tuple[dict[str, Model], tuple[str, ...]]:
    """The models by name, and the name of each task's model, from resolved settings.

    ``"main"`` has ``outputs`` outputs; with ``task_outputs`` (one number per task) it has the most common of
    them (the largest of several), and each other size makes a model of its own, such as ``"main-3"``. Where files
    differ by task each task has one: ``"main"`` is that of task 0, ``"main-task1"`` that of task 1. With
    ``task_shapes`` (the inputs of each task, where they are not all of ``shape``) each pair of a shape and a size makes
    a model, such as ``"main-3-1x28x28"``. Frozen parameters are the same in all, as far as their shapes are.
    With ``weights`` every model starts from that file, also in `Model.initial`; what was taken is in `Model.notes`.
    Every model is tried on two rows of its shape.

    Raises `ConfigError` for a module that does not fit: inputs, outputs, prefixes, weights, or random numbers from
    torch's global generator.
    """
    each: dict[str, tuple[Mapping[str, Any], Shape, int]]
    if differs(settings):
        sizes = list(task_outputs) or [outputs] * count(settings)
        forms = list(zip(task_shapes or [shape] * len(sizes), sizes, strict=True))
        each = {f"main-task{t}" if t else "main": (of_task(settings, t), *form) for t, form in enumerate(forms)}
        tasks = tuple(each)
    else:
        forms = list(zip(task_shapes or [shape] * len(task_outputs), task_outputs, strict=True))
        names = _names(forms or [(shape, outputs)])
        each = {name: (settings, *form) for form, name in names.items()}
        tasks = tuple(names[form] for form in forms)
    smallest = min(size for _, _, size in each.values())
    if smallest < 1:
        raise ConfigError(f"model: a head needs at least one output; got {smallest}")
    models: dict[str, Model] = {}
    for name, (own, inputs, size) in each.items():
        said: dict[str, None] = {}
        like = models.get("main")
        try:
            make = _maker(own, inputs, size, _weights(own), said)
            models[name] = Model(name, make, own.get("segments"), seed, like, _teacher(own, inputs, size))
        except (ValueError, ConfigError) as error:
            said_so = str(error) if isinstance(error, ConfigError) else f"model: {error}"
            end = f" (the model of task {tasks.index(name)})" if differs(settings) else ""
            raise ConfigError(f"{said_so}{_which(inputs) if task_shapes else end}") from error
        models[name].notes = tuple(said)
        _try(models[name], own["kind"], inputs, size)
    return models, tasks


def _which(inputs: Shape) -> str:
    """The end of an error about one of several models."""
    hint = "; a file for colours needs three channels, data.channels: 3" if inputs[0] == 1 else ""
    return f" (this is the model for inputs of {in_words(inputs)}{hint})"


def _names(forms: Sequence[tuple[Shape, int]]) -> dict[tuple[Shape, int], str]:
    """The name of each model by the shape of its inputs and its outputs: the most common, or largest, is ``"main"``."""
    counts = Counter(forms)
    ordered = sorted(counts, key=lambda form: (counts[form], form[1], form[0]), reverse=True)
    several = len({inputs for inputs, _ in forms}) > 1
    ends = [f"-{size}-{in_words(inputs)}" if several else f"-{size}" for inputs, size in ordered]
    return {form: f"main{end}" if i else "main" for i, (form, end) in enumerate(zip(ordered, ends, strict=True))}


def _teacher(settings: Mapping[str, Any], shape: Shape, outputs: int) -> nn.Module | None:
    """The network that a model is compared with while it is trained, of a kind that can have one."""
    target = registry.find("model", settings["kind"])
    make = None if is_own(target) else getattr(target, "taught_by", None)
    return None if make is None or settings["teacher"] is None else make(settings, shape, outputs)


def _weights(settings: Mapping[str, Any]) -> Weights | None:
    given = settings.get("weights")
    if given is None:
        return None
    check_weights(given, settings.get("weights_sha256"))
    return Weights(given)


def _maker(
    settings: Mapping[str, Any], shape: Shape, outputs: int, weights: Weights | None, said: dict[str, None]
) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module = made(settings, shape, outputs)
        said.update(dict.fromkeys(_notes(module)))
        if weights is not None:
            said[weights.load(module)] = None  # before freezing: the head is the last linear layer, frozen or not
        _freeze(module, settings.get("freeze", ()))
        return module

    return make


def made(settings: Mapping[str, Any], shape: Shape, outputs: int) -> nn.Module:
    """The module of these settings, its numbers new."""
    kind = settings["kind"]
    target = registry.find("model", kind)
    own = {name: value for name, value in settings.items() if name not in COMMON}
    takes = parameters_of(target)
    offered: dict[str, Any] = dict(zip(GIVEN, (tuple(shape), outputs), strict=True))
    given = {name: value for name, value in offered.items() if name in takes}
    module = build_own(target, own, given) if is_own(target) else registry.build("model", own, **given)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model.kind: {kind!r} gives a {type(module).__name__}, not a torch.nn.Module")
    return module


def _notes(module: nn.Module) -> tuple[str, ...]:
    """What a module of ours says of its numbers."""
    ours = type(module).__module__.startswith("shoal.models.")
    return tuple(getattr(module, "notes", ())) if ours else ()


def _freeze(module: nn.Module, prefixes: Sequence[str]) -> None:
    named = dict(module.named_parameters(remove_duplicate=False))
    for prefix in prefixes:
        check_prefix("freeze", prefix, list(named))
        for name, parameter in named.items():
            if is_under(name, prefix):
                parameter.requires_grad_(False)


def _try(model: Model, kind: str, shape: Shape, outputs: int) -> None:
    """Runs two rows forward: a module that does not fit fails here, with a reason, and not in every client."""
    module = model.build()
    with GLOBAL_RANDOM, torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        set_mode(module, True)
        try:
            answer = module(torch.zeros(2, *shape))
        except Exception as error:
            raise ConfigError(f"model: {kind} fails on inputs of shape {(2, *shape)}: {error}") from error
        drew = not torch.equal(before, torch.get_rng_state())
    if drew:
        raise ConfigError(
            f"model: {kind} reads torch's global random generator while training, so results would depend on the "
            f"number of workers; use nn.Dropout layers, or shoal.models.Dropout (their masks are reproducible)"
        )
    if isinstance(answer, torch.Tensor) and answer.shape != (2, outputs):
        raise ConfigError(
            f"model: {kind} gives outputs of shape {tuple(answer.shape)} for 2 rows; the stream needs "
            f"(2, {outputs}). A parameter named 'outputs' is given the number; otherwise set it to {outputs}"
        )
