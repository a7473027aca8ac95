"""News over one stream: sent when they are due, taken in when they come, until one side has enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import trio

from shardp2p.errors import RemoteProtocolError
from shardp2p.swarm.conversation import Conversation, receive_within
from shardp2p.swarm.gossip import Gossip
from shardp2p.swarm.view_events import GossipEvent
from shardp2p.wire.channel import MessageChannel
from shardp2p.wire.news import Farewell, News

TICK_S: Final = 0.5
"""How exactly the silent are missed. What is due before the next tick is sent at this one, to all at once."""
SILENCE_S: Final = 30.0
"""A neighbour says at least that it lives, once in its period; one that does not for so long, or for three lifetimes,
is behind a connection that is dead."""


class Pump:
    """Between the pure `gossip` and the streams of one peer; `apply` hears what comes of what was received."""

    def __init__(self, gossip: Gossip, apply: Callable[[Iterable[GossipEvent]], None]) -> None:
        self._gossip = gossip
        self._apply = apply

    async def run(self, channel: MessageChannel, conversation: Conversation) -> None:
        """Until the other side says farewell, or `conversation.scope` is cancelled, as a farewell of ours does.

        Raises: what the stream fails with, in a group.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, channel, conversation)
            await self._receive(channel, conversation)
            conversation.scope.cancel()

    async def _send(self, channel: MessageChannel, conversation: Conversation) -> None:
        peer = conversation.peer
        while True:
            conversation.wake = trio.Event()
            due_at = self._gossip.due_at(peer)
            now = trio.current_time()
            is_tick, conversation.is_ticked = conversation.is_ticked, False
            if due_at <= now or (due_at < now + TICK_S and (is_tick or conversation.farewell is not None)):
                news = self._gossip.take(peer, now, now + TICK_S)
                if not news.is_empty:
                    await channel.send(news)
            elif conversation.farewell is not None:
                await channel.send(Farewell(conversation.farewell))
                conversation.scope.cancel()
                return
            else:
                with trio.move_on_at(due_at if due_at < now + TICK_S else math.inf):
                    await conversation.wake.wait()

    async def _receive(self, channel: MessageChannel, conversation: Conversation) -> None:
        own = self._gossip.own.record
        while True:
            silence_s = max(SILENCE_S, 3 * (own.lifetime_s if own is not None else 0.0))
            match message := await receive_within(channel, silence_s):
                case Farewell():
                    return
                case News():
                    self._apply(self._gossip.receive(conversation.peer, message, trio.current_time()))
                case _:
                    raise RemoteProtocolError(f"{type(message).__name__} came after the greeting")
