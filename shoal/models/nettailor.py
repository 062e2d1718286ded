"""NetTailor: a frozen backbone whose blocks are helped by small trained paths, mixed by attention."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ..config import Part
from ..errors import ConfigError
from .backbones import Backbone
from .base import Shape
from .factory import build_backbone, resolve_backbone
from .nettailor_paths import OWN, Paths, all_paths, kept_paths, living, named, remaining
from .tasks import count as count_tasks
from .tasks import of_task
from .teacher import Teacher, build_teacher, flat, unflat

_OWN_AT_START, _PROXY_AT_START = 2.0, -2.0
_DEVIATION = 0.01


class Fork(nn.Module):
    """The last activation that is the same for everybody, and what the next block makes of it, side by side.

    Both ``[rows, values]``, so that one tensor of each row can be kept; `Tail` takes them apart.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([flat(x), flat(self.block(x))], dim=1)


class Tail(nn.Module):
    """The blocks that are tailored: block l gives the sum of its paths, weighed by attention, and then ``activation``.

    ``paths`` has, for every block l in order, its sources: `OWN`, the frozen block l itself (of activation l - 1), and
    numbers of earlier activations, each through a proxy. The weights are the softmax of one number for each source;
    a single path has weight one, and no number. ``shapes`` are those of the activations 0, 1, ...; ``costs`` the
    multiplications of the stem and the frozen blocks 1, 2, ... per row. What comes in is the activation ``fixed``;
    ``forked``: with what the next frozen block makes of it, see `Fork`.
    """

    def __init__(
        self,
        blocks: Mapping[int, nn.Module],
        paths: Paths,
        shapes: Sequence[Shape],
        costs: Sequence[int],
        activation: nn.Module,
        fixed: int,
        forked: bool,
    ) -> None:
        super().__init__()
        self.paths = {block: tuple(sources) for block, sources in paths.items()}
        self.fixed, self.last = fixed, max(paths)
        self.shapes = tuple(shapes)
        self.forked = forked
        self.activation = activation
        self._seen: dict[int, Tensor] | None = None
        self._locally = False
        self.blocks = nn.ModuleDict({str(block): module for block, module in blocks.items()})
        self.proxies = nn.ModuleDict()
        self.attention = nn.ModuleDict()
        self.costs: dict[tuple[int, int], float] = {}
        for block, sources in self.paths.items():
            made = {source: proxy(self.shapes, source, block) for source in sources if source != OWN}
            if made:
                self.proxies[str(block)] = nn.ModuleDict({str(source): module for source, module in made.items()})
            if len(sources) > 1:
                start = {s: _OWN_AT_START if s == OWN else _PROXY_AT_START for s in sources}
                numbers = {named(s): nn.Parameter(torch.tensor(value)) for s, value in start.items()}
                self.attention[str(block)] = nn.ParameterDict(numbers)
            for source in sources:
                cost = costs[block] if source == OWN else proxy_cost(self.shapes, source, block)
                self.costs[block, source] = cost / max(1, sum(costs))

    def alphas(self, block: int) -> Tensor:
        """The weights of a block's paths, in the order of its sources; they sum to one."""
        sources = self.paths[block]
        if len(sources) == 1:
            return next(self.parameters()).new_ones(1)
        numbers = self.attention[str(block)]
        return torch.stack([getattr(numbers, named(source)) for source in sources]).softmax(0)

    def activations(self, x: Tensor) -> dict[int, Tensor]:
        """The activations by number, from the last fixed one on, of what is in front of this tail."""
        own: Tensor | None = None
        if self.forked:
            size = math.prod(self.shapes[self.fixed])
            own = unflat(x[:, size:], self.shapes[self.fixed + 1])
            x = unflat(x[:, :size], self.shapes[self.fixed])
        found = {self.fixed: x}
        for block, sources in self.paths.items():
            ways: list[Tensor] = []
            for source in sources:
                if source != OWN:
                    ways.append(self._proxy(block, source)(found[source]))
                elif own is not None and block == self.fixed + 1:
                    ways.append(own)
                else:
                    ways.append(self.blocks[str(block)](found[block - 1]))
            found[block] = self._mixed(block, ways)
            if self._seen is not None:
                self._seen[block] = self._apart(block, ways, found) if self._locally else found[block]
        return found

    def _proxy(self, block: int, source: int) -> nn.Module:
        return self.proxies[str(block)].get_submodule(str(source))

    def _mixed(self, block: int, ways: Sequence[Tensor]) -> Tensor:
        mixed = ways[0]
        if len(ways) > 1:
            alphas = self.alphas(block).unbind()
            mixed = ways[0] * alphas[0]
            for way, alpha in zip(ways[1:], alphas[1:], strict=True):
                mixed = mixed + way * alpha
        found: Tensor = self.activation(mixed)
        return found

    def _apart(self, block: int, ways: Sequence[Tensor], found: Mapping[int, Tensor]) -> Tensor:
        """The block's activation again, as if its inputs were constants: what is made of it trains this block alone."""
        alone = []
        for source, way in zip(self.paths[block], ways, strict=True):
            if source == OWN:
                alone.append(way.detach())  # all numbers of the frozen block are constants
                continue
            module = self._proxy(block, source)
            # Copies take the running statistics: they follow each batch once.
            copies = {name: buffer.clone() for name, buffer in module.named_buffers()}
            alone.append(torch.func.functional_call(module, copies, (found[source].detach(),)))
        return self._mixed(block, alone)

    @contextmanager
    def seeing(self, locally: bool) -> Iterator[dict[int, Tensor]]:
        """Inside a ``with`` block: the activations of the blocks by number, filled in by the next pass forward.

        ``locally``: worked out from constant inputs, so that no gradient goes from a block into those before it.
        """
        self._seen, self._locally = {}, locally
        try:
            yield self._seen
        finally:
            self._seen = None

    def forward(self, x: Tensor) -> Tensor:
        return self.activations(x)[self.last]

    def complexity(self) -> Tensor:
        """The expected share of the backbone's multiplications that is left when each path stays with its weight.

        A path is left out by itself, when nothing comes to its source, or when nobody reads where it leads: the sum
        of C (alpha - prod(1 - alpha of the paths into its source) - prod(1 - alpha of those that leave its target)),
        Morgado and Vasconcelos, "NetTailor" (2019), section 3.3. The first activation is always there, and the last
        one always read: their products are 0, where the authors' code subtracts 1, a constant.
        """
        out = {block: 1 - self.alphas(block) for block in self.paths}
        leaving: dict[int, list[Tensor]] = {}
        for block, sources in self.paths.items():
            for i, source in enumerate(sources):
                leaving.setdefault(block - 1 if source == OWN else source, []).append(out[block][i])
        total = torch.zeros((), device=(first := next(self.parameters())).device, dtype=first.dtype)
        for block, sources in self.paths.items():
            unread = torch.stack(leaving[block]).prod() if block in leaving else 0.0
            for i, source in enumerate(sources):
                origin = block - 1 if source == OWN else source
                missing = out[origin].prod() if origin in out else 0.0
                total = total + self.costs[block, source] * (1 - out[block][i] - missing - unread)
        return total


def proxy(shapes: Sequence[Shape], source: int, block: int) -> nn.Sequential:
    """A path from one activation to the place of a block: max-pooling where the sides shrink, a 1x1 convolution
    without bias, BatchNorm; of values instead of images a linear layer without bias, and BatchNorm.

    The pooling has stride r, kernel r + 1 and padding r // 2 for the ratio r of the sides; the ratio of several blocks
    is the product of theirs. Where that does not meet the block's shape, it is an adaptive one. Convolutions are drawn
    from N(0, 0.01²). Raises ``ValueError`` for a block that enlarges its input.
    """
    given, wanted = shapes[source], shapes[block]
    if len(given) != len(wanted):
        raise ValueError(f"backbone: a block makes images of values or values of images: {given} became {wanted}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if len(given) == 1:
        layers["linear"] = nn.Linear(given[0], wanted[0], bias=False)
        nn.init.normal_(layers["linear"].weight, std=_DEVIATION)  # type: ignore[arg-type]
        layers["norm"] = nn.BatchNorm1d(wanted[0])
        return nn.Sequential(layers)
    if given[1:] != wanted[1:]:
        layers["pool"] = _pooling(shapes, source, block)
    layers["conv"] = nn.Conv2d(given[0], wanted[0], 1, bias=False)
    nn.init.normal_(layers["conv"].weight, std=_DEVIATION)  # type: ignore[arg-type]
    layers["norm"] = nn.BatchNorm2d(wanted[0])
    return nn.Sequential(layers)


def _pooling(shapes: Sequence[Shape], source: int, block: int) -> nn.Module:
    given, wanted = shapes[source][1:], shapes[block][1:]
    if any(small > large for small, large in zip(wanted, given, strict=True)):
        raise ValueError(f"backbone: sides of activations never grow along the blocks; {given} became {wanted}")
    steps = range(source + 1, block + 1)
    ratios = [math.prod(round(shapes[i - 1][axis] / shapes[i][axis]) for i in steps) for axis in (1, 2)]
    sides = tuple((n + 2 * (r // 2) - (r + 1)) // r + 1 if r > 1 else n for n, r in zip(given, ratios, strict=True))
    if sides != wanted:
        return nn.AdaptiveMaxPool2d(wanted)
    kernel = tuple(r + 1 if r > 1 else 1 for r in ratios)
    return nn.MaxPool2d(kernel, tuple(ratios), tuple(r // 2 for r in ratios))


def proxy_cost(shapes: Sequence[Shape], source: int, block: int) -> int:
    """The multiplications of a proxy per row."""
    return shapes[source][0] * math.prod(shapes[block])


class NetTailor(nn.Sequential):
    """A chain: what is in front of the tailored blocks, the `Tail`, the mean over the pixels, the classifier."""

    notes: tuple[str, ...] = ()
    """What should be known of where the backbone's numbers come from."""
    undecayed = ("tail.attention",)
    """Prefixes of parameters that no weight decay pulls."""

    @property
    def segments(self) -> dict[str, list[str]]:
        """The proxies of each block, all numbers of attention, and the classifier."""
        tail = self.get_submodule("tail")
        assert isinstance(tail, Tail)
        found = {f"block{block}": [f"tail.proxies.{block}"] for block in tail.proxies}
        attention = {"attention": ["tail.attention"]} if len(tail.attention) else {}
        return {**found, **attention, "classifier": ["classifier"]}


def nettailor(
    shape: Shape,
    outputs: int,
    *,
    backbone: Part = {"kind": "resnet18"},  # noqa: B006 (a part's default)
    skips: Annotated[int, Field(ge=1)] = 3,
    first_tailored_block: Annotated[int, Field(ge=1)] = 1,
    fold_norms: bool = True,
    prune: Annotated[float, Field(ge=0, lt=1)] | None = None,
    prune_blocks: Annotated[int, Field(ge=0)] = 0,
    paths: dict[int, list[int]] | list[dict[int, list[int]]] | None = None,
    teacher: str | list[str | None] | None = None,
    teacher_sha256: str | list[str | None] | None = None,
) -> nn.Module:
    """A frozen backbone of blocks, with small trained paths into each from a few activations before it, and attention.

    Of L blocks G_l, with proxies P_p^l from up to ``skips`` earlier activations into block l, it computes

        x_l = act(a_l^l G_l(x_(l-1)) + sum over p from max(l - skips, f - 1) to l - 1 of a_p^l P_p^l(x_p))

    from block f, ``first_tailored_block``, on; before it x_l = act(G_l(x_(l-1))). The a are the softmax of raw numbers
    that start at 2 for the block and -2 for proxies (0.948 for the block with three). Morgado and Vasconcelos,
    "NetTailor: Tuning the Architecture, Not Just the Weights" (CVPR 2019); in federated continual learning, with one
    entry for each task, "Addressing Client Drift in Federated Continual Learning with Adaptive Optimization" (arXiv
    2203.13321). Trained are proxies, the numbers of attention and a linear classifier: 1,150,887 parameters for
    resnet18, 3 skips and 10 outputs.

    ``backbone``: ``resnet18``, ``resnet20``, ``vgg11``, ``efficientnet-lite0`` with their settings (the head is left
    out) and ``weights``, or a module of your own that names its blocks, see `shoal.models.backbones.Backbone`. It is a
    constant in evaluation mode, while training too, unlike in the authors' code, where its BatchNorm follows the
    batches. ``fold_norms`` folds its BatchNorm into its convolutions.

    ``prune`` makes a smaller model from trained weights (``weights``): proxies of weight ``prune`` or less are left
    out, and of frozen blocks the ``prune_blocks`` with the smallest weights; the remaining numbers of each block make
    a softmax of their own, and activations that nothing reaches or nobody reads are left out, too. ``paths`` is filled
    in: the sources that each block keeps, 0 and up for activations, -1 for the block itself.

    Raises ``ValueError`` if no path is left, or for numbers of blocks that the backbone does not have.
    """
    frozen = build_backbone(backbone, shape)
    if fold_norms:
        frozen = frozen.fold()
    shapes, costs, channels = frozen.measure(shape)
    count = len(frozen.blocks)
    if first_tailored_block > count:
        raise ValueError(f"first_tailored_block is {first_tailored_block}, but the backbone has {count} blocks")
    every = all_paths(count, skips, first_tailored_block)
    if isinstance(paths, list):
        raise ValueError("paths: a list is of the models of all tasks; one model has the paths of its own task")
    kept = every if paths is None else living(remaining(every, paths))
    fixed = first_tailored_block - 1
    forked = OWN in kept.get(first_tailored_block, ())
    front = _front(frozen, first_tailored_block, forked)
    own = [b for b, sources in kept.items() if OWN in sources and not (forked and b == first_tailored_block)]
    inside = {block: frozen.blocks[block - 1] for block in own}
    tail = Tail(inside, kept, shapes, costs, frozen.activation, fixed, forked)
    layers: OrderedDict[str, nn.Module] = OrderedDict(front=front, tail=tail, end=frozen.end)
    if len(shapes[-1]) == 3:
        layers["pool"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
    layers["classifier"] = nn.Linear(channels, outputs)
    model = NetTailor(layers)
    model.notes = (*frozen.notes, *([] if paths is None else [_pruned(every, kept)]))
    if isinstance(teacher, str):
        model.notes += (f"teacher: {teacher}",)
    return model


def _front(frozen: Backbone, first: int, forked: bool) -> nn.Sequential:
    """The stem and the blocks before the first tailored one; with a fork, that one too."""
    front: OrderedDict[str, nn.Module] = OrderedDict(stem=frozen.stem)
    for number in range(1, first):
        front[f"block{number}"] = frozen.blocks[number - 1]
        front[f"activation{number}"] = frozen.activation
    if forked:
        front["fork"] = Fork(frozen.blocks[first - 1])
    return nn.Sequential(front)


def _pruned(every: Paths, kept: Paths) -> str:
    proxies = [sum(s != OWN for sources in paths.values() for s in sources) for paths in (kept, every)]
    blocks = [sum(OWN in sources for sources in paths.values()) for paths in (kept, every)]
    return f"pruned: {proxies[0]} of {proxies[1]} proxies and {blocks[0]} of {blocks[1]} tailored blocks are left"


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the backbone's defaults, and the paths that pruning leaves. Raises `ConfigError`."""
    found = {**settings, "backbone": resolve_backbone(settings["backbone"])}
    if settings["prune"] is None and not settings["prune_blocks"]:
        if settings["paths"] is not None:
            raise ConfigError("model.paths: is filled in by prune; set prune, or leave paths out")
    elif settings["paths"] is None:
        how = settings["prune"] or 0.0, settings["prune_blocks"]
        if isinstance(settings["weights_sha256"], list):
            each = [of_task(settings, task)["weights"] for task in range(count_tasks(settings))]
            found["paths"] = [kept_paths(file, *how) for file in each]
        else:
            found["paths"] = kept_paths(settings["weights"], *how)
    return found


def taught_by(settings: Mapping[str, Any], shape: Shape, outputs: int) -> Teacher:
    """The teacher of resolved settings; raises `ConfigError`."""
    file, digest = settings["teacher"], settings["teacher_sha256"]
    return build_teacher(settings["backbone"], shape, outputs, file, digest, settings["first_tailored_block"])


nettailor.complete = complete  # type: ignore[attr-defined]
nettailor.taught_by = taught_by  # type: ignore[attr-defined]
