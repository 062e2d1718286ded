"""The memory that is there, and whether decoded images fit into it."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import DataError

SHARE = 0.8
"""Images may take so much of the memory that is available; the rest is for training."""
_GIB = 2**30
_IN_PILLOW = 8
"""Bytes per pixel of the one image that is being resized: pillow keeps four, before and after."""


def check_room(rows: int, size: tuple[int, int], channels: int, what: str) -> None:
    """Raises `DataError` unless so many images, uint8, take at most `SHARE` of the memory that is available.

    ``size`` is ``(height, width)``; ``what`` names the source.
    """
    room = available()
    height, width = size
    if room is None or height * width * (rows * channels + _IN_PILLOW) <= SHARE * room:
        return
    raise DataError(
        f"{what}: {rows:,} rows x {height} x {width} pixels x {channels} channels are "
        f"{rows * height * width * channels / _GIB:,.1f} GiB, but only {room / _GIB:,.1f} GiB of memory are available, "
        f"and images may take {SHARE:.0%} of them; set a smaller data.size, or use fewer images"
    )


def available() -> int | None:
    """Bytes of memory that can be had without swapping, as the system says it; ``None`` where it does not."""
    limits = [limit for limit in (_meminfo(), _group()) if limit is not None]
    if limits:
        return min(limits)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return None


def _meminfo() -> int | None:
    """Linux: what is free or can be freed."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _group() -> int | None:
    """The limit of a container, if there is one."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdecimal():
            return int(text)
    return None
