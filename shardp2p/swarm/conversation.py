"""One gossip stream that stands, as gossip_service.py keeps it."""

from __future__ import annotations

from typing import Final

import trio

from shardp2p.errors import ConfigError, PeerUnavailableError, RemoteProtocolError
from shardp2p.swarm.neighbours import Connected
from shardp2p.vocabulary import PeerId, SwarmId
from shardp2p.wire.channel import MessageChannel
from shardp2p.wire.news import Greeting

GREETING_S: Final = 10.0


class Conversation:
    """With `peer`, since `since`; `farewell` is set once we are to say goodbye, with the reason.

    `is_ticked` is set at a tick, so that what is due before the next one is sent now.
    """

    def __init__(self, peer: PeerId, is_chosen: bool, since: float) -> None:
        self.peer = peer
        self.state = Connected(is_chosen, since)
        self.scope = trio.CancelScope()
        self.wake = trio.Event()
        self.is_ticked = False
        self.farewell: str | None = None

    def tick(self) -> None:
        """Send at once what is due before the next tick."""
        self.is_ticked = True
        self.wake.set()

    def part(self, reason: str) -> None:
        """Say goodbye after what is due."""
        self.farewell = reason
        self.wake.set()


async def receive_within(channel: MessageChannel, silence_s: float) -> object:
    """The next message. Raises: PeerUnavailableError after so long without one, and what `receive` raises."""
    with trio.move_on_after(silence_s):
        return await channel.receive()
    raise PeerUnavailableError(f"{channel.peer} was silent for {silence_s:.0f} s", channel.peer)


async def greet(channel: MessageChannel, swarm: SwarmId) -> None:
    """Exchange greetings on a new stream.

    Raises: RemoteProtocolError without one in time; ConfigError when the other is in another swarm.
    """
    with trio.move_on_after(GREETING_S) as scope:
        await channel.send(Greeting(swarm))
        greeting = await channel.receive()
    if scope.cancelled_caught:
        raise RemoteProtocolError(f"no greeting within {GREETING_S:.0f} s")
    if not isinstance(greeting, Greeting):
        raise RemoteProtocolError(f"{type(greeting).__name__} came before the greeting")
    if greeting.swarm != swarm:
        raise ConfigError(f"{channel.peer} is in the swarm {greeting.swarm}, not in {swarm}")
