"""The digests of a text's beginnings, by which stages find rows that they have already. Pure.

They are keyed: a stage learns nothing of the text from them, and what two askers sent is never equal. They are those of
one ring: rows that other peers, layers or schemes have made are not the same.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import Final

from shardp2p.scheduler.plan import Plan
from shardp2p.vocabulary import PeerId, Token, WireScheme
from shardp2p.wire.prefixes import PREFIX_BYTES, Prefixes, step_tokens

_HASH: Final = "sha256"


class PrefixKeys:
    """A key for each asker, made of a `secret` that nobody else has, and no other process of ours."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, asker: PeerId) -> bytes:
        """The key for what `asker` asks."""
        return hmac.digest(self._secret, asker.encode(), _HASH)


def prefixes_of(key: bytes, plan: Plan, wire_scheme: WireScheme, text: Sequence[Token]) -> Prefixes | None:
    """The digests of `text` on the ring of `plan`; None when it is too short for one."""
    step = step_tokens(len(text))
    if len(text) < step:
        return None
    ring = "\n".join(
        (
            plan.model_digest,
            plan.dtype,
            wire_scheme,
            *(f"{stage.peer_id} {stage.layers.start} {stage.layers.stop}" for stage in plan.stages),
        )
    )
    digest = hmac.new(key, f"{ring}\n\n".encode(), _HASH)
    digests = []
    for at in range(0, len(text) - step + 1, step):
        digest.update(struct.pack(f"<{step}I", *text[at : at + step]))
        digests.append(digest.copy().digest()[:PREFIX_BYTES])
    return Prefixes(step, tuple(digests))
