"""The golden vectors: every frame gives the meaning, or the kind of error, that is written beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardp2p.errors import BY_WIRE_STATUS
from shardp2p.wire.codec import decode, encode
from shardp2p.wire.framing import FrameDecoder
from shardp2p.wire.messages import Message
from shardp2p.wire.protocols import KINDS, limits_of
from tests.vectors.regenerate import HERE, meaning

FOLDERS = [protocol.split("/")[2] for protocol in KINDS]


def vectors_below(directory: Path) -> dict[str, Path]:
    """The files of the protocols' vectors by their names."""
    paths = [path for folder in FOLDERS for path in sorted((directory / folder).glob("*.json"))]
    return {str(path.relative_to(directory)): path for path in paths}


VECTORS = vectors_below(HERE)


def read(protocol: str, frame: bytes) -> Message:
    decoder = FrameDecoder(limits_of(protocol))
    decoder.feed(frame)
    whole = decoder.next_frame()
    assert whole is not None, "the frame is incomplete"
    assert decoder.buffered_bytes == 0
    return decode(protocol, whole.kind, whole.payload)


@pytest.mark.parametrize("name", VECTORS)
def test_frame_means_what_its_vector_says(name: str) -> None:
    vector: dict[str, Any] = json.loads(VECTORS[name].read_text("utf-8"))
    protocol, frame = vector["protocol"], bytes.fromhex(vector["frame"])
    if "error" in vector:
        with pytest.raises(BY_WIRE_STATUS[vector["error"]]):
            read(protocol, frame)
    else:
        message = read(protocol, frame)
        assert meaning(message) == vector["message"]
        assert encode(protocol, message) == frame


def test_every_message_has_a_vector() -> None:
    seen = {json.loads(path.read_text("utf-8")).get("message", {}).get("type") for path in VECTORS.values()}
    assert seen - {None} == {kind.message.__name__ for kinds in KINDS.values() for kind in kinds}


def test_regenerating_changes_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, HERE / "regenerate.py", tmp_path], check=True, cwd=HERE.parents[1])
    fresh = {name: path.read_bytes() for name, path in vectors_below(tmp_path).items()}
    assert fresh == {name: path.read_bytes() for name, path in VECTORS.items()}
