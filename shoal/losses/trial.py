"""A loss is tried before any training: what does not fit fails once, with a reason, and not in every client."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..data.dataset import Dataset, inputs
from ..errors import ConfigError
from ..models.base import GLOBAL_RANDOM, Model, set_mode
from .base import Beside, Loss, loss_of

_TARGETS = {"classes": "class labels", "values": "real values"}
_FIX = {"classes": "local.loss: cross_entropy", "values": "local.loss: mse (or mae, huber)"}


def try_loss(
    kind: str, args: Mapping[str, Any], dataset: Dataset, model: Model, shape: tuple[int, ...] | None = None
) -> None:
    """Checks that a loss learns what the data set has, and tries it on two training rows through a new model.

    ``shape`` is that of the model's inputs, where the rows have several.

    The trial is left out where an argument is still missing that only the learner can give. Raises `ConfigError` for
    a loss of the other sort of targets, for one that fails, has a wrong shape, is not finite, cannot be
    differentiated to the model's parameters, or reads torch's global random generator.
    """
    loss = loss_of(kind)
    rows = dataset.train if len(dataset.train) else torch.arange(len(dataset))
    if dataset.members is not None and shape is not None:
        rows = dataset.members.of_shape(rows, shape)
    rows = rows[:2]
    if not len(rows):
        return
    rows = rows.repeat(2)[:2]
    y = dataset.wanted(rows)
    has = "values" if y.is_floating_point() else "classes"
    if loss.learns not in (None, has):
        raise ConfigError(
            f"local.loss: {kind} learns {_TARGETS[str(loss.learns)]}, but {dataset.name} has {_TARGETS[has]}; "
            f"set {_FIX[has]}"
        )
    needed = [p.name for p in loss.signature().parameters.values() if _is_needed(p)]
    if all(name in args for name in needed):
        _try(loss, kind, args, model, inputs(dataset.batch(rows)), y)


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is inspect.Parameter.empty


def _try(loss: Loss, kind: str, args: Mapping[str, Any], model: Model, x: Tensor, y: Tensor) -> None:
    if model.teacher is not None and type(loss).beside is Loss.beside:
        raise ConfigError(
            f"model.teacher: nothing compares the model with it while local.loss is {kind}; set local.loss: nettailor, "
            f"or leave the teacher out"
        )
    module = model.build()
    with GLOBAL_RANDOM, torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        try:
            set_mode(module, False)
            with torch.no_grad():
                outputs = module(x)
                if isinstance(outputs, Tensor) and outputs.dim() == 2 and not y.is_floating_point():
                    y = y % outputs.shape[1]  # a task's head may have fewer outputs than the two rows' labels need
                scores = loss.score(outputs, y, **args)
                taught = model.teacher is not None and loss.wants_teacher(**args)
                used = Beside(loss, model.teacher(x)) if model.teacher is not None and taught else loss
            set_mode(module, True)
            value = used(module, x, y, **args)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"local.loss: {kind} fails on two rows: {type(error).__name__}: {error}") from error
        _check_scores(kind, scores)
        _check_value(kind, value, module)
        drew = not torch.equal(before, torch.get_rng_state())
    if drew:
        raise ConfigError(
            f"local.loss: {kind} reads torch's global random generator, so results would depend on the number of "
            f"workers; a loss is a function of outputs, targets and arguments"
        )


def _check_scores(kind: str, scores: Any) -> None:
    shapes = [tuple(t.shape) for t in scores if isinstance(t, Tensor)] if isinstance(scores, tuple | list) else []
    if shapes != [(2,), (2,)]:
        got = shapes or type(scores).__name__
        raise ConfigError(f"local.loss: {kind}.score must give loss and accuracy of each row, (2,) each; got {got}")
    if not bool(scores[0].isfinite().all()):
        raise ConfigError(
            f"local.loss: {kind} scores two training rows with {scores[0].tolist()}; a loss must be finite"
        )


def _check_value(kind: str, value: Any, module: nn.Module) -> None:
    if not isinstance(value, Tensor) or value.dim():
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(f"local.loss: {kind} must give the mean loss of the batch, a scalar tensor; got {got}")
    if not bool(value.isfinite()):
        raise ConfigError(f"local.loss: {kind} is {float(value)} on two training rows; a loss must be finite")
    if value.requires_grad:
        value.backward()  # type: ignore[no-untyped-call]
    found = [p.grad for p in module.parameters() if p.requires_grad and p.grad is not None]
    gradients = [g.to_dense() if g.is_sparse else g for g in found]
    if not gradients:
        raise ConfigError(
            f"local.loss: {kind} has no gradient with respect to the model's parameters; keep its numbers in torch: "
            f"no detach(), item(), numpy() or argmax() on the way"
        )
    if not all(bool(g.isfinite().all()) for g in gradients):
        raise ConfigError(f"local.loss: the gradient of {kind} is not finite on two training rows")
