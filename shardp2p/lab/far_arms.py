"""The schemes that are compared over a real model with prompt lookup, as settings of one engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardp2p.coordinator.commands import Limits
from shardp2p.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FarArm:
    """How an arm drafts. `branches`: of the text's earlier passages, 0: no drafts."""

    limits: Limits
    branches: int


FAR_ARMS: Final[Mapping[str, FarArm]] = {
    "plain": FarArm(Limits(max_chunks=1), 0),
    "flush": FarArm(Limits(max_chunks=4, chunk_tokens=8, draft_rounds=1, is_paced=False), 1),
    "sync_tree": FarArm(Limits(max_chunks=1), 4),
    "tree": FarArm(Limits(), 4),
}
"""The schemes of `bench wan` as they are with a real model: a synchronous tree is as wide as a chunk."""


def choose_far_arms(names: Sequence[str]) -> list[str]:
    """The arms of these names in our order, and plain, with which each is compared. Raises: ConfigError."""
    for name in names:
        if name not in FAR_ARMS:
            raise ConfigError(f"there is no scheme {name[:40]!r}; choose among {', '.join(FAR_ARMS)}")
    return [name for name in FAR_ARMS if name == "plain" or name in names]
