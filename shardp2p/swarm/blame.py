"""Offences against the rules of gossip become strikes, and events that say why. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from shardp2p.errors import IntegrityError, OverloadedError, RemoteProtocolError
from shardp2p.swarm.strikes import BREACH, FORGERY, Strikes
from shardp2p.swarm.view_events import Struck
from shardp2p.vocabulary import PeerId

FORGED: Final = "passed on a heartbeat that nobody can have made"
FORBIDDEN: Final = "claims layers, which a client may not hold"


class Blame:
    """Strikes peers and keeps what to tell of it until it is taken."""

    def __init__(self, strikes: Strikes) -> None:
        self._strikes = strikes
        self._events: list[Struck] = []

    @contextmanager
    def striking(self, peer: PeerId, now: float) -> Iterator[None]:
        """Count what a neighbour should have checked itself against it. That we have no room is nobody's fault."""
        try:
            yield
        except IntegrityError as error:
            self.strike(peer, FORGERY, error.message, now)
        except RemoteProtocolError as error:
            self.strike(peer, BREACH, error.message, now)
        except OverloadedError:
            pass

    def strike(self, peer: PeerId, weight: float, reason: str, now: float) -> None:
        """Count against `peer`."""
        is_banned = self._strikes.strike(peer, weight, now)
        self._events.append(Struck(peer, reason, is_banned))

    def take(self) -> list[Struck]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events
