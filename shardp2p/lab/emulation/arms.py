"""The schemes that are compared, as settings of one engine. Pure.

plain      one token a lap
flush      the published scheme: chunks of 8 drafted in a chain, 4 in flight, drafted anew after a rejection
sync_tree  a tree of 64 drafted in some levels, then a lap, then the next
tree       the adaptive pipeline, as users have it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardp2p.coordinator.commands import Limits
from shardp2p.errors import ConfigError
from shardp2p.lab.emulation.language import RANKS
from shardp2p.wire.protocols import INITIAL_CREDITS

CACHE_ROWS: Final = 1 << 15

SYNC_LEVELS: Final = {0.7: 6, 0.8: 8, 0.9: 12, 1.0: 20}
"""Up to which acceptance a synchronous tree is best drafted in so many levels, by the simulation on both profiles."""


@dataclass(frozen=True, slots=True)
class Arm:
    """`guesses`: how many of the draft's guesses below a node are taken."""

    limits: Limits
    guesses: int = RANKS


def arms(accept: float) -> Mapping[str, Arm]:
    """Every arm by its name, as it is best for that acceptance. Raises: ConfigError."""
    if not 0.0 < accept < 1.0:
        raise ConfigError(f"the acceptance is {accept}; it must be above 0 and below 1")
    levels = next(levels for most, levels in SYNC_LEVELS.items() if accept <= most)
    return {
        "plain": Arm(Limits(max_chunks=1, draft_tokens=0, cache_rows=CACHE_ROWS)),
        "flush": Arm(
            Limits(
                max_chunks=4, chunk_tokens=8, draft_tokens=1, draft_rounds=8, is_paced=False, cache_rows=CACHE_ROWS
            ),
            guesses=1,
        ),
        "sync_tree": Arm(
            Limits(
                max_chunks=1, chunk_tokens=64, draft_tokens=1, draft_rounds=levels, is_paced=False,
                cache_rows=CACHE_ROWS,
            )
        ),
        "tree": tree(),
    }  # fmt: skip


def choose_arms(names: Sequence[str], accept: float) -> list[str]:
    """The arms of these names, in our order; of none, all. Raises: ConfigError."""
    known = list(arms(accept))
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no scheme {name[:40]!r}; choose among {', '.join(known)}")
    return [name for name in known if name in names or not names]


def tree(chunk_tokens: int = 16) -> Arm:
    """The pipeline with chunks of up to so many rows."""
    return Arm(Limits(max_chunks=INITIAL_CREDITS, chunk_tokens=chunk_tokens, draft_tokens=1, cache_rows=CACHE_ROWS))
