"""What stands in a stage's cache when its layers are emulated: the digest of each row's text. Pure.

A digest stands for a hidden state: the first stage makes it of the parent row's and the token, the others pass it on,
and the last one knows by it what the target says. A wrong row, parent or compaction changes the answer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from shardp2p.errors import RemoteProtocolError
from shardp2p.lab.emulation.language import Language, extend
from shardp2p.stage.session import Work
from shardp2p.vocabulary import Token
from shardp2p.wire.tensor_frame import TensorFrame

_DIGEST = struct.Struct("<Q")


class DigestRows:
    """The rows of one session on one stage."""

    def __init__(self, language: Language, *, is_first: bool) -> None:
        self._language = language
        self._is_first = is_first
        self._rows: list[int] = []

    def compute(self, work: Work, inputs: Sequence[int]) -> list[int]:
        """The digests of a chunk's live rows. `inputs`: the tokens for the first stage, else the digests that came."""
        if work.keep is not None:
            self._rows[work.keep.first :] = [self._rows[row] for row in work.keep.rows]
        made = []
        for at, parent in zip(work.inputs, work.cache_parents, strict=True):
            digest = inputs[at]
            if self._is_first:
                digest = extend(self._rows[parent] if parent >= 0 else self._language.digest(()), digest)
            made.append(digest)
            self._rows.append(digest)
        return made

    def choices(self, work: Work, digests: Sequence[int]) -> tuple[Token | None, ...]:
        """The target's choice after each row of the chunk that wants one; None for those that were skipped."""
        chosen = {row: self._language.next_token(digest) for row, digest in zip(work.rows, digests, strict=True)}
        return tuple(chosen.get(row) for row in range(work.arrival.quiet, len(work.arrival.parents)))


def frame_of(digests: Sequence[int], row_bytes: int) -> TensorFrame | None:
    """Hidden rows of a real model's size, each of which begins with a digest; None for no rows."""
    if not digests:
        return None
    padding = bytes(row_bytes - _DIGEST.size)
    data = b"".join(part for digest in digests for part in (_DIGEST.pack(digest), padding))
    return TensorFrame("raw", "bfloat16", (len(digests), row_bytes // 2), data)


def digests_of(frame: TensorFrame | None) -> list[int]:
    """The digests that hidden rows begin with. Raises: RemoteProtocolError for rows too short for one."""
    if frame is None:
        return []
    rows, row_bytes = frame.shape[0], 2 * frame.shape[1]
    if row_bytes < _DIGEST.size:
        raise RemoteProtocolError(f"hidden rows of {row_bytes} bytes cannot be of an emulated model")
    return [_DIGEST.unpack_from(frame.data, row * row_bytes)[0] for row in range(rows)]
