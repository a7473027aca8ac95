"""Who is admitted to a private swarm, kept up to date while a peer runs: statements are heard, spread and kept, and the
connections of whom we no longer admit are closed. The rules: identity/membership.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import structlog
import trio

from shardp2p.errors import ConfigError, IntegrityError, OverloadedError, RemoteProtocolError, ShardError
from shardp2p.host.beat import next_beat
from shardp2p.host.host import Host
from shardp2p.identity.joined import JoinedSwarms
from shardp2p.identity.membership import Membership
from shardp2p.identity.token import TurnedAwayError, turned_away
from shardp2p.swarm.gossip_service import GossipService
from shardp2p.swarm.shared_values import REVOCATIONS
from shardp2p.vocabulary import PeerId

USES: Final = 2
"""The kind of shared values that say who used a counted invite."""
MEMBERSHIP_S: Final = 1.0
"""How often revocations that came by another way are looked for, and connections of the revoked closed."""
GOODBYE_S: Final = 0.25
"""How long whom we no longer admit may hear the revocation: a peer that knows of its own ends and tries no more."""
DOUBT_S: Final = 1.5
"""How long whoever lost a peer may ask it whether it shut us out."""
CLOSING_S: Final = 0.5
"""For closing their connections, all at once. What is left then is met at the next look."""

log = structlog.get_logger()


class Admission:
    """Whether a swarm admits ourselves. `refused` is set when it does not any more."""

    def __init__(self, host: Host, swarm_name: str, membership: Membership | None) -> None:
        self.refused = trio.Event()
        self._host = host
        self._swarm_name = swarm_name
        self._membership = membership

    async def watch(self, kept: JoinedSwarms | None, gossip: GossipService) -> None:
        """Keep up to date who is admitted, where the swarm is private."""
        if self._membership is not None:
            await watch_membership(self._membership, kept, gossip, self._host, self.refused)

    async def check(self, lost: PeerId, addresses: Sequence[str] = ()) -> None:
        """Find out whether we lost that peer because we are admitted no more; it is asked, if we have not heard.

        Raises: ConfigError if so.
        """
        if self._membership is None:
            return
        refusal = self._membership.own_refusal(time.time())
        if refusal is None and lost not in self._host.connected_peers():
            with trio.move_on_after(DOUBT_S):
                try:
                    await self._host.connect(lost, addresses)
                except TurnedAwayError as error:
                    refusal = error.refusal
                except ShardError as error:
                    log.debug("peer_is_gone", peer=lost, reason=error.message)
        if refusal is not None:
            raise ConfigError(turned_away(self._swarm_name, refusal))


async def watch_membership(
    membership: Membership, kept: JoinedSwarms | None, gossip: GossipService, host: Host, refused: trio.Event
) -> None:
    """Do so until cancelled; `refused` is set when we are not admitted ourselves any more."""
    heard: set[bytes] = set()
    shut_out: set[PeerId] = set()
    for statement in membership.statements():
        _share(gossip, statement)
    while True:
        now_s = time.time()
        news = kept is not None and _refresh(kept, membership, now_s)
        for kind in (REVOCATIONS, USES):
            for statement in gossip.values(kind):
                if statement not in heard:
                    heard.add(statement)
                    news |= _receive(membership, statement, now_s)
        for statement in membership.pending():
            _share(gossip, statement)
        if news and kept is not None:
            _keep(kept, membership)
        shut_out = await _admit_no_others(membership, shut_out, gossip, host, now_s)
        gossip.recheck()
        if membership.own_refusal(now_s) is not None:
            refused.set()
        await trio.sleep_until(next_beat(trio.current_time(), MEMBERSHIP_S))


async def _admit_no_others(
    membership: Membership, shut_out: set[PeerId], gossip: GossipService, host: Host, now_s: float
) -> set[PeerId]:
    """Shut out who is not admitted any more, let in who is again by a later invite; who is out now."""
    if membership.ended(host.connected_peers(), now_s):
        await trio.sleep(GOODBYE_S)
    # Looked at anew: others may have come in the meantime, and some may have come back by a later invite.
    connected = frozenset(host.connected_peers())
    ended = dict(membership.ended(connected | shut_out, now_s))
    with trio.move_on_after(CLOSING_S):
        async with trio.open_nursery() as nursery:
            for peer in sorted(ended.keys() & connected):
                log.info("peer_shut_out", peer=peer, reason=ended[peer])
                gossip.shut_out(peer)
                nursery.start_soon(host.disconnect, peer)
    for peer in shut_out - ended.keys():
        log.info("peer_let_in", peer=peer)
        gossip.let_in(peer)
    return set(ended)


def _share(gossip: GossipService, statement: bytes) -> None:
    try:
        gossip.share(REVOCATIONS if statement[:1] == b"\x01" else USES, statement)
    except (OverloadedError, RemoteProtocolError, IntegrityError) as error:
        log.warning("statement_not_shared", reason=error.message)


def _refresh(kept: JoinedSwarms, membership: Membership, now_s: float) -> bool:
    """Take up what other processes have added; whether that was news. A disk that fails ends no membership."""
    try:
        return bool(kept.refresh(membership, now_s))
    except ConfigError as error:
        log.warning("revocations_not_read", reason=error.message)
        return False


def _keep(kept: JoinedSwarms, membership: Membership) -> None:
    """Keep what was heard for the next start. Without that it counts all the same, and gossip tells it again."""
    try:
        kept.keep(membership)
    except ConfigError as error:
        log.warning("revocations_not_kept", reason=error.message)


def _receive(membership: Membership, statement: bytes, now_s: float) -> bool:
    try:
        return membership.receive(statement, now_s)
    except (RemoteProtocolError, IntegrityError, OverloadedError) as error:
        log.warning("statement_ignored", reason=error.message)
        return False
