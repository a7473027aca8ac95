"""The ring for one request through the peers that are known. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardp2p.errors import ConfigError, PeerUnavailableError, RemoteProtocolError
from shardp2p.scheduler.plan import Plan, Stage
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
    """The ring with the fewest stages that runs `model` from its first layer to its last.

    Raises: PeerUnavailableError when nobody serves the model or layers are missing; ConfigError when the peers serve
    different weights under this name, or different dtypes. Each says which peers or layers.
    """
    serving = [m for m in members if m.info.model == model and m.info.layers is not None]
    if not serving:
        others = sorted({m.info.model for m in members if m.info.model})
        served = f"they serve {', '.join(others)}" if others else "they serve no model"
        raise PeerUnavailableError(f"none of the {len(members)} peers serves {model}: {served}")
    first = serving[0].info
    for member in serving[1:]:
        _require_same("weights of " + model, "model_digest", first, member.info)
        _require_same("number of layers of " + model, "model_layers", first, member.info)
        _require_same("dtype", "dtype", first, member.info)
    return Plan(
        model=model,
        model_digest=first.model_digest,
        dtype=first.dtype,
        context_tokens=min(m.info.context_tokens for m in serving),
        stages=_cover(model, first.model_layers, serving),
    )


def _require_same(what: str, field: str, one: MemberInfo, other: MemberInfo) -> None:
    if getattr(one, field) != getattr(other, field):
        raise ConfigError(
            f"the peers do not serve the same {what}: {one.peer_id} has {str(getattr(one, field))[:12]}, "
            f"{other.peer_id} has {str(getattr(other, field))[:12]}; start them with the same model and dtype"
        )


def _cover(model: ModelId, layers: int, serving: Sequence[Member]) -> tuple[Stage, ...]:
    """Exact joins only: from each start on, the range that can be continued to the end in the fewest stages.

    Takes time in the number of members alone: that of the layers is their claim.
    """
    best: dict[int, tuple[Stage, ...]] = {layers: ()}
    for held, member in sorted(_held(serving), key=lambda pair: pair[0].start, reverse=True):
        if held.stop not in best:
            continue
        stages = (Stage(member.info.peer_id, held, member.addresses), *best[held.stop])
        if held.start not in best or len(stages) < len(best[held.start]):
            best[held.start] = stages
    if 0 not in best:
        held_ranges = sorted(str(held) for held, _ in _held(serving))
        raise PeerUnavailableError(
            f"the peers do not cover {model}'s layers 0:{layers} without a gap or an overlap: they hold "
            f"{', '.join(held_ranges)}; {_missing(layers, serving)}"
        )
    return best[0]


def _held(serving: Sequence[Member]) -> list[tuple[LayerRange, Member]]:
    return [(member.info.layers, member) for member in serving if member.info.layers is not None]


def _missing(layers: int, serving: Sequence[Member]) -> str:
    gaps, covered = [], 0
    for held in sorted(held for held, _ in _held(serving)):
        if held.start > covered:
            gaps.append(f"{covered}:{held.start}")
        covered = max(covered, held.stop)
    if covered < layers:
        gaps.append(f"{covered}:{layers}")
    if not gaps:
        return "start peers whose ranges join end to end"
    return f"start a peer that holds {' and '.join(gaps)}"
