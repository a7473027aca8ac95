"""How a connection reaches its peer: straight, through a hole punched in two routers, or over a relay. Pure."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal

from shardp2p.vocabulary import PeerId

PathKind = Literal["direct", "punched", "relayed"]


@dataclass(frozen=True, slots=True)
class Path:
    """The way of one connection; `relay` is who passes its bytes on, where one does."""

    kind: PathKind
    relay: PeerId | None = None

    def __str__(self) -> str:
        return f"relayed by {self.relay}" if self.relay else self.kind

    @property
    def is_direct(self) -> bool:
        """Whether no third peer carries the bytes: to be preferred."""
        return self.relay is None


DIRECT: Final = Path("direct")
PUNCHED: Final = Path("punched")

upgrading_path: ContextVar[Path] = ContextVar("upgrading_path", default=DIRECT)
"""The path of the connection that the current task upgrades: libp2p makes the multiplexer, which wants to know."""


def relayed(by: PeerId) -> Path:
    """The path over the relay `by`."""
    return Path("relayed", by)
