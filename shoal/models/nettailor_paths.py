"""Which paths lead into the tailored blocks: all, and those that pruning leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

from ..errors import ConfigError
from .weights import Weights

OWN = -1
"""The source of a block's own path: the frozen block itself."""
Paths = Mapping[int, Sequence[int]]
"""The sources of each tailored block, by its number, in order: `OWN` first, then activations, the nearest first."""


def named(source: int) -> str:
    """The name of a source among the numbers of attention."""
    return "own" if source == OWN else f"from{source}"


def all_paths(blocks: int, skips: int, first: int) -> dict[int, list[int]]:
    """The block itself and up to ``skips`` activations before it, for the blocks from ``first`` on.

    Activations before the ``first`` block's input are no sources.
    """
    found = {}
    for block in range(first, blocks + 1):
        found[block] = [OWN, *range(block - 1, max(block - skips, first - 1) - 1, -1)]
    return found


def remaining(every: Paths, kept: Paths) -> dict[int, list[int]]:
    """Those of all paths that are kept, in the usual order; raises ``ValueError`` for others."""
    unknown = {b: s for b, sources in kept.items() for s in sources if s not in every.get(b, ())}
    if unknown:
        block, source = next(iter(unknown.items()))
        what = "tailored block" if source == OWN else f"proxy from activation {source}"
        raise ValueError(
            f"prune: the trained file has a {what} at block {block}, and this model has none there; it was trained "
            f"with another backbone, skips or first_tailored_block"
        )
    return {block: [s for s in sources if s in kept.get(block, ())] for block, sources in every.items()}


def living(paths: Paths) -> dict[int, list[int]]:
    """The paths without those that nothing reaches or nobody reads; a block without inputs gives nothing.

    Raises ``ValueError`` if none leads from the first activation to the last block.
    """
    first, last = min(paths), max(paths)
    there = {first - 1}
    found: dict[int, list[int]] = {}
    for block, sources in paths.items():
        found[block] = [s for s in sources if (block - 1 if s == OWN else s) in there]
        if found[block]:
            there.add(block)
    if last not in there:
        raise ValueError("prune: no path is left from the input to the classifier; use a smaller threshold")
    read = {last}
    for block in sorted(found, reverse=True):
        if block in read:
            read |= {block - 1 if s == OWN else s for s in found[block]}
    return {block: sources for block, sources in found.items() if sources and block in read}


def kept_paths(weights: str | None, threshold: float, blocks: int) -> dict[str, list[int]]:
    """The paths that are kept of a trained model in a file: proxies with more weight than ``threshold``, and all
    frozen blocks but the ``blocks`` with the smallest weights (of equal ones the first). Keys are those of JSON.

    Raises `ConfigError`.
    """
    if weights is None:
        raise ConfigError(
            "model.prune: prunes a trained model; give its file, model.weights: runs/NAME/model.safetensors#KEY"
        )
    numbers: dict[int, dict[int, float]] = {}
    for name, value in Weights(weights).tensors.items():
        found = re.search(r"(?:^|\.)tail\.attention\.(\d+)\.(own|from(\d+))$", name)
        if found:
            source = OWN if found[2] == "own" else int(found[3])
            numbers.setdefault(int(found[1]), {})[source] = float(value)
    if not numbers:
        raise ConfigError(f"model.prune: {weights} holds no numbers of attention; it needs a trained nettailor model")
    kept: dict[int, list[int]] = {}
    own: dict[int, float] = {}
    for block, raw in sorted(numbers.items()):
        order = sorted(raw, reverse=True)
        alphas = torch.tensor([raw[s] for s in order], dtype=torch.float64).softmax(0).tolist()
        if OWN in raw:
            own[block] = alphas[order.index(OWN)]
        kept[block] = [s for s, a in zip(order, alphas, strict=True) if s == OWN or a > threshold]
    if blocks > len(own):
        raise ConfigError(f"model.prune_blocks: {weights} has {len(own)} frozen blocks beside proxies; got {blocks}")
    for block in sorted(own, key=lambda block: (own[block], block))[:blocks]:
        kept[block].remove(OWN)
    return {str(block): sorted(sources) for block, sources in kept.items()}
