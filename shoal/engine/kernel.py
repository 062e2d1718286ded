"""The kernel: fits, evaluations and gradients on one resident module per architecture.

A kernel belongs to one thread. Nothing is built, pickled or moved per client: a vector is copied into the
resident one, the steps run in place, and the result is copied out.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..bank import Buffers
from ..data.dataset import Dataset, inputs
from ..losses import Beside, Loss, loss_of
from ..messages import Client
from ..metrics.functions import measured
from ..models.base import Dropout, Model, place_constants, set_mode
from ..placing import fetched, placed
from ..records import changed
from ..requests import Fit, FitResult, Gradient, Score, Served
from .augment import augmentation
from .batches import Batches, Scratch
from .drift import Origin, drift, squared
from .features import Features, Fronts, Kept, Split, split
from .plan import plan, total_steps
from .steppers import Stepper
from .taught import lessons

EVALUATION_ROWS = 512
"""Rows per batch when measuring; fixed, so that a measurement never depends on who measures."""


class Workspace:
    """A resident module whose parameters are views into one vector."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self.model = model
        self.teacher = model.teacher  # a constant, which threads share
        if self.teacher is not None and device.type != "cpu":
            self.teacher = copy.deepcopy(self.teacher).to(device)
        module = model.build()
        # A copy, because moving a module moves its constants in place, and all modules of the model share them.
        self.module: nn.Module = module if device.type == "cpu" else copy.deepcopy(module).to(device)
        self.vector = torch.zeros(model.space.size, device=device)
        self.gradient = torch.zeros(model.space.size, device=device)
        model.space.bind(self.module, self.vector, self.gradient)
        self.gradient_head = self.gradient[model.space.head]
        parameters = dict(self.module.named_parameters())
        self.parameters = [parameters[name] for name in model.space.names]
        self.weights = [model.space.view(self.vector, name) for name in model.space.names]
        self.gradients = [model.space.view(self.gradient, name) for name in model.space.names]
        set_mode(self.module, True)
        self.defaults = model.buffers.read(self.module)
        self.dropouts = [m for m in self.module.modules() if isinstance(m, Dropout)]
        self.convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in self.module.modules())
        self._splits: dict[tuple[tuple[int, int], ...], Split | None] = {}
        self.whole = [slice(0, model.space.size)]
        self.frozen = self.split(self.whole)
        """The module in front of and from its first layer that is ever trained, where it can be parted."""

    def split(self, slices: Sequence[slice]) -> Split | None:
        """The module before and from the first layer that is trained with these slices, where it can be parted."""
        key = tuple((s.start, s.stop) for s in slices)
        if key not in self._splits:
            self._splits[key] = split(self.module, self.model.space, slices)
        return self._splits[key]

    def holding(self, served: Served, training: bool) -> contextlib.AbstractContextManager[nn.Module]:
        """The module with this model's numbers, in the given mode; its constants are there for a ``with`` block."""
        if served.vector.shape != self.vector.shape:
            raise ValueError(
                f"model {self.model.name!r} has {self.vector.numel()} parameters; "
                f"got a vector of shape {tuple(served.vector.shape)}"
            )
        self.vector.copy_(served.vector)
        # What a model does not bring starts fresh, never from the last client's.
        own, fresh = served.buffers, self.defaults
        if not (own.empty and fresh.empty):
            floats = fresh.floats if own.floats is None else own.floats
            counters = fresh.counters if own.counters is None else own.counters
            self.model.buffers.write(self.module, Buffers(floats, counters))
        if self.module.training != training:  # walking through the layers costs as much as a step of a small model
            set_mode(self.module, training)
        return self._placed(served.constants) if served.constants else contextlib.nullcontext(self.module)

    def behind(self, constants: Mapping[str, Tensor]) -> bool:
        """Whether constants with these names, which the module has, only stand behind the layers that are never
        trained."""
        if not constants or self.frozen is None:
            return not constants
        owners, back = dict(self.module.named_modules()), {id(layer) for layer in self.frozen.back.modules()}
        return all(id(owners[name.rpartition(".")[0]]) in back for name in constants)

    @contextlib.contextmanager
    def _placed(self, constants: Mapping[str, Tensor]) -> Iterator[nn.Module]:
        with place_constants(self.module, constants):
            yield self.module

    def backward(self, value: Tensor) -> list[Tensor | None]:
        """The gradients of a loss, of each parameter in the vector's order; ``None`` where it does not depend on it.

        They are autograd's own tensors: added into ones that are there, they would be read and written twice more.
        """
        for parameter in self.parameters:
            parameter.grad = None
        value.backward()  # type: ignore[no-untyped-call]
        # A layer may ask for sparse gradients, which only embeddings of many rows gain by.
        found = [parameter.grad for parameter in self.parameters]
        return [g.to_dense() if g is not None and g.is_sparse else g for g in found]

    def gather(self, found: Sequence[Tensor | None]) -> None:
        """Copies what `backward` gave into the flat gradient."""
        if any(g is None for g in found):
            self.gradient.zero_()
        pairs = [(view, g) for view, g in zip(self.gradients, found, strict=True) if g is not None]
        torch._foreach_copy_([view for view, _ in pairs], [g for _, g in pairs])

    def snapshot(self) -> tuple[Tensor, Buffers]:
        """Copies of the vector and the buffers, on the CPU."""
        vector = self.vector.clone() if self.vector.device.type == "cpu" else self.vector.cpu()
        return vector, self.model.buffers.read(self.module)


class Kernel:
    """Runs requests on one device. Use it from one thread only."""

    def __init__(
        self,
        models: Mapping[str, Model],
        dataset: Dataset,
        device: torch.device,
        precision: str = "float32",
        loss: str = "cross_entropy",
        loss_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.models = models
        self.dataset = dataset
        self.device = device
        self.precision = precision
        self.loss = loss
        self.loss_args = dict(loss_args or {})
        self._workspaces: dict[str, Workspace] = {}
        self._scratch = Scratch()
        self._kept = Kept()
        self.fronts = Fronts(self._kept)
        self._origin = Origin()

    def workspace(self, name: str) -> Workspace:
        """The resident module of an architecture, built when it is first needed."""
        if name not in self._workspaces:
            if name not in self.models:
                raise KeyError(f"no architecture is called {name!r}; the world has {sorted(self.models)}")
            self._workspaces[name] = Workspace(self.models[name], self.device)
        return self._workspaces[name]

    def forget(self) -> None:
        """Drops what is kept to save work: it is worked out anew when it is needed."""
        self._kept.clear()
        self.fronts.kept.clear()

    def activations(self, model: str, rows: Tensor | Batches) -> Tensor | None:
        """What the layers in front of the first that is ever trained make of these rows, see `Kept.of`; ``None`` where
        there are no such layers, too."""
        frozen = self.workspace(model).frozen
        if frozen is None or self.precision != "float32":
            return None
        batches = rows if isinstance(rows, Batches) else Batches(self.dataset, rows, self._scratch)
        return self.fronts.of(model, frozen.front, batches)

    def cast(self) -> contextlib.AbstractContextManager[object]:
        """Forward passes in the run's precision."""
        if self.precision == "bf16":
            # The cache would keep a bf16 copy of every weight alive across the in-place update of a step.
            return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)
        return contextlib.nullcontext()

    # ---- Fit ------------------------------------------------------------------------------------------------

    def fit(self, request: Fit, client: Client, crash: bool = False) -> FitResult:
        """Trains as the request says. With ``crash`` the client fails after half of its steps."""
        work = self.workspace(request.start.model)
        space = work.model.space
        rng = client.random(request.purpose)
        coupled = work.model.batch_coupled
        count = total_steps(len(request.rows), request.batch, request.epochs, request.steps, coupled)
        slices = space.slices(request.segments)
        stepper = Stepper(request.optimizer, space, slices, self.device, request.slots)
        changes = [augmentation(name) for name in request.augment]
        # Apart from the order of the rows, so that an augmentation never changes which rows a step takes.
        chance = client.when.random(f"{request.purpose}/augment", client.id) if changes else rng
        loss = loss_of(request.loss or self.loss)
        batches = Batches(self.dataset, request.rows, self._scratch)
        since = request.start.vector if request.since is None else request.since
        start = since.to(self.device)
        terms = placed(request.terms, self.device)
        if request.loss_args and self.device.type != "cpu":
            request = changed(request, loss_args=placed(request.loss_args, self.device))
        anchor = None if request.anchor is None else request.anchor.to(self.device)
        plain = stepper.plain and not terms and anchor is None
        away: list[tuple[Tensor, Tensor]] = []
        losses: list[Tensor] = []
        sizes: list[int] = []
        done = 0
        with work.holding(request.start, training=True) as module:
            source: Batches | Features = batches
            if (request.segments is not None or work.frozen) and not changes and anchor is None:
                constants = not work.behind(request.start.constants)
                module, source = self._features(work, slices, batches, loss, count * request.batch, constants)
            worth = not changes and count * request.batch >= len(request.rows)  # most rows are seen
            taught = lessons(
                loss, request.loss_args, work.teacher, work.model.name, batches, self._kept if worth else None
            )
            for step in plan(len(request.rows), request.batch, request.epochs, request.steps, coupled, rng):
                if crash and done >= count // 2:
                    raise SimulatedCrash(f"simulated crash after {done} of {count} steps")
                x, y = source.take(step)
                for change in changes:
                    x = change(x, chance)
                x = inputs(x)
                now = loss if taught is None else taught.of_step(step, x if source is batches else None)
                value, found = self._backward(work, module, now, x, y, request, client, done)
                if plain:
                    stepper.descend(work.weights, found)
                else:
                    work.gather(found)
                    if anchor is not None:
                        self._subtract_anchor(work, module, anchor, now, x, y, request, client, done)
                    for s in slices:
                        for term in terms:
                            term.gradient(work.vector[s], work.gradient[s], s)
                    stepper.clip(work.gradient)
                    stepper.step(work.vector, work.gradient)
                    for s in slices:
                        for term in terms:
                            term.after(work.vector[s], s, request.optimizer.lr)
                losses.append(value)
                sizes.append(len(y))
                done += 1
                if step.ends_epoch or done == count:
                    away.append(squared(work, start))
            if crash:
                raise SimulatedCrash("simulated crash of a client without a step to take")
            moved = drift(away, work, start, self._origin.lengths(start, space.head))
            vector, buffers = work.snapshot()
        slots = stepper.kept() if request.slots is not None else None
        return FitResult(vector, buffers, done, sum(sizes), _mean_loss(losses, sizes), moved, slots)

    def _features(
        self,
        work: Workspace,
        slices: Sequence[slice],
        batches: Batches,
        loss: Loss,
        seen: int,
        constants: bool,
    ) -> tuple[nn.Module, Batches | Features]:
        """The layers to train and their inputs, of a fit that takes about so many rows with repetition: everything and
        the rows, or what is behind the frozen layers and what these make of the rows.

        A loss of a user's own may look at the whole module. With ``constants`` the model has some of its own there, so
        that nothing is kept for other fits.
        """
        shipped = type(loss).__module__.startswith("shoal.losses.")
        parts = work.split(slices) if shipped and self.precision == "float32" and seen >= len(batches.rows) else None
        if parts is not None and not constants and slices == work.whole:
            kept = self.activations(work.model.name, batches)
            found = None if kept is None else Features(batches, kept)
        else:
            found = None if parts is None else Features.of(parts.front, batches)
        return (work.module, batches) if parts is None or found is None else (parts.back, found)

    def _backward(
        self,
        work: Workspace,
        module: nn.Module,
        loss: Loss,
        x: Tensor,
        y: Tensor,
        request: Fit,
        client: Client,
        step: int,
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The loss of one batch, and what `Workspace.backward` gives for it."""
        for i, dropout in enumerate(work.dropouts):
            # Named by the step, so that an anchor's gradient sees the same mask.
            dropout.rng = client.when.random(f"{request.purpose}/dropout/{i}/{step}", client.id)
        with self.cast():
            value = loss(module, x, y, **request.loss_args)
        found = work.backward(value)
        return value.detach(), found

    def _subtract_anchor(
        self,
        work: Workspace,
        module: nn.Module,
        anchor: Tensor,
        loss: Loss,
        x: Tensor,
        y: Tensor,
        request: Fit,
        client: Client,
        step: int,
    ) -> None:
        """Subtracts the gradient of the same batch at the anchor; buffers stay as the step left them."""
        vector, gradient = work.vector.clone(), work.gradient.clone()
        buffers = work.model.buffers.read(module)
        work.vector.copy_(anchor)
        work.gather(self._backward(work, module, loss, x, y, request, client, step)[1])
        work.gradient.neg_().add_(gradient)
        work.vector.copy_(vector)
        work.model.buffers.write(module, buffers)

    # ---- Evaluate and Gradient ------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(
        self, models: Sequence[Served], rows: Tensor, loss: str | None = None, metrics: Sequence[str] = ()
    ) -> list[Score]:
        """Scores of these models on the rows, in evaluation mode; nothing is changed. The run's own loss is measured
        with the arguments that it is trained with. ``metrics`` are kinds of metric, see `shoal.metrics.functions`."""
        batches = Batches(self.dataset, rows, self._scratch)
        wanted = self.dataset.wanted(rows)
        scorer = loss_of(loss or self.loss)
        args = self.loss_args if loss in (None, self.loss) else {}
        scores = []
        for served in models:
            work = self.workspace(served.model)
            with work.holding(served, training=False) as module:
                sums: list[Tensor] = []
                seen: list[tuple[Tensor, Tensor]] = []
                kept = None if served.constants else self.activations(served.model, batches)
                if kept is not None and work.frozen is not None:
                    module = work.frozen.back
                for begin in range(0, len(rows), EVALUATION_ROWS):
                    if kept is None:
                        x, y = batches.range(begin, begin + EVALUATION_ROWS)
                    else:
                        x, y = kept[begin : begin + EVALUATION_ROWS], wanted[begin : begin + EVALUATION_ROWS]
                    with self.cast():
                        outputs = module(inputs(x))
                    row_loss, row_right = scorer.score(outputs, y, **args)
                    sums += row_loss.double().sum(), row_right.double().sum()
                    if metrics:
                        seen.append((self.dataset.in_units(outputs.float()), self.dataset.in_units(y)))
            n = len(rows)
            # Read after the last batch: until then a GPU never waits for the host.
            read = fetched(sums)
            losses, right = 0.0, 0.0
            for loss_sum, right_sum in zip(read[::2], read[1::2], strict=True):
                losses, right = losses + loss_sum, right + right_sum
            found = measured(metrics, [(outputs.cpu(), y.cpu()) for outputs, y in seen])
            nan = float("nan")
            scores.append(Score(losses / n, right / n, n, found) if n else Score(nan, nan, 0, found))
        return scores

    def gradient(self, request: Gradient) -> Tensor:
        """The gradient that the request asks for, on the CPU; zeros without rows."""
        work = self.workspace(request.at.model)
        result = torch.zeros(work.model.space.size, device=self.device)
        n = len(request.rows)
        if n == 0:
            return result.cpu()
        if request.per == "row" and not (work.convolves and self.device.type == "cpu"):
            self._by_row(work, request, result)
        elif request.per in ("row", "batch"):
            # Under vmap a convolution has a group for each row, for which a CPU takes ten times as long as for a pass.
            self._by_batch(work, request, result)
        else:
            raise ValueError(f"Gradient.per is 'batch' or 'row'; got {request.per!r}")
        return result.cpu()

    def _by_batch(self, work: Workspace, request: Gradient, result: Tensor) -> None:
        loss = loss_of(request.loss or self.loss)
        batches = Batches(self.dataset, request.rows, self._scratch)
        taught = lessons(loss, request.loss_args, work.teacher, work.model.name, batches, self._kept)
        seen = 0
        for dropout in work.dropouts:
            dropout.rng = None
        training = request.per == "batch"  # a row by itself has no statistics
        size = request.batch if training else 1
        with work.holding(request.at, training=training) as module:
            for begin in range(0, len(request.rows), size):
                x, y = batches.range(begin, begin + size)
                if training and work.model.batch_coupled and len(y) < 2:
                    continue
                x = inputs(x)
                now = loss if taught is None else taught.of_range(begin, x)
                with self.cast():
                    value = now(module, x, y, **request.loss_args)
                work.gather(work.backward(value))
                result.add_(work.gradient.pow(request.power), alpha=len(y))
                seen += len(y)
        result.div_(max(1, seen))

    def _by_row(self, work: Workspace, request: Gradient, result: Tensor) -> None:
        space = work.model.space
        loss = loss_of(request.loss or self.loss)
        batches = Batches(self.dataset, request.rows, self._scratch)
        taught = lessons(loss, request.loss_args, work.teacher, work.model.name, batches, self._kept)
        # One backward pass per row costs 23 fits of a small MLP, vmap over rows about one.
        chunk = max(1, min(request.batch, 2**24 // max(1, space.size)))
        with work.holding(request.at, training=False) as module:
            wrapped = _LossModule(module, loss, request.loss_args)

            def one(vector: Tensor, x: Tensor, y: Tensor, *shown: Tensor) -> Tensor:
                values = {f"module.{name}": space.view(vector, name) for name in space.names}
                row = (x[None], y[None], *(t[None] for t in shown))
                with self.cast():
                    result: Tensor = torch.func.functional_call(wrapped, values, row)
                return result

            each = torch.func.vmap(torch.func.grad(one), (None, *(0,) * (2 if taught is None else 3)))
            for begin in range(0, len(request.rows), chunk):
                x, y = batches.range(begin, begin + chunk)
                x = inputs(x)
                shown = () if taught is None else (taught.of_range(begin, x).shown,)
                gradients = each(work.vector.clone(), x, y, *shown)
                result.add_(gradients.pow(request.power).sum(0))
        result.div_(len(request.rows))


class SimulatedCrash(RuntimeError):
    """A crash that the configuration asked for (``participation.crash_probability``)."""


class _LossModule(nn.Module):
    """A loss as a module, so that its parameters can be replaced by a functional call."""

    def __init__(self, module: nn.Module, loss: Loss, args: Mapping[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.loss = loss
        self.args = args

    def forward(self, x: Tensor, y: Tensor, *shown: Tensor) -> Tensor:
        loss = Beside(self.loss, *shown) if shown else self.loss
        return loss(self.module, x, y, **self.args)


def _mean_loss(losses: Sequence[Tensor], sizes: Sequence[int]) -> float:
    """The mean over the rows seen, from the mean loss of each batch; read once, at the end of a fit."""
    if not losses:
        return float("nan")
    means = torch.stack(list(losses)).tolist() if len(losses) > 1 else [losses[0].item()]
    return math.fsum(mean * size for mean, size in zip(means, sizes, strict=True)) / sum(sizes)
