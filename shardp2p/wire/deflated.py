"""Bytes made smaller, and back without growing beyond a bound: raw deflate (RFC 1951). Pure.

Records repeat peer ids within addresses, and a peer id is text: they shrink by a third.
"""

from __future__ import annotations

import zlib
from typing import Final

from shardp2p.wire.codec_parts import InvalidError

_RAW: Final = -15
"""Without zlib's header and checksum: what is deflated here is signed."""


def deflate(data: bytes) -> bytes:
    """`data`, deflated. Which bytes that gives depends on the library; `inflate` takes those of any."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, _RAW)
    return deflater.compress(data) + deflater.flush()


def inflate(data: bytes, most_bytes: int) -> bytes:
    """What was deflated. Raises InvalidError for anything else, and for more than `most_bytes`."""
    inflater = zlib.decompressobj(_RAW)
    try:
        inflated = inflater.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise InvalidError(f"the deflated bytes are damaged: {error}") from error
    if len(inflated) > most_bytes:
        raise InvalidError(f"the bytes inflate to more than {most_bytes}")
    if not inflater.eof or inflater.unused_data:
        raise InvalidError("the deflated bytes are cut short or go on after their end")
    return inflated
