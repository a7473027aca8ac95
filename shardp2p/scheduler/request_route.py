"""The ring for one request through live coverage: the fastest that has room and that the user trusts. Pure.

Ranges may overlap and are cut wherever that is fastest (`ring_search`). Which peer may not be used is decided
here, with the reason in words, so that a failure says which layers are missing and why each candidate was passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardp2p.errors import OverloadedError, PeerUnavailableError
from shardp2p.scheduler.holders import Holder, missing_ranges, named
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.scheduler.ring_search import Ring, cheapest_ring, least_laps
from shardp2p.scheduler.topology import ModelShape, Topology
from shardp2p.vocabulary import LayerRange, PeerId

MAX_NAMED = 8
"""Peers that an error names: one line, even in a swarm of a thousand."""

OTHER_DTYPE = "computes in another dtype than the ring"


@dataclass(frozen=True, slots=True)
class RequestNeeds:
    """What a request asks of its ring.

    cache_rows    free rows that every stage must have
    allowed       the only peers that may be used; None: all of them
    blocked       peers that the user does not trust
    avoid         peers that failed this request or were struck, each with the reason
    driver        the peer that drives; None: the one with the first layers
    local_layers  so many of the first layers are run by the driver itself
    """

    cache_rows: int = 0
    allowed: frozenset[PeerId] | None = None
    blocked: frozenset[PeerId] = frozenset()
    avoid: Mapping[PeerId, str] = field(default_factory=dict)
    driver: PeerId | None = None
    local_layers: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether a peer's range is used for a request, and why."""

    peer_id: PeerId
    held: LayerRange
    is_used: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Route:
    """A ring for a request, who drives it, what a lap takes, and why each peer was chosen or not."""

    plan: Plan
    driver: PeerId
    lap_s: float
    choices: tuple[Choice, ...]


def route_request(
    shape: ModelShape, needs: RequestNeeds, holders: Sequence[Holder], topology: Topology, *, hop_s: float = 0.0
) -> Route:
    """The ring with the shortest lap for a request among `holders`, which may be in any order.

    `hop_s` is what a hop costs beside its delay. Peers that compute in different dtypes never share a ring.

    Raises: PeerUnavailableError when layers are missing, and OverloadedError when only cache rows are.
    """
    ordered = sorted(holders, key=lambda holder: (holder.peer_id, holder.layers))
    candidates = [_candidate(holder, needs) for holder in ordered]
    best: tuple[Ring, list[_Candidate]] | None = None
    for dtype in sorted({holder.dtype for holder in ordered}):
        among = [one for one in candidates if one.usable is not None and one.holder.dtype == dtype]
        usable = [one.usable for one in among if one.usable is not None]
        ring = cheapest_ring(shape.layers, usable, topology.delay_s, driver=needs.driver, hop_s=hop_s)
        if ring is not None and (best is None or ring.lap_s < best[0].lap_s):
            best = ring, among
    if best is None:
        raise _no_ring(shape, needs, candidates)
    ring, among = best
    plan = _plan(shape, ring, among)
    driver = needs.driver if needs.driver is not None else plan.stages[0].peer_id
    return Route(plan, driver, ring.lap_s, _choices(shape, ring, among, candidates, topology, driver, hop_s))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A holder, the part of it that the request may use, and why that is not all of it."""

    holder: Holder
    usable: Holder | None
    refusal: str = ""
    is_full: bool = False


def _candidate(holder: Holder, needs: RequestNeeds) -> _Candidate:
    refusal = _refusal(holder, needs)
    if refusal is not None:
        return _Candidate(holder, None, refusal)
    held = holder.layers
    if holder.peer_id != needs.driver and held.start < needs.local_layers:
        if held.stop <= needs.local_layers:
            return _Candidate(holder, None, "holds only layers that the driver runs itself")
        holder = replace(holder, layers=LayerRange(needs.local_layers, held.stop))
    if holder.free_cache_rows < needs.cache_rows:
        why = f"is full: {holder.free_cache_rows} of {needs.cache_rows} cache rows are free"
        return _Candidate(holder, None, why, is_full=True)
    return _Candidate(holder, holder)


def _refusal(holder: Holder, needs: RequestNeeds) -> str | None:
    """Why a holder must not serve the request, whatever the others do; None if it may."""
    peer = holder.peer_id
    is_driver = peer == needs.driver
    rules = (
        (holder.state == "draining", "takes no new request: it is leaving"),
        (holder.state in ("placing", "loading"), "still loads its layers"),
        (peer in needs.blocked, "is blocked by you"),
        (needs.allowed is not None and peer not in needs.allowed and not is_driver, "is not among those you allow"),
        (peer in needs.avoid, needs.avoid.get(peer, "")),
        (holder.reachability == "unreachable" and not is_driver, "cannot be reached from outside its network"),
    )
    return next((why for applies, why in rules if applies), None)


def _plan(shape: ModelShape, ring: Ring, among: Sequence[_Candidate]) -> Plan:
    used = [among[leg.holder].holder for leg in ring.legs]
    return Plan(
        model=shape.model,
        model_digest=shape.digest,
        dtype=used[0].dtype,
        context_tokens=min(holder.context_tokens for holder in used),
        stages=tuple(
            Stage(holder.peer_id, leg.layers, holder.addresses) for holder, leg in zip(used, ring.legs, strict=True)
        ),
    )


def _choices(
    shape: ModelShape,
    ring: Ring,
    among: Sequence[_Candidate],
    candidates: Sequence[_Candidate],
    topology: Topology,
    driver: PeerId,
    hop_s: float,
) -> tuple[Choice, ...]:
    """In the order of the candidates, each with what it does or why it does nothing."""
    usable = [one.usable for one in among if one.usable is not None]
    bounds = least_laps(shape.layers, usable, topology.delay_s, hop_s=hop_s)
    why = {id(one): _slower(bound_s, ring.lap_s) for one, bound_s in zip(among, bounds, strict=True)}
    works: dict[int, list[str]] = {}
    for number, leg in enumerate(ring.legs):
        one = among[leg.holder]
        is_last = number + 1 == len(ring.legs)
        after = driver if is_last else among[ring.legs[number + 1].holder].holder.peer_id
        hop_ms = 1000 * topology.delay_s(one.holder.peer_id, after)
        drives = "drives, and " if number == 0 and one.holder.peer_id == driver else ""
        works.setdefault(id(one), []).append(
            f"{drives}runs layers {leg.layers} in {1000 * len(leg.layers) * one.holder.layer_s:.1f} ms, "
            f"{hop_ms:.1f} ms to {'the driver' if is_last else 'the next stage'}"
        )
    return tuple(
        Choice(one.holder.peer_id, one.holder.layers, True, "; ".join(works[id(one)]))
        if id(one) in works
        else Choice(one.holder.peer_id, one.holder.layers, False, one.refusal or why.get(id(one), OTHER_DTYPE))
        for one in candidates
    )


def _slower(bound_s: float, lap_s: float) -> str:
    if math.isinf(bound_s):
        return "leads to no whole ring"
    if bound_s > lap_s:
        return f"a lap through it takes at least {1000 * bound_s:.1f} ms, {bound_s / lap_s - 1:.0%} more"
    return "no ring through it is faster"


def _no_ring(
    shape: ModelShape, needs: RequestNeeds, candidates: Sequence[_Candidate]
) -> PeerUnavailableError | OverloadedError:
    name, layers = shape.model, shape.layers
    parts = [one.usable.layers for one in candidates if one.usable is not None]
    missing = missing_ranges(layers, parts)
    if not missing:
        return PeerUnavailableError(
            f"the peers that serve {name} compute in different dtypes, and no dtype has all layers: "
            f"start them with the same --dtype"
        )
    full = [one.holder for one in candidates if one.is_full]
    if not missing_ranges(layers, [*parts, *(holder.layers for holder in full)]):
        return _no_room(name, needs.cache_rows, missing, full)
    return PeerUnavailableError(f"layers {named(missing)} of {name} are missing: {_passed_over(candidates, missing)}")


def _no_room(name: str, rows: int, layers: Sequence[LayerRange], full: Sequence[Holder]) -> OverloadedError:
    """How many rows are free in all of `layers`, and whether to wait or to ask for less."""

    def least(rows_of: Callable[[Holder], int]) -> int:
        return min(
            max(rows_of(holder) for holder in full if holder.layers.start <= layer < holder.layers.stop)
            for part in layers
            for layer in range(part.start, part.stop)
        )

    free, total = least(lambda holder: holder.free_cache_rows), least(lambda holder: holder.cache_rows)
    fewer = f"ask for {rows - (free if rows <= total else total)} tokens less, as by a smaller --max-tokens"
    what = f"layers {named(layers)} have {free} of {total} cache rows free, and the request takes {rows}"
    if rows > total:
        return OverloadedError(f"{name} has no room for so long a request: {what}; {fewer}")
    return OverloadedError(f"{name} is busy: {what}; wait some seconds until others are done, or {fewer}")


def _passed_over(candidates: Sequence[_Candidate], missing: Sequence[LayerRange]) -> str:
    """Why the holders of missing layers were not used, or what to do when there are none."""
    why = [
        f"{one.holder.peer_id} ({one.holder.layers}) {one.refusal}"
        for one in candidates
        if one.usable is None
        and any(one.holder.layers.start < gap.stop and gap.start < one.holder.layers.stop for gap in missing)
    ]
    if not why:
        return "nobody holds them; start one more peer, or one with more memory"
    return "; ".join(why[:MAX_NAMED]) + (f"; and {len(why) - MAX_NAMED} more" if len(why) > MAX_NAMED else "")
