"""Shoal: federated and decentralised learning while the clients' data drifts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Result, Sweep, resume, run
    from .data.arrays import from_arrays
    from .data.dataset import Dataset
    from .errors import ConfigError, DataError, RunError, ShoalError
    from .prediction import predict
    from .pretraining import pretrain
    from .registry import register
    from .sweeps import sweep
    from .track.base import Tracker

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "DataError",
    "Dataset",
    "Result",
    "RunError",
    "ShoalError",
    "Sweep",
    "Tracker",
    "from_arrays",
    "predict",
    "pretrain",
    "register",
    "resume",
    "run",
    "sweep",
]

# Imported when first used: a method's author who needs one module does not load them all.
_HOMES = {
    "ConfigError": "errors",
    "DataError": "errors",
    "Dataset": "data.dataset",
    "Result": "api",
    "RunError": "errors",
    "ShoalError": "errors",
    "Sweep": "api",
    "Tracker": "track.base",
    "from_arrays": "data.arrays",
    "predict": "prediction",
    "pretrain": "pretraining",
    "register": "registry",
    "resume": "api",
    "run": "api",
    "sweep": "sweeps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
