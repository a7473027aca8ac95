"""A peer that says from where it sees others, without the rest of a node."""

from __future__ import annotations

from shardp2p.host.stream import HostStream
from shardp2p.wire.channel import open_channel
from shardp2p.wire.protocols import SWARM
from shardp2p.wire.seen import AskSeen, Seen
from shardp2p.wire.stream import Stream


async def say_seen(stream: Stream) -> None:
    """Serves AskSeen of /shardp2p/swarm/1."""
    assert isinstance(stream, HostStream)
    async with open_channel(stream, SWARM) as channel:
        assert await channel.receive() == AskSeen()
        await channel.send(Seen(*(stream.remote_address or ("", 0))))
