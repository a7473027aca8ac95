"""The ring through peers that were asked one by one, as `--peer` lists them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardp2p.errors import ConfigError, PeerUnavailableError, RemoteProtocolError
from shardp2p.scheduler.holders import Holder, missing_ranges, named
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.scheduler.ring_search import cheapest_ring
from shardp2p.vocabulary import LayerRange, ModelId
from shardp2p.wire.messages import MemberInfo


@dataclass(frozen=True, slots=True)
class Member:
    """A peer's account of itself, and the addresses at which it answered."""

    info: MemberInfo
    addresses: tuple[str, ...]


def recognise(model: ModelId, digest: str, layers: int, members: Sequence[Member]) -> tuple[Member, ...]:
    """`members` with our name `model` for what has our digest: a name is each machine's own.

    Raises: ConfigError for other weights under that name; RemoteProtocolError for a peer that claims our weights, but
    not the `layers` layers that they have.
    """
    for member in members:
        info = member.info
        if info.model == model and info.layers is not None and info.model_digest != digest:
            raise ConfigError(
                f"peer {info.peer_id} serves other weights as {model} ({info.model_digest[:12]}) than are stored here "
                f"({digest[:12]}); the text could not be read: use the same model on both sides"
            )
        if info.model_digest == digest and info.model_layers != layers:
            raise RemoteProtocolError(
                f"peer {info.peer_id} says that {model} has {info.model_layers} layers; it has {layers}", info.peer_id
            )
    return tuple(
        replace(member, info=replace(member.info, model=model)) if member.info.model_digest == digest else member
        for member in members
    )


def route(model: ModelId, members: Sequence[Member]) -> Plan:
    """The ring with the fewest stages that runs `model` from its first layer to its last, cutting ranges that overlap.

    For peers of which nothing was measured; `request_route` weighs speed and room.

    Raises: PeerUnavailableError when nobody serves the model or layers are missing; ConfigError when the peers serve
    different weights under this name, or different dtypes. Each says which peers or layers.
    """
    serving = sorted(
        (m for m in members if m.info.model == model and m.info.layers is not None), key=lambda m: m.info.peer_id
    )
    if not serving:
        others = sorted({m.info.model for m in members if m.info.model})
        served = f"they serve {', '.join(others)}" if others else "they serve no model"
        raise PeerUnavailableError(f"none of the {len(members)} peers serves {model}: {served}")
    first = serving[0].info
    for member in serving[1:]:
        _require_same("weights of " + model, "model_digest", first, member.info)
        _require_same("number of layers of " + model, "model_layers", first, member.info)
        _require_same("dtype", "dtype", first, member.info)
    holders = [
        Holder(m.info.peer_id, m.info.layers, addresses=m.addresses) for m in serving if m.info.layers is not None
    ]
    ring = cheapest_ring(first.model_layers, holders, lambda _one, _other: 1.0)
    if ring is None:
        raise _gap(model, first.model_layers, [holder.layers for holder in holders])
    return Plan(
        model=model,
        model_digest=first.model_digest,
        dtype=first.dtype,
        context_tokens=min(m.info.context_tokens for m in serving),
        stages=tuple(
            Stage(holders[leg.holder].peer_id, leg.layers, holders[leg.holder].addresses) for leg in ring.legs
        ),
    )


def _require_same(what: str, field: str, one: MemberInfo, other: MemberInfo) -> None:
    if getattr(one, field) != getattr(other, field):
        raise ConfigError(
            f"the peers do not serve the same {what}: {one.peer_id} has {str(getattr(one, field))[:12]}, "
            f"{other.peer_id} has {str(getattr(other, field))[:12]}; start them with the same model and dtype"
        )


def _gap(model: ModelId, layers: int, held: Sequence[LayerRange]) -> PeerUnavailableError:
    return PeerUnavailableError(
        f"the peers do not cover {model}'s layers 0:{layers}: they hold {', '.join(sorted(map(str, held)))}; "
        f"start a peer that holds {named(missing_ranges(layers, held))}"
    )
