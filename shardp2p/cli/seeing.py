"""How a command sees a swarm: a peer of this data directory that runs is asked; else we become a listener in it.

A listener hears gossip and asks the directory, says nothing of itself, and goes on as soon as either shows something.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shardp2p.cli.client_identity import ClientPlace, client_place, joined_before
from shardp2p.cli.output import note
from shardp2p.cli.process_title import hide_argument
from shardp2p.cli.progress import progress_bar
from shardp2p.cli.quick_imports import quick_imports
from shardp2p.cli.sight import Sight
from shardp2p.cli.swarm_views import DIGEST, directory_view_of, sight_of, view_of
from shardp2p.config import Paths
from shardp2p.errors import ConfigError, PeerUnavailableError, ShardError
from shardp2p.vocabulary import PeerId, SwarmId

if TYPE_CHECKING:
    from shardp2p.member import Member

Look = Callable[[], Awaitable[Sight]]
"""Shows the swarm as it is now. Raises: ShardError."""

SIGHT_S: Final = 10.0
"""How long a new listener looks for anybody before it says why nobody answers."""
DOUBT_S: Final = 2.0
"""After so long without anybody the peer list is asked one by one: where all are unreachable, waiting is no use."""
AGAIN_S: Final = 0.3
"""Between questions to a directory that knows nothing yet."""
QUIET_S: Final = 0.25
SETTLED_S: Final = 2.0
"""A view that grew within QUIET_S is still on its way; for so long at most."""
MEASURED_S: Final = 3.0
"""How long a new listener waits for its links to be measured: probes begin two seconds after it sees peers."""
MEASURED_PEERS: Final = 16
"""As many as are probed at once."""
POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Where:
    """Which swarm a command means, and how it should look.

    `join` and `peers` are as of `up`; a model's full `digest` lets the directory be asked for its holders alone.
    `is_directory_alone` leaves gossip aside; with `needs_links` a new listener first measures its way to the others.
    """

    paths: Paths
    join: str | None = None
    peers: tuple[str, ...] = ()
    is_directory_alone: bool = False
    digest: str | None = None
    needs_links: bool = False


def digest_in(asked: str) -> str | None:
    """`asked` if it is a whole digest."""
    return asked if DIGEST.fullmatch(asked) else None


@asynccontextmanager
async def open_sight(where: Where) -> AsyncIterator[Look]:
    """A way to look at the swarm as often as one likes.

    Raises: ConfigError when it is not clear which swarm; PeerUnavailableError when nobody answers, with each address.
    """
    import trio

    where = replace(where, join=_kept_text(where.join))
    with progress_bar() as report:
        report("asking the swarm", 0, 0)
        peer = await trio.to_thread.run_sync(_running_peer, where, abandon_on_cancel=True)
        if peer is None:
            with quick_imports():
                import shardp2p.member  # noqa: F401
    if peer is not None:
        yield partial(_ask_peer, where, peer)
        return
    async with _open_listener(where) as look:
        yield look


def _kept_text(given: str | None) -> str | None:
    """What `--join` gives, in a form that can be read more than once: a token may stand on stdin."""
    if given != "-":
        return given
    from shardp2p.identity.join import read_join, write_join

    return write_join(read_join(given))


def _named_swarm(where: Where) -> SwarmId | None:
    """The swarm that `--join` names; None without it."""
    if where.join is None:
        return None
    from shardp2p.identity.join import OpenSwarm
    from shardp2p.identity.keys import Identity
    from shardp2p.identity.owned import OwnedSwarms

    if (named := joined_before(where.join, where.paths)) is not None:
        return named
    hide_argument(where.join)
    join = OwnedSwarms(where.paths.swarms_dir).read_join(where.join, Identity.generate(), time.time())
    return join.swarm if isinstance(join, OpenSwarm) else join.grant.swarm


def _running_peer(where: Where) -> PeerId | None:
    """A peer of this data directory that runs in the swarm that is meant, or in the only one there is; None if none.

    Raises: ConfigError when peers run in several swarms and none was named.
    """
    from shardp2p.gateway.local import ask_running

    wanted, run_dir = _named_swarm(where), where.paths.run_dir
    found: dict[str, tuple[str, PeerId]] = {}
    told = ask_running(run_dir)
    for reason in told.silent.values():
        note(reason)
    for peer, status in told.answers.items():
        found.setdefault(status["swarm"], (status["swarm_name"], peer))
    if wanted is not None:
        return found[wanted][1] if wanted in found else None
    if len(found) > 1:
        names = ", ".join(sorted(name for name, _ in found.values()))
        raise ConfigError(f"peers run here in several swarms ({names}); say which with --join")
    return next((peer for _, peer in found.values()), None)


async def _ask_peer(where: Where, peer: PeerId) -> Sight:
    import trio

    from shardp2p.gateway.local import ask_local

    arguments: dict[str, Any] = {"digest": where.digest} if where.is_directory_alone else {}
    ask = "directory" if where.is_directory_alone else "records"
    question = partial(ask_local, where.paths.run_dir, peer, ask, **arguments)
    return sight_of(await trio.to_thread.run_sync(question, abandon_on_cancel=True))


@asynccontextmanager
async def _open_listener(where: Where) -> AsyncIterator[Look]:
    """A peer of our own that only listens, in a place that no other command has."""
    from shardp2p.member import open_member

    with _place(where) as place:
        joined = place.joined
        async with open_member(place.identity, joined, peers=where.peers, kept=place.kept, is_listener=True) as member:
            listener = _Listener(member, where)
            with progress_bar() as report:
                report(f"looking for the peers of {joined.name}", 0, 0)
                await listener.wait_sight()
            yield listener.look


@contextmanager
def _place(where: Where) -> Iterator[ClientPlace]:
    """A client's place; where only the peer of this data directory has joined, its own while it does not run."""
    from shardp2p.cli.up_swarm import find_swarm
    from shardp2p.identity.keys import hold, load_or_create

    with client_place(where.join, where.paths) as place:
        if place is not None:
            yield place
            return
    key_file = where.paths.identity_file
    with hold(key_file):
        identity = load_or_create(key_file)
        if (found := find_swarm(where.join, identity, where.paths, serves=False)) is None:
            raise ConfigError(
                "this machine is in no swarm: name one with --join TOKEN|FILE, or start a peer of it; "
                f"looked in {where.paths.swarms_dir}"
            )
        yield ClientPlace(identity, *found)


class _Listener:
    """Sees through a member of our own."""

    def __init__(self, member: Member, where: Where) -> None:
        self._member = member
        self._where = where
        self._first: Sight | None = None
        """What the directory said before gossip did."""

    async def wait_sight(self) -> None:
        """Wait until gossip or the directory shows somebody, and what follows at once."""
        import trio

        if not self._member.bootstrap:
            raise PeerUnavailableError(await self._member.explain_silence())
        with trio.move_on_after(SIGHT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_until_found, nursery.cancel_scope)
                nursery.start_soon(self._give_up, nursery.cancel_scope)
                if not self._where.is_directory_alone:
                    nursery.start_soon(self._wait_gossip, nursery.cancel_scope)
        if self._first is None and (self._where.is_directory_alone or not self._others()):
            raise PeerUnavailableError(await self._member.explain_silence())
        await self._settle()
        if self._where.needs_links and not self._where.is_directory_alone:
            with trio.move_on_after(MEASURED_S):
                while not self._is_measured():  # noqa: ASYNC110 - links are values and wake nobody
                    await trio.sleep(POLL_S)

    async def look(self) -> Sight:
        """What gossip shows; where it shows nobody, or is left aside, what the directory says."""
        first, self._first = self._first, None
        if self._where.is_directory_alone or not self._others():
            return first if first is not None else await self._ask()
        sight = sight_of(view_of(self._member))
        known = {one.record.peer_id for one in sight.seen}
        answered = () if first is None else (one for one in first.seen if one.is_live)
        return replace(sight, seen=(*sight.seen, *(one for one in answered if one.record.peer_id not in known)))

    async def _ask(self) -> Sight:
        return sight_of(await directory_view_of(self._member, self._where.digest))

    async def _ask_until_found(self, done: Any) -> None:
        import trio

        while True:
            sight = await self._ask()
            if sight.seen:
                self._first = sight
                done.cancel()
                return
            await trio.sleep(AGAIN_S)

    async def _give_up(self, done: Any) -> None:
        """End the search when nobody of the peer list can be reached."""
        import trio

        await trio.sleep(DOUBT_S)
        for peer in self._member.bootstrap:
            try:
                await self._member.ask(peer.peer_id, peer.addresses)
            except PeerUnavailableError:
                continue
            except ShardError:
                return
            return
        done.cancel()

    async def _wait_gossip(self, done: Any) -> None:
        gossip = self._member.gossip
        seen = gossip.changes
        while not self._others():
            seen = await gossip.wait_change(seen)
        done.cancel()

    async def _settle(self) -> None:
        import trio

        if self._where.is_directory_alone:
            return
        gossip = self._member.gossip
        with trio.move_on_after(SETTLED_S):
            while True:
                with trio.move_on_after(QUIET_S) as quiet:
                    await gossip.wait_change(gossip.changes)
                if quiet.cancelled_caught:
                    return

    def _others(self) -> list[PeerId]:
        member = self._member
        return [record.peer_id for record in member.live() if record.peer_id != member.peer_id]

    def _is_measured(self) -> bool:
        import trio

        measured = {link.peer for link in self._member.links.snapshot(trio.current_time())}
        others = self._others()
        return bool(others) and len(measured.intersection(others)) >= min(len(others), MEASURED_PEERS)
