"""What gossip costs each peer of a swarm that churns, measured on the machines that real peers run. Seeded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from shardp2p.lab.churn import ChurnSettings
from shardp2p.lab.epidemic import Epidemic, SimulatedPeer
from shardp2p.swarm.publisher import Coverage
from shardp2p.vocabulary import PeerId
from shardp2p.wire.records import NodeState

ENTRANCES = 3
"""Peers that a newcomer was told of."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a newcomer says `after_s` seconds after it came: with what it holds, and its links, or without."""

    after_s: float
    state: NodeState
    holds: bool = True
    has_links: bool = True

    def of(self, coverage: Coverage) -> Coverage:
        """`coverage` of a peer that serves, as it is at this stage."""
        is_serving = self.state == "serving"
        claimed = tuple(held if is_serving else replace(held, state="loading") for held in coverage.held)
        held = claimed if self.holds else ()
        return replace(coverage, state=self.state, held=held, links=coverage.links if self.has_links else ())


STAGES: Final = (
    Stage(0.0, "joining", holds=False, has_links=False),
    Stage(1.0, "placing", holds=False, has_links=False),
    Stage(2.5, "placing", has_links=False),
    Stage(4.0, "loading"),
    Stage(45.0, "serving"),
)
"""As a peer that finds its place at once goes through them (swarm/life.py)."""

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
    changes: list[tuple[float, SimulatedPeer, Stage]] = []
    leaving: set[PeerId] = set()
    lost_bytes = 0
    while epidemic.now < start + measured_s:
        epidemic.run_until(epidemic.now + draw.expovariate(settings.peers / settings.stay_s))
        for _, peer, stage in [change for change in changes if change[0] <= epidemic.now]:
            peer.gossip.own.update(stage.of(peer.coverage))
        changes = [change for change in changes if change[0] > epidemic.now]
        gone = draw.choice([peer for peer in epidemic.peers.values() if peer.peer_id not in leaving])
        leaving.add(gone.peer_id)
        lost_bytes += gone.sent_bytes + gone.received_bytes
        (epidemic.kill if draw.random() < settings.crash_share else epidemic.leave)(gone)
        newcomer = epidemic.join(ENTRANCES, STAGES[0].of)
        changes += [(epidemic.now + stage.after_s, newcomer, stage) for stage in STAGES[1:]]
    passed_s = epidemic.now - start
    bytes_s = (epidemic.traffic_bytes() + lost_bytes - before) / settings.peers / passed_s
    victim = draw.choice([peer for peer in epidemic.peers.values() if peer.peer_id not in leaving])
    epidemic.kill(victim)
    killed_at = epidemic.now
    while epidemic.knowing(victim) and epidemic.now < killed_at + FORGET_AT_MOST_S:
        epidemic.run_until(epidemic.now + 0.5)
    return ChurnTraffic(settings.peers, bytes_s, epidemic.now - killed_at)
