"""The pure machines of many peers at once: how soon all know, and what it costs each."""

from __future__ import annotations

import pytest

from shardp2p.lab.epidemic import Epidemic, encoded_bytes
from shardp2p.swarm.neighbours import CHOSEN
from shardp2p.swarm.pace import lifetime_s
from shardp2p.wire.codec import encode
from shardp2p.wire.news import Heartbeat, News, ShortId
from shardp2p.wire.protocols import GOSSIP


def test_swarm_of_sixty_converges_forgets_the_dead_and_stays_cheap() -> None:
    epidemic = Epidemic(seed=1)
    for number in range(60):
        epidemic.join(entrances=2)
        epidemic.run_until(number * 0.1)
    epidemic.run_until(10.0)
    assert {len(peer.gossip.view) for peer in epidemic.peers.values()} == {59}
    victim, leaver = list(epidemic.peers.values())[:2]
    before = epidemic.traffic_bytes()
    epidemic.kill(victim)
    epidemic.leave(leaver)
    epidemic.run_until(12.0)
    assert epidemic.knowing(leaver) == 0
    assert epidemic.knowing(victim) > 0
    epidemic.run_until(25.0)
    assert epidemic.knowing(victim) == 0
    assert {len(peer.gossip.view) for peer in epidemic.peers.values()} == {57}
    assert (epidemic.traffic_bytes() - before) / 58 / 15 < 20_000


def test_a_swarm_that_has_formed_goes_on_as_one_that_was_joined() -> None:
    epidemic = Epidemic(seed=3)
    epidemic.form(40)
    assert {len(peer.gossip.view) for peer in epidemic.peers.values()} == {39}
    epidemic.run_until(30.0)
    assert {len(peer.gossip.view) for peer in epidemic.peers.values()} == {39}
    assert all(len(peer.connected) >= CHOSEN for peer in epidemic.peers.values())
    newcomer = epidemic.join(entrances=2)
    epidemic.run_until(33.0)
    assert len(newcomer.gossip.view) == 40
    assert epidemic.knowing(newcomer) == 40
    epidemic.kill(newcomer)
    epidemic.run_until(45.0)
    assert epidemic.knowing(newcomer) == 0


def test_a_step_of_the_lifetime_is_no_burst_of_records() -> None:
    epidemic = Epidemic(seed=4)
    epidemic.form(48)
    epidemic.run_until(12.0)
    older = list(epidemic.peers.values())
    told = {peer.peer_id: peer.gossip.own.version[0] for peer in older}
    for _ in range(4):
        epidemic.join(entrances=2)
    made = []
    for _ in range(23):
        epidemic.run_until(epidemic.now + 1.0)
        made.append(sum(peer.gossip.own.version[0] != told[peer.peer_id] for peer in older))
        told = {peer.peer_id: peer.gossip.own.version[0] for peer in older}
    assert sum(made) == len(older)
    assert max(made) <= len(older) / 5
    assert {peer.gossip.own.record.lifetime_s for peer in epidemic.peers.values()} == {lifetime_s(52)}
    assert {len(peer.gossip.view) for peer in epidemic.peers.values()} == {51}


@pytest.mark.parametrize("count", [0, 1, 3, 4, 200, 481, 482, 512])
def test_size_of_news_is_what_its_encoding_takes(count: int) -> None:
    heartbeat = Heartbeat(ShortId(bytes(8)), 5, 1, bytes(16), 0.5)
    wants = (ShortId(bytes(8)),) * min(count, 100)
    for news in (News(heartbeats=(heartbeat,) * count), News(heartbeats=(heartbeat,) * count, record_wants=wants)):
        assert encoded_bytes(news) == len(encode(GOSSIP, news))


def test_simulation_gives_the_same_figures_again() -> None:
    def run() -> int:
        epidemic = Epidemic(seed=2)
        for _ in range(12):
            epidemic.join()
        epidemic.run_until(8.0)
        return epidemic.traffic_bytes()

    assert run() == run() > 0
