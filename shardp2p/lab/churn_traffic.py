"""What gossip costs each peer of a swarm that churns, measured on the machines that real peers run. Seeded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from shardp2p.lab.churn import ChurnSettings
from shardp2p.lab.epidemic import Epidemic, SimulatedPeer
from shardp2p.vocabulary import PeerId
from shardp2p.wire.records import NodeState

ENTRANCES = 3
"""Peers that a newcomer was told of."""

STATES: tuple[tuple[float, NodeState], ...] = ((1.0, "placing"), (5.0, "loading"), (45.0, "serving"))
"""What a newcomer becomes, and how many seconds after it came."""

FORGET_AT_MOST_S = 120.0


@dataclass(frozen=True, slots=True)
class ChurnTraffic:
    """Bytes per second of one peer, sent and received together, and when the last peer forgot a killed one."""

    peers: int
    bytes_s: float
    forgotten_s: float

    def figures(self) -> dict[str, float]:
        """What a table or a script shows."""
        return {"traffic_bytes_s": round(self.bytes_s), "dead_forgotten_s": round(self.forgotten_s, 1)}


def measure_traffic(settings: ChurnSettings, *, calm_s: float = 20.0, measured_s: float = 30.0) -> ChurnTraffic:
    """The traffic of `settings.peers` peers that know one another and, after `calm_s`, come and go as they say."""
    draw = Random(settings.seed)
    epidemic = Epidemic(settings.seed)
    epidemic.form(settings.peers)
    epidemic.run_until(calm_s)
    before, start = epidemic.traffic_bytes(), epidemic.now
    changes: list[tuple[float, SimulatedPeer, NodeState]] = []
    leaving: set[PeerId] = set()
    lost_bytes = 0
    while epidemic.now < start + measured_s:
        epidemic.run_until(epidemic.now + draw.expovariate(settings.peers / settings.stay_s))
        for _, peer, state in [change for change in changes if change[0] <= epidemic.now]:
            peer.gossip.own.update(replace(peer.coverage, state=state))
        changes = [change for change in changes if change[0] > epidemic.now]
        gone = draw.choice([peer for peer in epidemic.peers.values() if peer.peer_id not in leaving])
        leaving.add(gone.peer_id)
        lost_bytes += gone.sent_bytes + gone.received_bytes
        (epidemic.kill if draw.random() < settings.crash_share else epidemic.leave)(gone)
        newcomer = epidemic.join(ENTRANCES)
        changes += [(epidemic.now + later_s, newcomer, state) for later_s, state in STATES]
    passed_s = epidemic.now - start
    bytes_s = (epidemic.traffic_bytes() + lost_bytes - before) / settings.peers / passed_s
    victim = draw.choice([peer for peer in epidemic.peers.values() if peer.peer_id not in leaving])
    epidemic.kill(victim)
    killed_at = epidemic.now
    while epidemic.knowing(victim) and epidemic.now < killed_at + FORGET_AT_MOST_S:
        epidemic.run_until(epidemic.now + 0.5)
    return ChurnTraffic(settings.peers, bytes_s, epidemic.now - killed_at)
