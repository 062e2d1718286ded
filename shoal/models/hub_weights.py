"""``weights: hub:OWNER/NAME/FILE``: a file of the Hugging Face hub, through its package ``huggingface_hub``."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

from ..errors import ConfigError

HUB = "hub:"
"""How ``model.weights`` names a file of the hub."""
_FORM = re.compile(r"hub:(?P<name>[^/@#]+/[^/@#]+)/(?P<file>[^@#]+)(@(?P<revision>[^#]+))?(#(?P<key>.+))?")


def hub_file(given: str) -> tuple[Path, str | None]:
    """The file that ``hub:OWNER/NAME/FILE``, with ``@REVISION`` and ``#KEY`` or without, names, and the key.

    It is downloaded unless the hub's cache on this machine has it: whoever writes ``hub:`` asks for that. Raises
    `ConfigError` where the form is another, the package is not installed, or the file is not to be had.
    """
    form = _FORM.fullmatch(given)
    if form is None:
        raise ConfigError(
            f"model.weights: a file of the hub is hub:OWNER/NAME/FILE, with @REVISION and #KEY or without; got {given}"
        )
    return _fetched(form["name"], form["file"], form["revision"]), form["key"]


@functools.lru_cache(64)
def _fetched(name: str, file: str, revision: str | None) -> Path:
    """Asks once for a process: a newer version must not come in the middle of a run."""
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ConfigError(
            f"model.weights: {HUB} needs the package 'huggingface_hub', which cannot be imported ({error}); install it "
            f"with: pip install 'shoal[hub]'"
        ) from None
    try:
        return Path(hub.hf_hub_download(name, file, revision=revision))
    except Exception as error:  # of the network, the hub or the disk
        raise ConfigError(
            f"model.weights: cannot load {file} of {name}, revision {revision or 'newest'}, from the hub: "
            f"{type(error).__name__}: {error} (are the names right, the network there, HF_HUB_OFFLINE unset?)"
        ) from error
