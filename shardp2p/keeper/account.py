"""What a peer says of itself: to the swarm, and to its user."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Final

from shardp2p.keeper.kept import Kept
from shardp2p.keeper.offer import Offer
from shardp2p.member import Member
from shardp2p.seating import Seating
from shardp2p.swarm.life import Life, Seat
from shardp2p.swarm.links import rough
from shardp2p.swarm.publisher import Coverage
from shardp2p.vocabulary import LayerSpeed
from shardp2p.wire.records import HeldLayers, NodeState

VERSION: Final = version("shardp2p")


class Account:
    """One peer's. `now` is trio's time."""

    def __init__(self, member: Member, offer: Offer, seating: Seating) -> None:
        self._member = member
        self._offer = offer
        self._seating = seating

    def coverage(self, life: Life, kept: Iterable[Kept], now: float) -> Coverage:
        """For the swarm: what it holds, and what it claims and will load."""
        member, budget = self._member, self._offer.budget
        held = {one.seat: self._record_of(one, now) for one in kept}
        for seat in life.seats:
            if seat not in held:
                held[seat] = self._claim(seat)
        used = sum(self._seating.need_bytes(seat) for seat in held)
        return Coverage(
            state=_published(life),
            addresses=member.node.addresses(),
            reachability=member.reachable.verdict,
            region=self._offer.region,
            version=VERSION,
            memory_bytes=budget.memory_bytes,
            free_memory_bytes=max(0, budget.free_bytes - used),
            held=tuple(held[seat] for seat in sorted(held)),
            links=member.links.told(now),
        )

    def status(self, life: Life, kept: Iterable[Kept], uptime_s: float, now: float) -> dict[str, Any]:
        """For its user: all that may be worth knowing."""
        member, budget, kept = self._member, self._offer.budget, tuple(kept)
        return {
            "peer_id": member.peer_id,
            "swarm": member.swarm,
            "swarm_name": member.name,
            "state": life.state,
            "waits_for": life.waits_for,
            "uptime_s": round(uptime_s, 1),
            "version": VERSION,
            "region": self._offer.region,
            "reachability": member.reachable.verdict,
            "reach": member.reachable.status(),
            "paths": member.paths.status(),
            "addresses": list(member.node.addresses()),
            "memory": {
                "offered_bytes": budget.memory_bytes,
                "headroom_bytes": budget.headroom_bytes,
                "used_bytes": sum(self._seating.need_bytes(one.seat) for one in kept),
            },
            "held": [_described(self._record_of(one, now)) for one in kept],
            "sessions": member.node.open_sessions,
            "driven": member.node.driven,
            "neighbours": list(member.gossip.neighbours),
            "live_peers": len(member.live()),
            "links": [
                {
                    "peer": link.peer,
                    "rtt_ms": round(1e3 * link.rtt_s, 3),
                    "spread_ms": round(1e3 * link.spread_s, 3),
                    "bandwidth_mb_s": round(link.bandwidth_bytes_s / 1e6, 2),
                }
                for link in member.links.snapshot(now)
            ],
        }

    def _record_of(self, kept: Kept, now: float) -> HeldLayers:
        served = kept.held.served
        state: NodeState = "draining" if served.is_draining else "serving"
        return self._held(
            kept.seat, state, kept.context_tokens, served.cache_rows, served.free_cache_rows, kept.speed.at(now)
        )

    def _claim(self, seat: Seat) -> HeldLayers:
        rows = self._offer.budget.cache_rows
        context_tokens = self._seating.offered(seat.digest).stored.manifest.context_tokens
        return self._held(seat, "loading", context_tokens, rows, rows, LayerSpeed(0.0, 0.0))

    def _held(
        self, seat: Seat, state: NodeState, context_tokens: int, rows: int, free_rows: int, speed: LayerSpeed
    ) -> HeldLayers:
        offered = self._seating.offered(seat.digest)
        return HeldLayers(
            model=seat.model,
            model_digest=seat.digest,
            model_layers=offered.shape.layers,
            layers=seat.layers,
            state=state,
            dtype=self._offer.dtype,
            context_tokens=context_tokens,
            layer_bytes=offered.footprint.weight_bytes(seat.layers),
            cache_rows=rows,
            free_cache_rows=free_rows,
            decode_layer_s=rough(speed.decode_layer_s),
            prefill_layer_s=rough(speed.prefill_layer_s),
        )


def _described(held: HeldLayers) -> dict[str, Any]:
    return {
        "model": held.model,
        "digest": held.model_digest,
        "layers": [held.layers.start, held.layers.stop],
        "model_layers": held.model_layers,
        "state": held.state,
        "dtype": held.dtype,
        "layer_bytes": held.layer_bytes,
        "cache_rows": held.cache_rows,
        "free_cache_rows": held.free_cache_rows,
        "decode_layer_ms": round(1e3 * held.decode_layer_s, 4),
        "prefill_layer_ms": round(1e3 * held.prefill_layer_s, 4),
    }


def _published(life: Life) -> NodeState:
    match life.state:
        case "left" | "draining":
            return "draining"
        case state:
            return state
