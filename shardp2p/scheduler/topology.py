"""What a planner knows: machines that can hold layers of one model, and the one-way delay between any two. Pure.

Also what a ring costs, by the two objectives of docs/architecture.md: the lap, and the pace of a full pipeline. Delays
are measured for some pairs and estimated for the others, so that nothing here grows with the square of the peers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from shardp2p.errors import LocalProtocolError
from shardp2p.scheduler.plan import Stage
from shardp2p.vocabulary import ModelId, PeerId

UNKNOWN_DELAY_S = 0.1
"""Between peers of which nothing is known: a far continent, so that a measured path is preferred."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as a planner sees it. `layer_bytes` is one layer's weights; `hidden_bytes` crosses a hop per token."""

    model: ModelId
    digest: str
    layers: int
    layer_bytes: int
    hidden_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """A peer that could hold up to `fits_layers` layers of the model, each taking `layer_s` for a chunk."""

    peer_id: PeerId
    fits_layers: int
    layer_s: float
    region: str = ""

    def __post_init__(self) -> None:
        if self.fits_layers < 0 or not (math.isfinite(self.layer_s) and self.layer_s > 0):
            raise LocalProtocolError(
                f"machine {self.peer_id} of {self.fits_layers} layers at {self.layer_s} s: check records first"
            )


class DelayEstimate(Protocol):
    """Guesses the one-way delay of a pair that nobody measured; the same for the same pair, always."""

    def delay_s(self, sender: PeerId, receiver: PeerId) -> float: ...


class Topology:
    """Machines and delays. `measured` maps (sender, receiver) to one-way seconds; a missing direction is the other's.

    A pair that is measured in neither direction is estimated: by `estimate`, else by the median between its regions.
    """

    def __init__(
        self,
        machines: Iterable[Machine],
        measured: Mapping[tuple[PeerId, PeerId], float] | None = None,
        estimate: DelayEstimate | None = None,
    ) -> None:
        self.machines: tuple[Machine, ...] = tuple(machines)
        self._by_peer = {machine.peer_id: machine for machine in self.machines}
        if len(self._by_peer) != len(self.machines):
            raise LocalProtocolError("a topology with two machines of one peer")
        self._measured = dict(measured or {})
        regions = {peer: machine.region for peer, machine in self._by_peer.items()}
        self._estimate = estimate or RegionMedians(regions, self._measured)

    @classmethod
    def from_round_trips(
        cls,
        machines: Iterable[Machine],
        rtts: Iterable[tuple[PeerId, PeerId, float]],
        estimate: DelayEstimate | None = None,
    ) -> Topology:
        """From what peers measured of one another: half of a round trip each way, the mean where both measured it."""
        halves: dict[tuple[PeerId, PeerId], list[float]] = {}
        for one, other, rtt_s in rtts:
            halves.setdefault((one, other) if one < other else (other, one), []).append(rtt_s / 2)
        return cls(machines, {pair: sum(values) / len(values) for pair, values in halves.items()}, estimate)

    def machine(self, peer: PeerId) -> Machine | None:
        """The machine of `peer`, if it could hold layers."""
        return self._by_peer.get(peer)

    def delay_s(self, sender: PeerId, receiver: PeerId) -> float:
        """One way, in seconds; may differ from the way back. 0 from a peer to itself; any peer id has an answer."""
        if sender == receiver:
            return 0.0
        measured = self._measured.get((sender, receiver))
        if measured is None:
            measured = self._measured.get((receiver, sender))
        return self._estimate.delay_s(sender, receiver) if measured is None else measured

    def lap_s(self, stages: Sequence[Stage], driver: PeerId) -> float:
        """From the driver through all stages and back to it: hops and the computing of every layer."""
        at, lap_s = driver, 0.0
        for stage in stages:
            lap_s += self.delay_s(at, stage.peer_id) + self.stage_s(stage)
            at = stage.peer_id
        return lap_s + self.delay_s(at, driver)

    def slowest_stage_s(self, stages: Sequence[Stage]) -> float:
        """How long the slowest stage computes on one chunk. 0 for no stages."""
        return max((self.stage_s(stage) for stage in stages), default=0.0)

    def stage_s(self, stage: Stage) -> float:
        """How long a stage computes on one chunk. Raises LocalProtocolError for a peer that is no machine here."""
        machine = self._by_peer.get(stage.peer_id)
        if machine is None:
            raise LocalProtocolError(f"a stage on {stage.peer_id}, which is no machine of this topology")
        return len(stage.layers) * machine.layer_s

    def chunk_s(self, stages: Sequence[Stage], driver: PeerId, in_flight: int = 1) -> float:
        """Seconds from one finished chunk to the next with `in_flight` chunks on the way: what a planner minimises.

        With one in flight it is the lap (the serial objective); with many, the slowest stage or a share of the lap.
        """
        return max(self.slowest_stage_s(stages), self.lap_s(stages, driver) / in_flight)

    def rate(self, stages: Sequence[Stage], driver: PeerId, in_flight: int = 1, accepted: float = 1.0) -> float:
        """Tokens per second, if each chunk yields `accepted` tokens."""
        return accepted / self.chunk_s(stages, driver, in_flight)


class RegionMedians:
    """Estimates a delay as the median of what was measured between the two peers' regions, else of everything.

    Peers without a region are of one region, the unknown.
    """

    def __init__(self, regions: Mapping[PeerId, str], measured: Mapping[tuple[PeerId, PeerId], float]) -> None:
        self._regions = regions
        between: dict[tuple[str, str], list[float]] = {}
        for (sender, receiver), delay_s in measured.items():
            between.setdefault(self._pair(sender, receiver), []).append(delay_s)
        self._medians = {pair: median(delays) for pair, delays in between.items()}
        self._overall = median(measured.values()) if measured else UNKNOWN_DELAY_S

    def delay_s(self, sender: PeerId, receiver: PeerId) -> float:
        return self._medians.get(self._pair(sender, receiver), self._overall)

    def _pair(self, sender: PeerId, receiver: PeerId) -> tuple[str, str]:
        one, other = self._regions.get(sender, ""), self._regions.get(receiver, "")
        return (one, other) if one <= other else (other, one)
