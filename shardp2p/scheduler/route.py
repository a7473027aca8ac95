"""The ring for one request through the peers that are known. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardp2p.errors import ConfigError, PeerUnavailableError
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.vocabulary import ModelId
from shardp2p.wire.messages import MemberInfo


@dataclass(frozen=True, slots=True)
class Member:
    """A peer's account of itself, and the addresses at which it answered."""

    info: MemberInfo
    addresses: tuple[str, ...]


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
    """Exact joins only: from each layer on, the longest range that begins there and can be continued to the end."""
    best: dict[int, tuple[Stage, ...]] = {layers: ()}
    for at in range(layers - 1, -1, -1):
        for member in serving:
            held = member.info.layers
            if held is None or held.start != at or held.stop not in best:
                continue
            stages = (Stage(member.info.peer_id, held, member.addresses), *best[held.stop])
            if at not in best or len(stages) < len(best[at]):
                best[at] = stages
    if 0 not in best:
        held_ranges = sorted(str(m.info.layers) for m in serving)
        raise PeerUnavailableError(
            f"the peers do not cover {model}'s layers 0:{layers} without a gap or an overlap: they hold "
            f"{', '.join(held_ranges)}; {_missing(layers, serving)}"
        )
    return best[0]


def _missing(layers: int, serving: Sequence[Member]) -> str:
    held = {layer for m in serving if m.info.layers for layer in range(m.info.layers.start, m.info.layers.stop)}
    gaps, start = [], None
    for layer in range(layers + 1):
        is_missing = layer < layers and layer not in held
        if is_missing and start is None:
            start = layer
        elif not is_missing and start is not None:
            gaps.append(f"{start}:{layer}")
            start = None
    if not gaps:
        return "start peers whose ranges join end to end"
    return f"start a peer that holds {' and '.join(gaps)}"
