"""A network as a frozen stem and a chain of frozen blocks, for models that are tailored around it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .base import Shape
from .efficientnet import MBConv
from .resnet import Block, Subsample
from .resnet18 import BasicBlock


class Residual(nn.Module):
    """``branch(x) + shortcut(x)``: a residual block without its final rectifier."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x) + self.shortcut(x)
        return y


class Backbone(nn.Module):
    """A chain: ``stem`` makes the activation 0 of the rows, block l the activation l of the one before.

    A block comes without its final ``activation`` (a rectifier by default), which is applied behind it. ``end`` stands
    between the last activation and the mean over its pixels (by default nothing). An own module is a backbone if it
    has these attributes: ``stem`` and ``blocks`` (``nn.ModuleList`` or ``nn.Sequential``), and perhaps ``activation``
    and ``end``; whatever else it has is left out. Everything is frozen.

    Raises ``ValueError`` for a module without them.
    """

    def __init__(
        self,
        stem: nn.Module,
        blocks: Iterable[nn.Module],
        activation: nn.Module | None = None,
        end: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.ModuleList(blocks)
        self.activation = nn.ReLU() if activation is None else activation
        self.end = nn.Identity() if end is None else end
        self.notes: tuple[str, ...] = ()
        self.requires_grad_(False)

    @classmethod
    def of(cls, module: nn.Module) -> Backbone:
        """The backbone that an own module names."""
        stem, blocks = getattr(module, "stem", None), getattr(module, "blocks", None)
        listed = isinstance(blocks, nn.ModuleList | nn.Sequential) and len(blocks)
        if not isinstance(stem, nn.Module) or not listed:
            raise ValueError(
                f"backbone: {type(module).__name__} names no blocks; it needs the attributes 'stem' (a module) and "
                f"'blocks' (nn.ModuleList or nn.Sequential of blocks without their last rectifier), or be one of "
                f"{', '.join(CUTS)}"
            )
        assert isinstance(blocks, nn.ModuleList | nn.Sequential)
        return cls(stem, blocks, getattr(module, "activation", None), getattr(module, "end", None))

    def fold(self) -> Backbone:
        """The same numbers with BatchNorm folded into the convolutions and linear layers in front of it.

        Found in ``nn.Sequential`` and `Residual` alone: what a block of an own class calls is not known.
        """
        folded = Backbone(fold(self.stem), [fold(block) for block in self.blocks], self.activation, fold(self.end))
        folded.notes = self.notes
        return folded

    @torch.no_grad()
    def measure(self, shape: Shape) -> tuple[list[Shape], list[int], int]:
        """Shapes of the activations 0 to L of one row, multiplications of the stem and of each block, and the number
        of values per pixel (or values) that ``end`` gives. Raises ``ValueError`` where it does not fit the input."""
        self.eval()
        like = next(self.parameters(), torch.zeros(()))
        x = torch.zeros((1, *shape), dtype=like.dtype)
        shapes, costs = [], []
        for layer in (self.stem, *self.blocks):
            with _Counting(layer) as counted:
                try:
                    x = layer(x)
                except RuntimeError as error:
                    raise ValueError(f"backbone: it fails on inputs of shape {tuple(shape)}: {error}") from error
            if x.dim() not in (2, 4):
                raise ValueError(
                    f"backbone: activations are [rows, values] or [rows, channels, height, width]; got {tuple(x.shape)}"
                )
            shapes.append(tuple(x.shape[1:]))
            costs.append(counted.total)
        return shapes, costs, int(self.end(x).shape[1])


class _Counting:
    """Counts the multiplications of convolutions and linear layers while a module runs on one row."""

    def __init__(self, module: nn.Module) -> None:
        self.layers = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        self.total = 0

    def __enter__(self) -> _Counting:
        self.hooks = [layer.register_forward_hook(self._count) for layer in self.layers]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _count(self, layer: nn.Module, _: Any, y: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        self.total += y.numel() * weight[0].numel()


def fold(module: nn.Module) -> nn.Module:
    """Folds BatchNorm into the layers in front of it, in plain chains and `Residual`; new layers, others are kept."""
    if type(module) is Residual:
        return Residual(fold(module.branch), fold(module.shortcut))
    if type(module) is not nn.Sequential:
        return module
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    last = ""
    for name, child in module.named_children():
        before = layers.get(last)
        normed = isinstance(child, nn.modules.batchnorm._BatchNorm) and child.track_running_stats
        if normed and isinstance(before, nn.Conv2d | nn.Linear):
            layers[last] = _folded(before, child)
        else:
            layers[name] = fold(child)
            last = name
    return nn.Sequential(layers)


def _folded(layer: nn.Conv2d | nn.Linear, norm: nn.Module) -> nn.Module:
    """The layer that gives what the norm makes of this one's outputs; worked out in float64."""
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight.detach().double()
    weight = layer.weight.detach()
    bias = torch.zeros_like(scale) if layer.bias is None else layer.bias.detach().double()
    bias = (bias - norm.running_mean.double()) * scale
    bias = bias if norm.bias is None else bias + norm.bias.detach().double()
    new = copy.deepcopy(layer)
    new.weight = nn.Parameter((weight.double() * scale.view(-1, *(1,) * (weight.dim() - 1))).to(weight.dtype), False)
    new.bias = nn.Parameter(bias.to(weight.dtype), False)
    return new


def _basic(block: nn.Module) -> Residual:
    assert isinstance(block, BasicBlock)
    branch = nn.Sequential(block.conv1, block.bn1, nn.ReLU(), block.conv2, block.bn2)
    return Residual(branch, nn.Identity() if block.downsample is None else block.downsample)


def _resnet18(module: nn.Module) -> Backbone:
    layers = dict(module.named_children())
    stem = nn.Sequential(*[layers[name] for name in ("conv1", "bn1", "relu", "maxpool") if name in layers])
    stages = [layers[f"layer{stage}"] for stage in (1, 2, 3, 4)]
    return Backbone(stem, [_basic(block) for stage in stages for block in stage.children()])


def _resnet20(module: nn.Module) -> Backbone:
    layers = dict(module.get_submodule("features").named_children())
    blocks = []
    for block in (block for stage in (1, 2, 3) for block in layers[f"stage{stage}"].children()):
        assert isinstance(block, Block)
        branch = nn.Sequential(block.conv1, block.norm1, nn.ReLU(), block.conv2, block.norm2)
        shortcut = block.shortcut
        if not isinstance(shortcut, nn.Identity | Subsample):
            shortcut = nn.Sequential(*shortcut.children())
        blocks.append(Residual(branch, shortcut))
    return Backbone(nn.Sequential(*[layers[n] for n in ("conv", "norm", "relu", "maxpool") if n in layers]), blocks)


def _vgg11(module: nn.Module) -> Backbone:
    """The first convolution is the stem; each other one, with the pooling in front of it, a block."""
    blocks: list[list[nn.Module]] = []
    waiting: list[nn.Module] = []
    for layer in module.get_submodule("features").children():
        if isinstance(layer, nn.Conv2d):
            blocks.append([*waiting, layer])
            waiting = []
        elif isinstance(layer, nn.MaxPool2d):
            waiting.append(layer)
        elif not isinstance(layer, nn.ReLU):
            blocks[-1].append(layer)
    stem = nn.Sequential(*blocks[0], nn.ReLU())
    return Backbone(stem, [nn.Sequential(*block) for block in blocks[1:]], end=nn.Sequential(*waiting))


def _efficientnet(module: nn.Module) -> Backbone:
    """Bottlenecks are linear: nothing is applied behind a block."""
    layers = dict(module.named_children())
    blocks: list[nn.Module] = []
    for block in layers["_blocks"].children():
        assert isinstance(block, MBConv)
        branch = block.branch()
        blocks.append(Residual(branch, nn.Identity()) if block.residual else branch)
    stem = nn.Sequential(layers["_conv_stem"], layers["_bn0"], nn.ReLU6())
    end = nn.Sequential(layers["_conv_head"], layers["_bn1"], nn.ReLU6())
    return Backbone(stem, blocks, nn.Identity(), end)


CUTS: Mapping[str, tuple[str, Callable[[nn.Module], Backbone]]] = {
    "resnet18": ("fc", _resnet18),
    "resnet20": ("classifier", _resnet20),
    "vgg11": ("classifier", _vgg11),
    "efficientnet-lite0": ("_fc", _efficientnet),
}
"""Models of ours that are backbones: the name of the head that is left out, and how the rest is cut into blocks."""


def check_kind(kind: str, known: Sequence[str]) -> None:
    """Raises `ConfigError` for a model of ours, one of ``known``, that is not cut into blocks."""
    if kind in known and kind not in CUTS:
        raise ConfigError(
            f"model.backbone: {kind} is no sequence of blocks; use one of {', '.join(CUTS)}, or a module of your own "
            f"that names its blocks"
        )
