"""The connection of the cluster engine to Ray: a cluster that is running, or one that is started on this machine."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from typing import Any

from ..errors import RunError
from .workers import usable_cores

_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Ray reports its use to its makers unless it is told not to."""
_GUARDED = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""Whoever reaches Ray's ports could have it run anything: those of a cluster of our own ask for a token that only its
processes have. Ray reads this once, when it is imported."""

ANSWER_SECONDS = 10.0
"""A cluster whose head does not answer for so long is not there."""
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


class Session:
    """Ray, connected. ``address`` is a running cluster's, ``None`` starts one here with ``processors`` (default: those
    that this process may use). What this process was connected to before is used as it is, and left open.

    Raises `RunError` where no cluster answers.
    """

    guarded = False
    """Whether Ray was imported here first, so that it knows the token."""

    def __init__(self, address: str | None, processors: int | None) -> None:
        if "ray" not in sys.modules:
            Session.guarded = address is None
        own = {**_QUIET, **(_GUARDED if Session.guarded and address is None else {})}
        self._before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        self._closes = False
        try:
            import ray

            self.ray: Any = ray
            self._closes = not ray.is_initialized()
            if self._closes:
                self._connect(address, processors)
        except BaseException:
            self.close()
            raise

    def _connect(self, address: str | None, processors: int | None) -> None:
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is None:
            # "local": never a cluster that happens to run here.
            count = processors or usable_cores()
            try:
                self.ray.init(address="local", num_cpus=count, num_gpus=0, include_dashboard=False, **quiet)
            except Exception as error:  # Ray has no class for it
                raise RunError(
                    f"execution.kind: cluster: Ray did not start on this machine: {in_short(error)}; it gives up after "
                    f"half a minute, so that a busy machine may do at the second try"
                ) from error
            return
        try:
            if address != "auto":  # Ray would try for minutes
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
            self.ray.init(address=address, **quiet)
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            raise RunError(
                f"execution.address: no Ray cluster answers at {address!r}: {in_short(error)}; "
                f"start one with: ray start --head, and call shoal on one of its machines (docs/cluster.md)"
            ) from error

    @property
    def processors(self) -> int:
        """How many processors the cluster has."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends."""
        if self._closes:
            self.ray.shutdown()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}


def in_short(error: Exception) -> str:
    """What Ray says, without the traceback in the middle: what happened, and the last line, which is the cause."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    return " ... ".join(line[:200] for line in dict.fromkeys((*lines[:1], *lines[-1:])))
