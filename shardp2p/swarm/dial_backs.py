"""Dial-backs over /shardp2p/swarm/1: asking a peer whether it reaches us, and trying to reach those that ask.

Who is asked connects to the address from which the asking connection came, and to nobody else. What the answers mean:
reachability.py. Rules: docs/protocols/swarm.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from shardp2p.errors import OverloadedError, PeerUnavailableError, RemoteProtocolError
from shardp2p.host.host import Host
from shardp2p.host.stream import HostStream
from shardp2p.swarm.strikes import TokenBucket
from shardp2p.vocabulary import PeerId
from shardp2p.wire.channel import MessageChannel, open_channel
from shardp2p.wire.codec_swarm import NONCE_BYTES
from shardp2p.wire.dialling_back import AskDialBack, DialBackResult, DialOutcome
from shardp2p.wire.protocols import SWARM

ASK_S: Final = 20.0
"""Dialling the peer that is asked, and its own tries, which take 8 s at most."""
ASKS_AT_ONCE: Final = 3
ASKS_S: Final = 1 / 20
"""Of one peer: more than who asks at its start, on a change of address and every few minutes needs."""
ALL_ASKS_AT_ONCE: Final = 16
ALL_ASKS_S: Final = 1.0
"""Of all peers: at most 64 sockets that wait for an answer, and a few handshakes a second."""
MAX_ASKERS: Final = 1024
"""Accounts that are kept; the one that was idle longest goes first."""


@dataclass(frozen=True, slots=True)
class DialBack:
    """What a peer reports. It sees us as `host` and `port`, over a connection that left our `local_port` if we dialled
    it; `outcomes` are of the ports of that host that it tried.
    """

    observer: PeerId
    observer_host: str
    host: str
    port: int
    local_port: int | None
    outcomes: tuple[tuple[int, DialOutcome], ...]


async def ask_dial_back(host: Host, peer: PeerId, addresses: Sequence[str], ports: Sequence[int]) -> DialBack:
    """Ask `peer` to dial us back at `ports`.

    Raises: PeerUnavailableError when it cannot be asked, declines, or is connected over a relay only;
    RemoteProtocolError for an answer that breaks the rules.
    """
    ask = AskDialBack(secrets.token_bytes(NONCE_BYTES), tuple(ports))
    try:
        with trio.fail_after(ASK_S):
            stream = await host.open_stream(peer, SWARM, addresses)
            async with open_channel(stream, SWARM) as channel:
                remote = stream.remote_address if isinstance(stream, HostStream) else None
                if remote is None or not isinstance(stream, HostStream):
                    raise PeerUnavailableError(f"peer {peer} is connected over a relay, and sees us nowhere", peer)
                await channel.send(ask)
                answer = await channel.receive()
    except trio.TooSlowError:
        raise PeerUnavailableError(f"peer {peer} did not dial back within {ASK_S:.0f} s", peer) from None
    if not isinstance(answer, DialBackResult) or answer.nonce != ask.nonce or len(answer.outcomes) != len(ports):
        raise RemoteProtocolError(f"peer {peer} answered a dial-back with something else", peer)
    outcomes = tuple(zip(ports, answer.outcomes, strict=True))
    return DialBack(peer, remote[0], answer.host, answer.port, stream.connection.local_port, outcomes)


class DialBackAnswers:
    """Tries to reach those that ask."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._all = TokenBucket(ALL_ASKS_S, ALL_ASKS_AT_ONCE, 0.0)
        self._accounts: dict[PeerId, TokenBucket] = {}  # the longest idle first

    async def serve(self, channel: MessageChannel, remote: tuple[str, int] | None, ask: AskDialBack) -> None:
        """Dial back and say how it went.

        Raises: PeerUnavailableError for who asks over a relay; OverloadedError for who asks too often.
        """
        if remote is None:
            raise PeerUnavailableError(f"{channel.peer} asks for a dial-back over a relay: its address is unknown")
        if not self._may_ask(channel.peer, trio.current_time()):
            raise OverloadedError(f"{channel.peer} asks for more dial-backs than we make", channel.peer)
        outcomes: dict[int, DialOutcome] = {}

        async def try_port(port: int) -> None:
            outcomes[port] = await self._host.dial_back(channel.peer, remote[0], port)

        async with trio.open_nursery() as nursery:
            for port in ask.ports:
                nursery.start_soon(try_port, port)
        await channel.send(DialBackResult(ask.nonce, *remote, tuple(outcomes[port] for port in ask.ports)))

    def _may_ask(self, peer: PeerId, now: float) -> bool:
        account = self._accounts.pop(peer, None)
        if account is None:
            if len(self._accounts) >= MAX_ASKERS:
                del self._accounts[next(iter(self._accounts))]
            account = TokenBucket(ASKS_S, ASKS_AT_ONCE, now)
        self._accounts[peer] = account
        return account.spend(1.0, now) and self._all.spend(1.0, now)
