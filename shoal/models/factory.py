"""From the ``model`` settings of a configuration to the architectures of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic
import torch
from torch import nn

from .. import registry
from ..errors import ConfigError
from ..parameters import check_prefix, is_under
from .backbones import CUTS, Backbone, check_kind
from .base import GLOBAL_RANDOM, Model, Shape, set_mode
from .own import GIVEN, build_own, is_own, parameters_of, resolve_own
from .weights import Weights, check_weights


class _Common(pydantic.BaseModel):
    """Settings that every kind of model has.

    ``segments``: names of parameters, or prefixes of them, by segment (default: ``features`` and
    ``classifier``). ``freeze``: prefixes of parameters that are constants: never trained, never sent. ``weights``:
    the file that every model starts from, see `shoal.models.weights`; ``weights_sha256`` is filled in, so that a
    run goes on with no other file.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    segments: dict[str, list[str]] | None = None
    freeze: list[str] = []
    weights: str | None = None
    weights_sha256: str | None = None


COMMON = tuple(_Common.model_fields)


def resolve_model(settings: Mapping[str, Any] | str) -> dict[str, Any]:
    """The complete ``model`` settings with every default filled in, checked; a mapping with ``kind``, or a kind.

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
    if common.weights is None and common.weights_sha256 is not None:
        raise ConfigError("model.weights_sha256: is of a file in model.weights, which is not set")
    if common.weights is not None:
        common = common.model_copy(update={"weights_sha256": check_weights(common.weights, common.weights_sha256)})
    complete = {**resolved, **common.model_dump(mode="json")}
    # A kind that has more to say of its settings than their schema, such as a model inside it.
    own_rules = getattr(target, "complete", None)
    return complete if own_rules is None or is_own(target) else dict(own_rules(complete))


def resolve_backbone(settings: Mapping[str, Any] | str) -> dict[str, Any]:
    """The complete settings of a backbone inside a model: those of ``model``, of a kind that has blocks.

    Raises `ConfigError`.
    """
    kind = settings.get("kind") if isinstance(settings, Mapping) else settings
    check_kind(str(kind), list(registry.PARTS["model"]))
    try:
        found = resolve_model(settings)
    except ConfigError as error:
        raise ConfigError(str(error).replace("model.", "model.backbone.")) from error
    if found["segments"] or found["freeze"]:
        raise ConfigError("model.backbone: all of it is frozen and none of it sent; leave out segments and freeze")
    return found


def build_backbone(settings: Mapping[str, Any], shape: Shape) -> Backbone:
    """The frozen backbone of resolved settings, with the numbers of its weights file; raises `ConfigError`."""
    kind = settings["kind"]
    # The dense layers of a VGG belong to its head, and are most of it.
    lean = {**settings, "hidden": []} if kind == "vgg11" else settings
    module = _made(lean, shape, 1)
    head, cut = CUTS.get(kind, ("", Backbone.of))
    if head:
        setattr(module, head, nn.Identity())
    else:
        module = Backbone.of(module)  # what else an own module has need not be in the file
    module.requires_grad_(False)  # before loading: a last linear layer is no head here, and must be in the file
    weights = _weights(settings)
    note = "the backbone's numbers are random: give model.backbone.weights"
    if weights is not None:
        note = f"backbone: {weights.load(module)}"
    backbone = cut(module)
    backbone.notes = (note,)
    return backbone


def without_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Resolved settings that read no weights file, for a model whose numbers all come from elsewhere."""
    found = {
        k: without_files(v) if isinstance(v, Mapping) and "weights_sha256" in v else v for k, v in settings.items()
    }
    return {**found, "weights": None, "weights_sha256": None}


def build_models(
    settings: Mapping[str, Any], shape: Shape, outputs: int, task_outputs: Sequence[int], seed: int
) -> tuple[dict[str, Model], tuple[str, ...]]:
    """The models by name, and the name of each task's model, from resolved settings.

    ``"main"`` has ``outputs`` outputs; with ``task_outputs`` (one number per task) it has the most common of
    them (the largest of several), and each other size makes a model of its own, such as ``"main-3"``. Frozen
    parameters are the same in all. With ``weights`` every model starts from that file, also in `Model.initial`; what
    was taken is in `Model.notes`. Every model is tried on two rows of this shape.

    Raises `ConfigError` for a module that does not fit: inputs, outputs, prefixes, weights, or random numbers from
    torch's global generator.
    """
    counts = Counter(task_outputs)
    sizes = sorted(counts, key=lambda size: (counts[size], size), reverse=True) or [outputs]
    if min(sizes) < 1:
        raise ConfigError(f"model: a head needs at least one output; got {min(sizes)}")
    names = {size: f"main-{size}" if i else "main" for i, size in enumerate(sizes)}
    models: dict[str, Model] = {}
    weights = _weights(settings)
    for size, name in names.items():
        said: dict[str, None] = {}
        try:
            make = _maker(settings, shape, size, weights, said)
            models[name] = Model(name, make, settings.get("segments"), seed, models.get("main"))
        except ValueError as error:
            raise ConfigError(f"model: {error}") from error
        models[name].notes = tuple(said)
        _try(models[name], settings["kind"], shape, size)
    return models, tuple(names[size] for size in task_outputs)


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
        module = _made(settings, shape, outputs)
        said.update(dict.fromkeys(_notes(module)))
        if weights is not None:
            said[weights.load(module)] = None  # before freezing: the head is the last linear layer, frozen or not
        _freeze(module, settings.get("freeze", ()))
        return module

    return make


def _made(settings: Mapping[str, Any], shape: Shape, outputs: int) -> nn.Module:
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
