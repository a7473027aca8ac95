"""Which neighbour is asked for which record: each record of one neighbour at a time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from shardp2p.swarm.exchange import MAX_ASKED, RETRY_S, URGENT_S, Asked, Exchange
from shardp2p.swarm.view import MAX_PEERS
from shardp2p.vocabulary import PeerId
from shardp2p.wire.codec_gossip import MAX_WANTS
from shardp2p.wire.news import ShortId

SCAN: Final = 1024
"""Records that are looked at for something to ask in one message."""


class Asking:
    """The records that we lack and whom we asked. `sequence_of` says which sequence of a peer we have, and
    `lacks_proof` whether we need its proof of membership too.
    """

    def __init__(self, sequence_of: Callable[[ShortId], int], lacks_proof: Callable[[ShortId], bool]) -> None:
        self._sequence_of = sequence_of
        self._lacks_proof = lacks_proof
        self._asked_of: dict[ShortId, PeerId] = {}

    def want(self, exchange: Exchange, short: ShortId, sequence: int, now: float) -> None:
        """This neighbour says that it has that sequence."""
        if short in exchange.asked or (short not in exchange.has_newer and len(exchange.has_newer) >= MAX_PEERS):
            return
        exchange.has_newer[short] = sequence
        exchange.hurry(now + (URGENT_S if self._asked_of.get(short) is None else RETRY_S))

    def dispute(self, exchange: Exchange, short: ShortId, sequence: int, now: float) -> None:
        """A heartbeat did not fit our record: let its sender show the record that it fits."""
        if len(exchange.disputed) < MAX_ASKED:
            exchange.disputed.add(short)
            self.want(exchange, short, sequence, now)

    def asks(self, exchange: Exchange, now: float) -> tuple[ShortId, ...]:
        """The records to ask this neighbour for now."""
        asks: list[ShortId] = []
        for short, sequence in list(islice(exchange.has_newer.items(), SCAN)):
            if len(asks) >= MAX_WANTS or len(exchange.asked) >= MAX_ASKED:
                break
            is_disputed = short in exchange.disputed
            if self._sequence_of(short) >= sequence and not is_disputed:
                del exchange.has_newer[short]
            elif is_disputed or short not in self._asked_of:
                del exchange.has_newer[short]
                exchange.asked[short] = Asked(now, sequence, self._lacks_proof(short))
                self._asked_of.setdefault(short, exchange.peer)
                asks.append(short)
        return tuple(asks)

    def answered(self, exchange: Exchange, short: ShortId) -> Asked | None:
        """The neighbour sent that record; None where it was not asked to."""
        asked = exchange.asked.pop(short, None)
        self.release(exchange, (short,))
        return asked

    def release(self, exchange: Exchange, shorts: Iterable[ShortId]) -> None:
        """Others may be asked for these records that we asked of this neighbour."""
        for short in shorts:
            if self._asked_of.get(short) == exchange.peer:
                del self._asked_of[short]
