"""A ring that begins with ourselves: our own layers in place of the others' first ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardp2p.errors import LocalProtocolError
from shardp2p.scheduler.route import Member
from shardp2p.vocabulary import LayerRange


def keep_first(ours: Member, members: Sequence[Member]) -> tuple[Member, ...]:
    """`ours` and `members` without the layers that are ours, so that every ring through them begins with us.

    Raises: LocalProtocolError when we do not hold the first layer.
    """
    held = ours.info.layers
    if held is None or held.start != 0:
        raise LocalProtocolError("we do not hold the first layer")
    kept = [ours]
    for member in members:
        layers = member.info.layers
        if layers is None or member.info.model_digest != ours.info.model_digest:
            kept.append(member)
        elif layers.stop > held.stop:
            rest = LayerRange(max(layers.start, held.stop), layers.stop)
            kept.append(replace(member, info=replace(member.info, layers=rest)))
    return tuple(kept)
