"""A node serves the streams that peers open to it, and none on which nothing comes."""

from __future__ import annotations

from typing import cast

import pytest
import trio
from trio.testing import MockClock

from shardp2p.errors import PeerUnavailableError, RemoteProtocolError
from shardp2p.host.host import Host
from shardp2p.node import FIRST_MESSAGE_S, Node
from shardp2p.swarm.allowance import PROBE_BYTES
from shardp2p.wire.channel import open_channel
from shardp2p.wire.messages import Describe, MemberInfo, Ping, Pong
from shardp2p.wire.protocols import RING, SWARM
from tests.support.memory_network import MemorySwarm


@pytest.mark.parametrize("protocol", [RING, SWARM])
async def test_a_stream_on_which_nothing_comes_is_let_go(protocol: str, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery)
        Node(cast(Host, swarm.network("node")))
        stream = await swarm.network("stranger").open_stream(swarm.network("node").peer_id, protocol)
        with pytest.raises(PeerUnavailableError, match="reset"):
            await stream.receive_some(1)
        assert trio.current_time() == pytest.approx(FIRST_MESSAGE_S)
        await trio.sleep(1.0)
        assert [type(failure) for failure in swarm.network("node").failures] == [RemoteProtocolError]
        await stream.reset()
        assert swarm.open_streams == 0


async def test_a_slow_asker_is_answered(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery)
        Node(cast(Host, swarm.network("node")))
        stream = await swarm.network("stranger").open_stream(swarm.network("node").peer_id, SWARM)
        async with open_channel(stream, SWARM) as channel:
            await trio.sleep(FIRST_MESSAGE_S - 1)
            await channel.send(Describe())
            answer = await channel.receive()
        assert isinstance(answer, MemberInfo)
        assert answer.peer_id == "node"


async def test_a_prober_is_answered_as_often_as_it_asks(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery)
        Node(cast(Host, swarm.network("node")))
        stream = await swarm.network("stranger").open_stream(swarm.network("node").peer_id, SWARM)
        async with open_channel(stream, SWARM) as channel:
            for number in range(5):
                await channel.send(Ping(bytes([number]) * 16))
                assert await channel.receive() == Pong(bytes([number]) * 16, PROBE_BYTES)
        await trio.sleep(1.0)
        assert swarm.open_streams == 0
        assert swarm.network("node").failures == []
