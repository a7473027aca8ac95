"""Who a client command is in a swarm: one of a few peers that this data directory has for clients.

Commands that run at the same time need different peer ids: whatever dials a client finds it by its id. All of the few
join whenever a token is used that lets them, so that nobody has to keep it, and each command takes the first that is
free. A token for one peer, or for a number of them, makes one of them a member.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from shardp2p.cli.process_title import hide_argument
from shardp2p.config import Paths
from shardp2p.errors import ConfigError
from shardp2p.identity.join import Join, OpenSwarm
from shardp2p.identity.joined import JoinedSwarm, JoinedSwarms
from shardp2p.identity.keys import Identity, IdentityHeldError, hold, load_or_create
from shardp2p.identity.owned import OwnedSwarms
from shardp2p.vocabulary import SwarmId

CLIENTS: Final = 4
"""Commands of one user that ask one swarm at the same time; every member remembers each of their places."""


@dataclass(frozen=True, slots=True)
class ClientPlace:
    """A client's identity, held by this process, and the swarm that it is in."""

    identity: Identity
    joined: JoinedSwarm
    kept: JoinedSwarms


@contextmanager
def client_place(join: str | None, paths: Paths) -> Iterator[ClientPlace | None]:
    """A place in the swarm of `join`, else in the one that clients here joined before; None without any.

    `join` may be the name of a swarm that was joined before.

    Nobody else has the place as long as the context.
    Raises: ConfigError for a token that is no good, where several swarms were joined, and where all places are taken.
    """
    keys = [_Key(path) for path in key_files(paths)]
    kept, now_s = JoinedSwarms(paths.swarms_dir), time.time()
    with ExitStack() as stack:
        named = None if join is None else joined_before(join, paths)
        if join is not None and named is None:
            hide_argument(join)
            yield _newly_joined(join, keys, paths, now_s, stack)
            return
        places = {key: _members_of(named, kept, key, now_s) for key in keys if key.path.exists()}
        swarms = {joined.swarm: joined.name for found in places.values() for joined in found}
        if not swarms:
            yield None
            return
        if len(swarms) > 1:
            names = ", ".join(sorted(swarms.values()))
            raise ConfigError(f"clients here have joined several swarms ({names}); say which with --join NAME")
        members = {key: found[0] for key, found in places.items() if found}
        key = _take(list(members), stack)
        yield _place(key, members[key], kept)


def joined_before(given: str, paths: Paths) -> SwarmId | None:
    """The swarm that was joined here before, where `--join` names it so; None where it stands for something else.

    Raises: ConfigError when several were joined under that name.
    """
    if any(owned.name == given for owned in OwnedSwarms(paths.swarms_dir).list()):
        return None
    return JoinedSwarms(paths.swarms_dir).named(given)


def join_clients(join: Join, given: str, paths: Paths, now_s: float) -> None:
    """Let the clients of this data directory into a swarm too, where its token is not for one peer or a number.

    `given` is what stood for the token: the name of a swarm of the user's own gives each of them a place.
    """
    kept = JoinedSwarms(paths.swarms_dir)
    for path in key_files(paths):
        if (asked := _for_client(join, given, _Key(path), paths, now_s)) is not None:
            kept.join(asked, load_or_create(path), now_s)


def key_files(paths: Paths) -> tuple[Path, ...]:
    """Where the clients' keys lie."""
    return tuple(paths.data_dir / f"client-{number}.key" for number in range(CLIENTS))


class _Key:
    """A client's key file; the key is made when it is first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def identity(self) -> Identity:
        return load_or_create(self.path)


def _newly_joined(given: str, keys: Sequence[_Key], paths: Paths, now_s: float, stack: ExitStack) -> ClientPlace:
    """Join by what was given: all clients where that is allowed, else one."""
    kept = JoinedSwarms(paths.swarms_dir)
    asked = OwnedSwarms(paths.swarms_dir).read_join(given, keys[0].identity, now_s)
    asked_by_key = {key: one for key in keys if (one := _for_client(asked, given, key, paths, now_s)) is not None}
    key = _take(list(asked_by_key) or [_only(asked, keys)], stack)
    join_clients(asked, given, paths, now_s)
    return _place(key, kept.join(asked_by_key.get(key, asked), key.identity, now_s), kept)


def _members_of(named: SwarmId | None, kept: JoinedSwarms, key: _Key, now_s: float) -> tuple[JoinedSwarm, ...]:
    """The swarms that a client is in; where one is `named`, that one alone."""
    remembered = kept.remembered(key.identity.peer_id, now_s)
    return tuple(joined for joined in remembered if named in (None, joined.swarm))


def _place(key: _Key, joined: JoinedSwarm, kept: JoinedSwarms) -> ClientPlace:
    """The place, with the addresses at which clients met peers last beside those of the token."""
    peers = tuple(dict.fromkeys((*joined.peers, *kept.met(joined.swarm))))
    return ClientPlace(key.identity, replace(joined, peers=peers), kept)


def _only(asked: Join, keys: Sequence[_Key]) -> _Key:
    """The client for which the invite is; the first one where it is for none of them, and told so then."""
    bound_to = None if isinstance(asked, OpenSwarm) else asked.grant.bound_to
    return next((key for key in keys if key.identity.peer_id == bound_to), keys[0])


def _for_client(asked: Join, given: str, key: _Key, paths: Paths, now_s: float) -> Join | None:
    """What lets this client in beside others, if anything does."""
    if isinstance(asked, OpenSwarm) or (asked.grant.bound_to is None and not asked.grant.uses):
        return asked
    owned = OwnedSwarms(paths.swarms_dir)
    if any(swarm.name == given and swarm.swarm == asked.grant.swarm for swarm in owned.list()):
        return owned.read_join(given, key.identity, now_s)
    return None


def _take(keys: Sequence[_Key], stack: ExitStack) -> _Key:
    """The first key that no other process has, held until `stack` ends. Raises: ConfigError when all are taken."""
    busy: IdentityHeldError | None = None
    for key in keys:
        try:
            stack.enter_context(hold(key.path))
        except IdentityHeldError as error:
            busy = error
        else:
            return key
    if len(keys) > 1:
        raise ConfigError(
            f"{len(keys)} other commands on this machine ask the swarm now, which is as many as may; wait for one to "
            "end, or use another --data-dir with a token of its own"
        ) from busy
    raise ConfigError(
        "another command on this machine has the only place that the token gives to clients here; wait for it to end, "
        "or join by a token without a use count, which lets several ask at once"
    ) from busy
