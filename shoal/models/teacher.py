"""The teacher of a tailored network: its backbone after fine-tuning on the task, read from a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .backbones import CUTS, Backbone
from .base import GLOBAL_RANDOM, Shape
from .factory import made
from .weights import Weights, check_weights

LOGITS: Mapping[str, tuple[str, ...]] = {
    "resnet18": ("avgpool", "flatten", "fc"),
    "resnet20": ("features.pool", "features.flatten", "classifier"),
    "vgg11": ("avgpool", "flatten", "classifier"),
    "efficientnet-lite0": ("_avg_pooling", "_flatten", "_dropout", "_fc"),
}
"""What stands behind the blocks of our models, up to the logits."""
_CLASSIFIER = "classifier"
"""The attribute of an own module that makes logits of the mean over the pixels."""


class Teacher(nn.Module):
    """Gives of each row what a student is compared with: ``[rows, values]``, the activations of the blocks from
    ``first`` on, flat and channels last, and then the logits. A constant in evaluation mode."""

    def __init__(self, backbone: Backbone, logits: nn.Module, first: int = 1) -> None:
        super().__init__()
        self.backbone = backbone
        self.logits = logits
        self.first = first
        self.requires_grad_(False)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        found = []
        x = self.backbone.stem(x)
        for number, block in enumerate(self.backbone.blocks, start=1):
            x = self.backbone.activation(block(x))
            if number >= self.first:
                found.append(flat(x))
        found.append(self.logits(self.backbone.end(x)))
        return torch.cat(found, dim=1)


def flat(x: Tensor) -> Tensor:
    """Activations ``[rows, values]``; of images as they lie in memory, channels last."""
    return x.permute(0, 2, 3, 1).flatten(1) if x.dim() == 4 else x


def unflat(x: Tensor, shape: Shape) -> Tensor:
    """The activations of this shape again, ``[rows, *shape]``."""
    if len(shape) == 1:
        return x
    channels, height, width = shape
    return x.reshape(-1, height, width, channels).permute(0, 3, 1, 2)


def build_teacher(
    backbone: Mapping[str, Any], shape: Shape, outputs: int, file: str, sha256: str | None, first: int
) -> Teacher:
    """The teacher with ``outputs`` logits, a resolved ``backbone`` with the numbers of ``FILE`` or ``FILE#KEY``.

    All of its numbers must be in the file, the head, too. BatchNorm is folded. An own module that names its blocks is
    a teacher if its attribute ``classifier`` makes the logits, of the mean over the pixels (or of the values).

    Raises `ConfigError`.
    """
    try:
        check_weights(file, sha256)
        weights = Weights(file)
        kind = str(backbone["kind"])
        module = made(backbone, shape, outputs)
        module.requires_grad_(False)  # before loading: no head is newly drawn, all must be there
        weights.load(module)
    except ConfigError as error:
        raise ConfigError(str(error).replace("model.weights", "model.teacher")) from error
    module.eval()
    x = _two_rows(shape)
    wanted = module(x) if type(module).forward is not nn.Module.forward else None  # before it is cut
    logits = _logits(module, kind)
    cut = CUTS[kind][1] if kind in CUTS else Backbone.of
    teacher = Teacher(cut(module).fold(), logits, first)
    found = teacher(x)[:, -outputs:]
    if found.shape != (2, outputs) or (
        wanted is not None and not torch.allclose(found, wanted, rtol=1e-3, atol=1e-3 * float(1 + wanted.abs().max()))
    ):
        raise ConfigError(
            f"model.teacher: {kind} gives other logits as a whole than its stem, blocks, end, mean and classifier one "
            f"after another; a teacher is a chain of these"
        )
    return teacher


def _logits(module: nn.Module, kind: str) -> nn.Module:
    if kind in LOGITS:
        return nn.Sequential(*[module.get_submodule(name) for name in LOGITS[kind]])
    classifier = getattr(module, _CLASSIFIER, None)
    if not isinstance(classifier, nn.Module):
        raise ConfigError(
            f"model.teacher: {kind} has no attribute {_CLASSIFIER!r} that makes logits of its last activation"
        )
    return nn.Sequential(_Mean(), classifier)


class _Mean(nn.Module):
    """The mean over the pixels; values stay as they are."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) if x.dim() == 4 else x


def _two_rows(shape: Shape) -> Tensor:
    with GLOBAL_RANDOM, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.randn(2, *shape)
