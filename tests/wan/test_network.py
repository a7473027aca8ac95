from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest
import trio

from shardp2p.errors import ConfigError
from shardp2p.lab.network.catalog import read_network
from shardp2p.lab.network.lab import open_network
from shardp2p.lab.network.leftovers import end_orphans
from tests.support.lab_traffic import PORT, described, dial, punch, seen_by, tcp_socket, tell_senders, udp_socket

PATIENCE_S = 60.0


async def test_nat_kinds_map_as_their_names_say() -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("nat-kinds")) as network, trio.open_nursery() as nursery:
            servers = [network.hosts[name] for name in ("relay", "relay2")]
            for server in servers:
                await nursery.start(tell_senders, server, PORT)
            ports: dict[str, list[int]] = {}
            for name, host in network.hosts.items():
                if host in servers:
                    continue
                with await udp_socket(host, PORT) as client:
                    seen = [await seen_by((server.address, PORT), client) for server in servers]
                assert {address for address, _ in seen} == {network.public_address(name)}
                ports[name] = [port for _, port in seen]
            nursery.cancel_scope.cancel()
    for kind in ("open", "cone", "reset", "full", "firewall", "double"):
        assert ports[kind] == [PORT, PORT]
    assert ports["remapping"][0] == ports["remapping"][1] != PORT
    assert len({*ports["symmetric"], PORT}) == 3


async def test_who_is_not_expected_is_refused_or_hears_nothing() -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("nat-kinds")) as network:
            relay = network.hosts["relay"]
            heard = {
                kind: await dial(relay, (network.public_address(kind), PORT), within_s=0.5)
                for kind in ("open", "cone", "firewall", "reset")
            }
    assert heard == {"open": "refused", "cone": "silent", "firewall": "silent", "reset": "refused"}


@pytest.mark.parametrize(
    ("a", "b", "is_punched"),
    [
        ("cone", "remapping", True),
        ("remapping", "reset", True),
        ("double", "cone2", True),
        ("symmetric", "cone", False),
    ],
)
async def test_tcp_is_punched_where_no_mapping_depends_on_the_remote(a: str, b: str, is_punched: bool) -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("nat-kinds")) as network:
            assert await punch(network, a, b, "relay") is is_punched


async def test_a_home_lets_neighbours_talk_and_has_a_docker_bridge() -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("one-home")) as network:
            desk, shelf = network.hosts["desk"], network.hosts["shelf"]
            with await tcp_socket(shelf, PORT) as listener:
                listener.listen(1)
                assert await dial(desk, (shelf.address, PORT)) == "connected"
                assert await dial(desk, (network.public_address("shelf"), PORT), within_s=0.5) == "silent"
            assert "172.17.0.1/16" in await shelf.run(["ip", "-brief", "address"])
            assert "172.17" not in await desk.run(["ip", "-brief", "address"])


async def test_a_program_on_a_host_sees_that_host_alone() -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("one-home")) as network:
            child = await network.hosts["desk"].start(["ip", "-brief", "address"])
            lines = [await child.read_line() for _ in range(2)]
            assert await child.wait() == 0
            assert b"192.168.1.2/24" in lines[1]
            with pytest.raises(ConfigError, match="on desk of the lab failed"):
                await network.hosts["desk"].run(["ip", "no-such-thing"])


async def test_a_cut_is_felt_by_connections_and_mended() -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_network(described(hosts={"a": {}, "b": {}})) as network, trio.open_nursery() as nursery:
            a, b = network.hosts["a"], network.hosts["b"]
            await nursery.start(tell_senders, b, PORT)
            with await udp_socket(a) as client:
                await network.cut("a", "b")
                with trio.move_on_after(0.3) as waiting:
                    await seen_by((b.address, PORT), client)
                assert waiting.cancelled_caught
                await network.restore("a", "b")
                assert (await seen_by((b.address, PORT), client))[0] == a.address
            with pytest.raises(ConfigError, match="nobody is no host or router"):
                await network.cut("nobody")
            nursery.cancel_scope.cancel()


async def test_a_router_that_reboots_or_moves_and_a_host_that_moves() -> None:
    homes = described(hosts={"relay": {}, "alice": {"behind": "home"}}, routers={"home": {"nat": "remapping-cone"}})
    with trio.fail_after(PATIENCE_S):
        async with open_network(homes) as network, trio.open_nursery() as nursery:
            relay, alice, home = network.hosts["relay"], network.hosts["alice"], network.routers["home"]
            await nursery.start(tell_senders, relay, PORT)
            with await udp_socket(alice) as client:
                first = await seen_by((relay.address, PORT), client)
                await home.forget_mappings()
                second = await seen_by((relay.address, PORT), client)
                assert first[0] == second[0]
                assert first[1] != second[1]
                old = home.address
                assert await network.readdress("home") == home.address != old
                assert (await seen_by((relay.address, PORT), client))[0] == home.address
            old = alice.address
            assert await network.readdress("alice") == alice.address != old
            assert alice.address in await alice.run(["ip", "-brief", "address"])
            with await udp_socket(alice) as client:
                assert (await seen_by((relay.address, PORT), client))[0] == home.address
            await home.open_port(PORT, alice)
            with await tcp_socket(alice, PORT) as listener:
                listener.listen(1)
                assert await dial(relay, (home.address, PORT)) == "connected"
            nursery.cancel_scope.cancel()


async def test_tcp_finds_the_size_of_a_narrow_path() -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("narrow")) as network, trio.open_nursery() as nursery:
            relay, alice = network.hosts["relay"], network.hosts["alice"]
            with await tcp_socket(relay, PORT) as listener, await tcp_socket(alice) as client:
                listener.listen(1)
                await client.connect((relay.address, PORT))
                connection, _ = await listener.accept()
                upward, downward = trio.SocketStream(client), trio.SocketStream(connection)
                nursery.start_soon(upward.send_all, bytes(100_000))
                nursery.start_soon(downward.send_all, bytes(100_000))
                for stream in (upward, downward):
                    got = 0
                    while got < 100_000:
                        got += len(await stream.receive_some(65536))
                await upward.aclose()
                await downward.aclose()


@pytest.mark.usefixtures("miniupnpd")
async def test_a_port_is_opened_by_upnp_until_the_router_reboots() -> None:
    ask = """
        import miniupnpc
        router = miniupnpc.UPnP()
        router.discoverdelay = 2000
        assert router.discover() == 1
        router.selectigd()
        assert router.addportmapping(4001, "TCP", router.lanaddr, 4001, "test", "")
        print(router.externalipaddress())
    """
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("upnp-home")) as network:
            relay, alice, home = network.hosts["relay"], network.hosts["alice"], network.routers["home-a"]
            with await tcp_socket(alice, PORT) as listener:
                listener.listen(4)
                assert await dial(relay, (home.address, PORT), within_s=0.5) == "silent"
                said = await alice.run([sys.executable, "-c", textwrap.dedent(ask)])
                assert said.strip() == home.address
                assert await dial(relay, (home.address, PORT)) == "connected"
                await home.forget_mappings()
                assert await dial(relay, (home.address, PORT), within_s=0.5) == "silent"


async def test_nothing_is_left_of_a_network() -> None:
    command = [sys.executable, "-c", "import signal, time; signal.pause()"]
    with trio.fail_after(PATIENCE_S):
        async with open_network(described(hosts={"a": {}})) as network:
            a = network.hosts["a"]
            child = await a.start(command)
            stray = await trio.lowlevel.open_process(a.command(command))
            assert await trio.Path(a.namespaces[-1]).exists()
        assert not child.is_running
        assert await stray.wait() == -signal.SIGKILL
        assert not await trio.Path(a.namespaces[-1]).exists()


async def test_what_a_crashed_owner_left_is_removed() -> None:
    """An owner and its Internet are killed at once, and a program of its host stays; the next network ends that."""
    owner = """
        import json, os, signal, subprocess, sys, trio
        from shardp2p.lab.network.lab import open_network
        from shardp2p.lab.network.reading import parse_description
        async def main():
            async with open_network(parse_description('{"hosts": {"a": {}}}')) as network:
                a = network.hosts["a"]
                held = int(a.namespaces[-1].split("/")[2])
                command = a.command([sys.executable, "-c", "import signal; print(1, flush=True); signal.pause()"])
                stray = subprocess.Popen(command, stdout=subprocess.PIPE)
                stray.stdout.readline()
                print(stray.pid, flush=True)
                os.kill(held, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        trio.run(main)
    """
    with trio.fail_after(PATIENCE_S):
        done = await trio.run_process([sys.executable, "-c", textwrap.dedent(owner)], capture_stdout=True, check=False)
        assert done.returncode == -signal.SIGKILL
        stray = os.pidfd_open(int(done.stdout))
        try:
            await trio.to_thread.run_sync(end_orphans)
            await trio.lowlevel.wait_readable(stray)
        finally:
            os.close(stray)


async def test_a_killed_owner_takes_its_network_along() -> None:
    owner = """
        import os, signal, sys, trio
        from shardp2p.lab.network.lab import open_network
        from shardp2p.lab.network.reading import parse_description
        async def main():
            async with open_network(parse_description('{"hosts": {"a": {}}}')) as network:
                a = network.hosts["a"]
                child = await a.start([sys.executable, "-c", "import signal; print(1, flush=True); signal.pause()"])
                await child.read_line()
                print(child.pid, a.namespaces[-1].split("/")[2], flush=True)
                sys.stdin.readline()
                os.kill(os.getpid(), signal.SIGKILL)
        trio.run(main)
    """
    with trio.fail_after(PATIENCE_S):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", textwrap.dedent(owner)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdin is not None
        left = [os.pidfd_open(int(pid)) for pid in (await process.stdout.receive_some()).split()]
        await process.stdin.send_all(b"\n")
        try:
            assert await process.wait() == -signal.SIGKILL
            for descriptor in left:
                await trio.lowlevel.wait_readable(descriptor)
        finally:
            for descriptor in left:
                os.close(descriptor)
        await process.stdin.aclose()
        await process.stdout.aclose()


def test_sockets_are_made_inside_and_used_here() -> None:
    async def main() -> None:
        async with open_network(described(hosts={"a": {}, "b": {}})) as network:
            with await network.hosts["a"].open_socket(socket.SOCK_DGRAM) as made:
                await made.bind((network.hosts["a"].address, 0))
                with pytest.raises(OSError, match="assign"):
                    await made.bind((network.hosts["b"].address, 0))

    trio.run(main)
