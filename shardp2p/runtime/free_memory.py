"""How much memory a device has free for us, and what we may offer of it. Knows no torch until asked about a GPU."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from shardp2p.errors import ConfigError

GROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUPS: Final = Path("/proc/self/cgroup")


def offered_bytes(device: str, asked_bytes: int | None = None) -> int:
    """What a peer offers on `device`: what its user asked for, else all that is free now.

    Raises: ConfigError when less is free than was asked for.
    """
    free = free_memory_bytes(device)
    if asked_bytes is None:
        return free
    if asked_bytes > free:
        raise ConfigError(
            f"{asked_bytes / 2**20:,.0f} MiB of memory are to be offered, and {device} has {free / 2**20:,.0f} MiB "
            f"free; offer at most --memory {free // 2**20}MiB, or leave --memory out"
        )
    return asked_bytes


def free_memory_bytes(device: str) -> int:
    """What is free on `device`, as cpu or cuda:1, within the limits of the container that we run in."""
    if device == "cpu":
        return min([psutil.virtual_memory().available, *group_free_bytes()])
    import torch

    return int(torch.cuda.mem_get_info(torch.device(device))[0])


def group_free_bytes(groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> list[int]:
    """What each limited control group above this process has left: cgroups(7), version 2 and 1. Empty elsewhere."""
    try:
        lines = own_groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    left: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            left += _left(groups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            left += _left(
                groups / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            )
    return left


def _left(root: Path, path: str, limit: str, usage: str, reclaimable: str) -> list[int]:
    """What the group `path` and those above it have left. In a container it may be the root itself."""
    group = root / path.lstrip("/")
    left = []
    for place in (group, *group.parents):
        with suppress(OSError, ValueError):
            most, used = int((place / limit).read_text()), int((place / usage).read_text())
            left.append(max(0, most - used + _statistic(place / "memory.stat", reclaimable)))
        if place == root:
            break
    return left


def _statistic(file: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
