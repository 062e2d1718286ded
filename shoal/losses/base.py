"""`Loss` and its forms: by batch, by row, and a user's plain function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from .. import registry
from ..errors import ConfigError, nearest

Learns = Literal["classes", "values"] | None


class Loss:
    """A training loss and the score that goes with it. Holds no state."""

    part: ClassVar[str] = "loss"

    learns: ClassVar[Learns] = None
    """What the targets must be: ``classes`` (int64 ``[rows]``), ``values`` (float32 ``[rows, outputs]``), or either."""

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor, **args: Any) -> Tensor:
        """The mean loss of a batch, a scalar that can be differentiated. ``args`` are ``Fit.loss_args``: numbers,
        tensors and words."""
        raise NotImplementedError

    def wants_teacher(self, **args: Any) -> bool:
        """Whether, with these arguments, the model is compared with its teacher (`Model.teacher`), where it has one."""
        return False

    def beside(self, module: nn.Module, x: Tensor, y: Tensor, shown: Tensor, **args: Any) -> Tensor:
        """The mean loss of a batch where there is a teacher, of which ``shown`` is what it makes of each row ``[rows,
        values]``: a constant."""
        raise NotImplementedError

    def score(self, outputs: Tensor, y: Tensor, **args: Any) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of each row (1.0 where it is right), from the outputs in evaluation mode.

        ``args`` are those of training; a loss may measure without some of them (label smoothing). The accuracy is
        NaN where there is none, as in a regression.
        """
        raise NotImplementedError

    def derivative(self, outputs: Tensor, y: Tensor, **args: Any) -> tuple[Tensor, Tensor]:
        """The training loss of each row ``[..., rows]``, and its derivative by the outputs ``[..., rows, outputs]``.

        For engines that go backwards without autograd, on float32 outputs of several models at once. Optional: see
        `has_derivative`.
        """
        raise NotImplementedError

    def signature(self) -> inspect.Signature:
        """The parameters among which the keyword-only ones are the loss's arguments."""
        return inspect.signature(self.__call__)


class RowLoss(Loss):
    """A loss that is the plain mean of one number per row; a kind says which, in `rows`."""

    def rows(self, outputs: Tensor, y: Tensor, **args: Any) -> Tensor:
        """The loss of each row ``[rows]``, from float32 outputs. Keyword-only parameters are the arguments."""
        raise NotImplementedError

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor, **args: Any) -> Tensor:
        """The mean over the rows."""
        return self.rows(_single(module(x)), y, **args).mean()

    def score(self, outputs: Tensor, y: Tensor, **args: Any) -> tuple[Tensor, Tensor]:
        """The loss of each row, with the arguments of training; right is the largest output, NaN of real values."""
        outputs = _single(outputs)
        # Copies: what works in place would change what is measured after it.
        return self.rows(outputs.clone(), y.clone(), **args), right(outputs, y)

    def signature(self) -> inspect.Signature:
        """That of `rows`."""
        return inspect.signature(self.rows)


class FunctionLoss(RowLoss):
    """A user's function ``(outputs, targets, *, ...) -> losses [rows]`` as a loss; ``kind`` is its import path.

    ``targets`` are int64 labels ``[rows]`` or float32 values ``[rows, outputs]``. Calling raises `ConfigError` for a
    result that is not one number per row.
    """

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        self.function = function
        self.kind = kind

    def rows(self, outputs: Tensor, y: Tensor, **args: Any) -> Tensor:
        """What the function gives, checked for its shape."""
        found = self.function(outputs, y, **args)
        if not isinstance(found, Tensor) or found.shape != (len(y),):
            what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            hint = "; leave out the mean (reduction='none'), it is taken for you" if _is_scalar(found) else ""
            raise ConfigError(
                f"local.loss: {self.kind} must give the loss of each row, a tensor of shape ({len(y)},) for {len(y)} "
                f"rows with outputs {tuple(outputs.shape)} and targets {tuple(y.shape)}; got {what}{hint}"
            )
        return found

    def signature(self) -> inspect.Signature:
        """That of the function."""
        return inspect.signature(self.function)


class Beside(Loss):
    """A loss with what the teacher makes of one batch: called like any other."""

    def __init__(self, loss: Loss, shown: Tensor) -> None:
        self.loss = loss
        self.shown = shown

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor, **args: Any) -> Tensor:
        """`Loss.beside` of this batch."""
        return self.loss.beside(module, x, y, self.shown, **args)


def has_derivative(loss: Loss) -> bool:
    """Whether `Loss.derivative` is there and of the same class as the loss: one that was inherited while the loss
    itself was changed is of another loss."""
    kind = type(loss)
    if kind.derivative is Loss.derivative:
        return False
    owner = _owner(kind, "derivative")
    return all(issubclass(owner, _owner(kind, name)) for name in ("__call__", "rows") if hasattr(kind, name))


def _owner(kind: type, name: str) -> type:
    return next(c for c in kind.__mro__ if name in vars(c))


def _single(outputs: Tensor) -> Tensor:
    """Outputs in float32: in bf16 a loss and its mean would lose their digits."""
    return outputs.float() if isinstance(outputs, Tensor) else outputs


def _is_scalar(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, Tensor) and value.numel() == 1)


def right(outputs: Tensor, y: Tensor) -> Tensor:
    """1.0 where the largest output is that of the label, else 0.0, also of a row with a NaN among its outputs.

    NaN where targets are no labels.
    """
    if y.is_floating_point() or y.dim() != 1 or outputs.dim() != 2:
        return torch.full((len(y),), float("nan"), device=y.device)
    # To argmax the first NaN is the largest number of all, so that broken models would know class 0.
    return ((outputs.argmax(1) == y) & ~outputs.isnan().any(1)).float()


def check_arguments(kind: str, args: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for arguments that a loss does not take."""
    parameters = loss_of(kind).signature().parameters
    known = [name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name in args:
        if name in known:
            continue
        if name in parameters:
            raise ConfigError(
                f"local.loss_args.{name}: {kind} takes it as a positional parameter; arguments are keyword-only, "
                f"put it after * in the signature"
            )
        if not takes_any:
            hint = nearest(name, known) if known else "it takes none"
            raise ConfigError(f"local.loss_args.{name}: {kind} has no such argument; {hint}")


@functools.cache
def loss_of(kind: str) -> Loss:
    """The loss of this kind; raises `ConfigError` if there is none, or what is there is no loss."""
    target = registry.find("loss", kind)
    if not isinstance(target, type):
        try:
            inspect.signature(target)
        except (TypeError, ValueError):
            raise ConfigError(
                f"local.loss: the parameters of {kind} are not known; wrap it in a function of your own, "
                f"(outputs, targets) -> losses [rows]"
            ) from None
        return FunctionLoss(target, kind)
    if not issubclass(target, Loss):
        raise ConfigError(
            f"local.loss: {kind} is a class, but not a shoal.losses.Loss; derive it from that, or give a function "
            f"(outputs, targets) -> losses [rows]"
        )
    found = registry.build("loss", {"kind": kind})
    assert isinstance(found, Loss)
    return found
