"""Where peers can be dialled, and whom to leave alone for a while: pure, bounded, forgetful.

What a peer says of itself, signed, outranks what others say of it: a liar can add addresses only to peers that have
said nothing yet. A peer that failed is left alone for a time that doubles, until it is heard again.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from shardp2p.errors import ConfigError
from shardp2p.host.addresses import CircuitAddress, TcpAddress, parse_address
from shardp2p.host.ip_scopes import scope_of
from shardp2p.vocabulary import PeerId

MAX_PEERS: Final = 4096
"""Some megabytes; whoever was of no use for longest is forgotten first."""
MAX_ADDRESSES: Final = 8
"""Of one peer: a machine has a few interfaces, and each is a dial of some seconds when it is wrong."""
MAX_ADDRESS_CHARACTERS: Final = 256
FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 300.0
"""How long a peer that failed is left alone: doubled with each failure up to this."""

Source = Literal["hearsay", "itself", "user"]
"""Who says where a peer is. A user may name hosts; strangers give IP addresses only."""

_HEARSAY: Final = -1
"""The sequence of addresses that the peer itself did not sign."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A peer that was found, and where it is said to be (perhaps nowhere): a hint, for it may be gone."""

    peer_id: PeerId
    addresses: tuple[str, ...]


@dataclass(slots=True)
class _Entry:
    addresses: tuple[str, ...] = ()
    sequence: int = _HEARSAY
    given: tuple[str, ...] = ()
    heard_at: float = -1.0
    failures: int = 0
    retry_at: float = 0.0


class AddressBook:
    """A map from peers to their addresses. `now` is any clock that does not run backwards."""

    def __init__(self, ours: PeerId) -> None:
        self._ours = ours
        self._entries: OrderedDict[PeerId, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def learn(self, peer: PeerId, addresses: Sequence[str], source: Source, sequence: int = 0) -> bool:
        """Take note of `addresses`, less those that cannot be dialled. Whether they were taken.

        The user's stay for ever and are tried first. A peer's own replace older ones, by `sequence`, or any at which
        it could not be reached, since its clock may have gone back. Hearsay counts only while the peer itself has
        said nothing.
        """
        usable = tuple(_usable(peer, addresses, may_be_name=source == "user"))
        if not usable or peer == self._ours:
            return False
        entry = self._entry(peer)
        if source == "user":
            entry.given = usable
        elif source == "itself" and (sequence > entry.sequence or entry.failures):
            entry.addresses, entry.sequence = usable, sequence
        elif source == "hearsay" and entry.sequence == _HEARSAY:
            entry.addresses = tuple(dict.fromkeys((*entry.addresses, *usable)))[:MAX_ADDRESSES]
        else:
            return False
        return True

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """What to dial, the user's own first; empty for a peer of which nothing is known."""
        entry = self._entries.get(peer)
        return () if entry is None else tuple(dict.fromkeys((*entry.given, *entry.addresses)))

    def is_straight(self, peer: PeerId) -> bool:
        """Whether some address of `peer` leads to it without a relay."""
        return any("/p2p-circuit" not in address for address in self.addresses(peer))

    def heard(self, peer: PeerId, now: float) -> None:
        """The peer proved to be there: it answered, or asked."""
        entry = self._entry(peer)
        entry.heard_at, entry.failures, entry.retry_at = now, 0, 0.0

    def failed(self, peer: PeerId, now: float) -> None:
        """The peer could not be reached or did not answer: leave it alone for a while."""
        entry = self._entry(peer)
        entry.retry_at = now + min(FIRST_PAUSE_S * 2.0 ** min(entry.failures, 10), LONGEST_PAUSE_S)
        entry.failures += 1

    def may_try(self, peer: PeerId, now: float) -> bool:
        """Whether the peer's pause, if it has one, is over."""
        entry = self._entries.get(peer)
        return entry is None or now >= entry.retry_at

    def heard_since(self, peer: PeerId, since: float) -> bool:
        """Whether the peer proved to be there at or after `since`."""
        entry = self._entries.get(peer)
        return entry is not None and entry.heard_at >= since

    def heard_at(self, peer: PeerId) -> float:
        """When the peer last proved to be there; -1 for never."""
        entry = self._entries.get(peer)
        return -1.0 if entry is None else entry.heard_at

    def candidates(self, now: float, at_most: int) -> tuple[PeerId, ...]:
        """Whom to ask when nobody else is left: may be tried and dialled; last heard first."""
        able = [
            (entry.heard_at, peer)
            for peer, entry in self._entries.items()
            if (entry.addresses or entry.given) and now >= entry.retry_at
        ]
        return tuple(peer for _, peer in sorted(able, reverse=True)[:at_most])

    def _entry(self, peer: PeerId) -> _Entry:
        """The entry of `peer`, now the last to be forgotten. The user's peers are never forgotten."""
        entry = self._entries.get(peer)
        if entry is None:
            if len(self._entries) >= MAX_PEERS:
                victim = next((other for other, known in self._entries.items() if not known.given), None)
                self._entries.pop(next(iter(self._entries)) if victim is None else victim)
            entry = self._entries[peer] = _Entry()
        self._entries.move_to_end(peer)
        return entry


def _usable(peer: PeerId, texts: Sequence[str], *, may_be_name: bool) -> list[str]:
    """The dialable ones of `texts`, without the peer's id at the end, in their order.

    Strangers may name IP addresses only: a name would make us ask a resolver of their choice.
    """
    found: dict[str, None] = {}
    for text in texts[: 4 * MAX_ADDRESSES]:
        if len(text) > MAX_ADDRESS_CHARACTERS:
            continue
        try:
            address = parse_address(text)
        except ConfigError:
            continue
        tcp = address.relay if isinstance(address, CircuitAddress) else address
        if address.peer in (None, peer) and _is_dialable(tcp, may_be_name):
            found[str(replace(address, peer=None))] = None
    return list(found)[:MAX_ADDRESSES]


def _is_dialable(address: TcpAddress, may_be_name: bool) -> bool:
    try:
        ip = ipaddress.ip_address(address.host)
    except ValueError:
        return may_be_name and address.port > 0
    # A public address without a port says in which home a peer is (announcing.py).
    return scope_of(ip) == "public" if address.port == 0 else not (ip.is_unspecified or ip.is_multicast)
