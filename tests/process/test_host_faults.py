"""Peers that stop, die or hang up, seen from a host that was talking to them: real processes, real TCP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from shardp2p.errors import PeerUnavailableError
from shardp2p.host.host import Host, open_host
from shardp2p.identity.keys import Identity
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Stream
from tests.process.host_peer import ECHO


@dataclass(frozen=True)
class Child:
    """A peer in a process of its own."""

    process: subprocess.Popen[str]
    peer: PeerId
    addresses: tuple[str, ...]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@contextmanager
def running_child() -> Iterator[Child]:
    command = [sys.executable, "-W", "error", "-m", "tests.process.host_peer"]
    root = Path(__file__).parents[2]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            peer, *addresses = process.stdout.readline().split()
            yield Child(process, PeerId(peer), tuple(addresses))
        finally:
            process.kill()


async def echo_once(stream: Stream) -> None:
    await stream.send_all(b"hello")
    assert await stream.receive_some(100) == b"hello"


async def wait_forgotten(host: Host, peer: PeerId) -> None:
    while peer in host.connected_peers():
        await trio.sleep(0.01)


async def test_stopped_peer_is_noticed_within_six_seconds() -> None:
    with running_child() as child:
        async with open_host(Identity.generate()) as host:
            stream = await host.open_stream(child.peer, ECHO, child.addresses)
            await echo_once(stream)
            child.signal(signal.SIGSTOP)
            try:
                with trio.fail_after(6), pytest.raises(PeerUnavailableError, match=f"{child.peer}.*has been silent"):
                    await stream.receive_some(100)
                with trio.fail_after(1):
                    await wait_forgotten(host, child.peer)
            finally:
                child.signal(signal.SIGCONT)
            again = await host.open_stream(child.peer, ECHO, child.addresses)
            await echo_once(again)


async def test_stopped_peer_ends_a_send_that_filled_every_buffer() -> None:
    with running_child() as child:
        async with open_host(Identity.generate()) as host:
            stream = await host.open_stream(child.peer, ECHO, child.addresses)
            await echo_once(stream)
            child.signal(signal.SIGSTOP)
            with trio.fail_after(6), pytest.raises(PeerUnavailableError, match="has been silent"):
                await stream.send_all(bytes(64 * 1024 * 1024))


async def test_leaving_is_quick_although_a_peer_is_stopped() -> None:
    with running_child() as child:
        with trio.fail_after(3):
            async with open_host(Identity.generate()) as host:
                stream = await host.open_stream(child.peer, ECHO, child.addresses)
                await echo_once(stream)
                child.signal(signal.SIGSTOP)
                with trio.move_on_after(0.5):
                    await stream.send_all(bytes(64 * 1024 * 1024))


async def test_killed_peer_fails_its_streams_at_once_and_is_forgotten() -> None:
    with running_child() as child:
        async with open_host(Identity.generate()) as host:
            stream = await host.open_stream(child.peer, ECHO, child.addresses)
            await echo_once(stream)
            child.signal(signal.SIGKILL)
            with trio.fail_after(2):
                with pytest.raises(PeerUnavailableError, match=str(child.peer)):
                    await stream.receive_some(100)
                await wait_forgotten(host, child.peer)
            await trio.to_thread.run_sync(child.process.wait, abandon_on_cancel=True)
            with pytest.raises(PeerUnavailableError, match=f"{child.addresses[0]}: refused, nothing listens there"):
                await host.open_stream(child.peer, ECHO, child.addresses)


async def test_finished_stream_reads_as_an_end_and_not_as_a_failure() -> None:
    with running_child() as child:
        async with open_host(Identity.generate()) as host:
            stream = await host.open_stream(child.peer, ECHO, child.addresses)
            await echo_once(stream)
            finished = await host.open_stream(child.peer, ECHO, child.addresses)
            await finished.send_all(b"")
            await finished.close()
            await echo_once(stream)


async def test_peer_that_leaves_in_order_ends_by_itself_without_noise() -> None:
    with running_child() as child:
        async with open_host(Identity.generate()) as host:
            stream = await host.open_stream(child.peer, ECHO, child.addresses)
            await echo_once(stream)
            assert child.process.stdin is not None
            child.process.stdin.close()
            with trio.fail_after(3):
                with pytest.raises(PeerUnavailableError, match=r"the peer (closed|reset)"):
                    await stream.receive_some(100)
                assert await trio.to_thread.run_sync(child.process.wait, abandon_on_cancel=True) == 0
            assert child.process.stderr is not None
            assert child.process.stderr.read() == ""


async def test_interrupted_peer_ends_within_two_seconds() -> None:
    with running_child() as child:
        async with open_host(Identity.generate()) as host:
            stream = await host.open_stream(child.peer, ECHO, child.addresses)
            await echo_once(stream)
            child.signal(signal.SIGINT)
            with trio.fail_after(3):
                await trio.to_thread.run_sync(child.process.wait, abandon_on_cancel=True)
