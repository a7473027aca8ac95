"""The pure machines of many peers at once: how soon all know, and what it costs each."""

from __future__ import annotations

from shardp2p.lab.epidemic import Epidemic


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


def test_simulation_gives_the_same_figures_again() -> None:
    def run() -> int:
        epidemic = Epidemic(seed=2)
        for _ in range(12):
            epidemic.join()
        epidemic.run_until(8.0)
        return epidemic.traffic_bytes()

    assert run() == run() > 0
