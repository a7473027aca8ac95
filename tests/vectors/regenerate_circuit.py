"""Regenerates tests/vectors/circuit byte for byte: `python -m tests.vectors.regenerate_circuit`.

Each file has the bytes of one message with the length before it, and what they mean or which kind of error they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from shardp2p.errors import RemoteProtocolError
from shardp2p.host.circuit.messages import LengthPrefix, decode_hop, decode_stop, delimited, encode_hop, encode_stop
from shardp2p.host.circuit.values import Connect, HopAnswer, Incoming, Limit, Reserve, Status, StopAnswer
from shardp2p.vocabulary import PeerId
from tests.vectors.regenerate_membership import meaning

FOLDER: Final = Path(__file__).parent / "circuit"
PEER: Final = PeerId("12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo")
LIMIT: Final = Limit(120, 2**27)


def vectors() -> dict[str, dict[str, str]]:
    """Of which protocol each vector is, its bytes, and the kind of error where it is none."""
    unknown = pb.HopMessage(type=pb.HopMessage.STATUS)
    unknown.status = 299  # type: ignore[assignment]
    return {
        "reserve": entry("hop", encode_hop(Reserve())),
        "reserved": entry("hop", encode_hop(HopAnswer(Status.OK, 1_800_003_600))),
        "reserved_with_limits": entry("hop", encode_hop(HopAnswer(Status.OK, 1_800_003_600, LIMIT))),
        "reservation_refused": entry("hop", encode_hop(HopAnswer(Status.RESERVATION_REFUSED))),
        "connect": entry("hop", encode_hop(Connect(PEER))),
        "connected": entry("hop", encode_hop(HopAnswer(Status.OK))),
        "no_reservation": entry("hop", encode_hop(HopAnswer(Status.NO_RESERVATION))),
        "incoming": entry("stop", encode_stop(Incoming(PEER))),
        "incoming_with_limits": entry("stop", encode_stop(Incoming(PEER, LIMIT))),
        "taken": entry("stop", encode_stop(StopAnswer(Status.OK))),
        "not_taken": entry("stop", encode_stop(StopAnswer(Status.PERMISSION_DENIED))),
        "connect_to_nobody": entry("hop", whole(pb.HopMessage(type=pb.HopMessage.CONNECT)), "protocol"),
        "connect_to_no_peer_id": entry(
            "hop", whole(pb.HopMessage(type=pb.HopMessage.CONNECT, peer=pb.PeerId(id=b"no peer id"))), "protocol"
        ),
        "hop_without_a_type": entry("hop", delimited(b""), "protocol"),
        "hop_of_an_unknown_type": entry("hop", delimited(b"\x08\x07"), "protocol"),
        "hop_of_an_unknown_status": entry("hop", whole(unknown), "protocol"),
        "hop_that_is_no_protobuf": entry("hop", delimited(b"\xff\xff"), "protocol"),
        "hop_of_4097_bytes": entry("hop", b"\x81\x20", "protocol"),
        "hop_with_a_length_of_three_bytes": entry("hop", b"\x80\x80\x00", "protocol"),
        "stop_without_a_type": entry("stop", delimited(b""), "protocol"),
        "stop_for_nobody": entry("stop", whole(pb.StopMessage(type=pb.StopMessage.CONNECT)), "protocol"),
        "stop_without_a_status": entry("stop", whole(pb.StopMessage(type=pb.StopMessage.STATUS)), "protocol"),
    }


def whole(message: pb.HopMessage | pb.StopMessage) -> bytes:
    """A message as libp2p would send it."""
    return delimited(message.SerializeToString(deterministic=True))


def entry(protocol: str, data: bytes, error: str = "") -> dict[str, str]:
    """One vector without its meaning."""
    return {"protocol": protocol, "bytes": data.hex(), **({"error": error} if error else {})}


def read(protocol: str, data: bytes) -> object:
    """The message in `data`. Raises: RemoteProtocolError, also for bytes that are not exactly one message."""
    prefix = LengthPrefix()
    for place, byte in enumerate(data):
        length = prefix.feed(byte)
        if length is not None:
            message = data[place + 1 :]
            if len(message) != length:
                break
            return decode_hop(message) if protocol == "hop" else decode_stop(message)
    raise RemoteProtocolError("these bytes are not one message")


def render() -> dict[str, str]:
    """The text of each vector file by its name."""
    files = {}
    for name, vector in vectors().items():
        found: dict[str, Any] = dict(vector)
        if "error" not in vector:
            found["meaning"] = meaning(read(vector["protocol"], bytes.fromhex(vector["bytes"])))
        files[f"{name}.json"] = json.dumps(found, indent=2, ensure_ascii=True) + "\n"
    return files


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for stale in FOLDER.glob("*.json"):
        stale.unlink()
    for file, text in render().items():
        (FOLDER / file).write_text(text, "utf-8")
