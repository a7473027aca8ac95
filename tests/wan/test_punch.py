"""Punching through routers: real peers in namespaces, over a real relay."""

from __future__ import annotations

import trio

from shardp2p.lab.network.catalog import read_network
from shardp2p.lab.network.lab import open_network
from tests.wan.punch_lab import PORT, PunchPeer, meet_over, start_all

PATIENCE_S = 300.0
"""For a machine that is busy with other things: each peer is a process that imports a good deal."""
MOST_ROUNDS = 8
"""A peer that asks for more at once is refused."""
BEHIND_S = 5.0


async def test_a_hole_is_punched_where_no_mapping_depends_on_the_remote_and_only_there() -> None:
    wanted = {
        ("cone", "remapping"): "punched",
        ("remapping", "reset"): "punched",
        ("reset", "double"): "punched",
        ("open", "symmetric"): "direct",  # the public side need not know that it is
        ("symmetric", "cone"): "relayed",
    }
    names = {name for pair in wanted for name in pair}
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("nat-kinds")) as network:
            peers = await start_all(network, {"relay": ("relay",), **dict.fromkeys(names, ())})
            found = {}
            for a, b in wanted:
                await meet_over(peers["relay"], peers[a], peers[b])
                result = await peers[b].ask("punch", peer=peers[a].peer)
                assert (result["path"] is None) == (result["reason"] != "")
                found[a, b] = (await peers[b].ask("echo", peer=peers[a].peer))["path"]
    assert found == wanted


async def test_two_observers_tell_on_what_a_mapping_depends() -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("nat-kinds")) as network:
            kinds = ("open", "cone", "remapping", "symmetric")
            relays = {"relay": ("relay",), "relay2": ("relay",)}
            peers = await start_all(network, {**relays, **dict.fromkeys(kinds, ())})
            said = {}
            for kind in kinds:
                for relay in relays:
                    said[kind] = await peers[kind].ask("observe", address=peers[relay].address)
            addresses = {kind: network.public_address(kind) for kind in kinds}
    assert {kind: answer["kind"] for kind, answer in said.items()} == {
        "open": "independent",
        "cone": "independent",
        "remapping": "independent",
        "symmetric": "dependent",
    }
    assert said["cone"]["seen"] == [[addresses["cone"], PORT]]
    assert said["remapping"]["seen"][0][0] == addresses["remapping"]
    assert said["remapping"]["seen"][0][1] != PORT


async def wait_path(peer: PunchPeer, other: PunchPeer, path: str) -> None:
    while path not in await peer.ask("paths", peer=other.peer):
        await trio.sleep(0.05)


async def test_delay_jitter_and_loss_do_not_keep_a_hole_from_coming_about() -> None:
    """Nor from being used: but a packet that is lost twice makes the connection move to the relay, and nobody here
    punches again by himself."""
    used = 0
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("rough-homes"), seed=1) as network:
            peers = await start_all(network, {"relay": ("relay",), "alice": (), "bob": ()})
            alice, bob = peers["alice"], peers["bob"]
            address = await meet_over(peers["relay"], alice, bob)
            for _ in range(MOST_ROUNDS):
                if "relayed" not in await bob.ask("paths", peer=alice.peer):
                    # It had moved to the hole, and was dropped with it.
                    await alice.ask("dial", address=address)
                    await wait_path(bob, alice, "relayed")
                result = await bob.ask("punch", peer=alice.peer)
                assert result["path"] == "punched", result["reason"]
                with trio.move_on_after(BEHIND_S):
                    await wait_path(alice, bob, "punched")  # it is half a round trip behind
                used += (await alice.ask("echo", peer=bob.peer))["path"] == "punched"
                if used == 3:
                    break
                await bob.ask("drop", peer=alice.peer)
                await alice.ask("drop", peer=bob.peer)
    assert used == 3
