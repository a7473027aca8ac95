"""Regenerates tests/vectors/punch byte for byte: `python -m tests.vectors.regenerate_punch`.

Each file has the bytes of one message with the length before it, and what they mean or which kind of error they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr

from shardp2p.errors import RemoteProtocolError
from shardp2p.host.circuit.messages import LengthPrefix, delimited
from shardp2p.host.punch.messages import Connect, PunchMessage, Sync, decode, encode
from tests.vectors.regenerate_membership import meaning

FOLDER: Final = Path(__file__).parent / "punch"
PEER: Final = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


def vectors() -> dict[str, dict[str, str]]:
    """The bytes of each vector, and the kind of error where they are no message."""
    return {
        "connect": entry(encode(Connect((("45.45.0.7", 51000), ("45.45.0.7", 4001))))),
        "connect_by_ipv6": entry(encode(Connect((("2a00:1450::7", 4001),)))),
        "connect_without_addresses": entry(encode(Connect(()))),
        "connect_that_names_the_peer": entry(offering(f"/ip4/45.45.0.7/tcp/4001/p2p/{PEER}")),
        "connect_by_other_ways_too": entry(
            offering(
                "/ip4/45.45.0.7/udp/4001/quic-v1",
                "/dns4/example.org/tcp/4001",
                f"/ip4/45.45.0.8/tcp/4001/p2p/{PEER}/p2p-circuit",
                "/ip4/45.45.0.7/tcp/4001/ws",
                "/ip4/45.45.0.7/tcp/4001",
            )
        ),
        "connect_by_9_addresses": entry(offering(*(f"/ip4/45.45.0.7/tcp/{port}" for port in range(1, 10)))),
        "connect_by_port_0_and_half_an_address": entry(
            whole(HolePunch(type=HolePunch.CONNECT, ObsAddrs=[bytes.fromhex("042d2d0007060000"), b"\x04\x2d", b""]))
        ),
        "sync": entry(encode(Sync())),
        "of_no_type": entry(delimited(b""), "protocol"),
        "of_an_unknown_type": entry(delimited(b"\x08\x07"), "protocol"),
        "no_protobuf": entry(delimited(b"\xff\xff"), "protocol"),
        "of_4097_bytes": entry(b"\x81\x20", "protocol"),
    }


def offering(*addresses: str) -> bytes:
    """CONNECT with these multiaddrs, as libp2p would send it."""
    offered = [Multiaddr(address).to_bytes() for address in addresses]
    return whole(HolePunch(type=HolePunch.CONNECT, ObsAddrs=offered))


def whole(message: HolePunch) -> bytes:
    """A message as libp2p would send it."""
    return delimited(message.SerializeToString(deterministic=True))


def entry(data: bytes, error: str = "") -> dict[str, str]:
    """One vector without its meaning."""
    return {"bytes": data.hex(), **({"error": error} if error else {})}


def read(data: bytes) -> PunchMessage:
    """The message in `data`. Raises: RemoteProtocolError, also for bytes that are not exactly one message."""
    prefix = LengthPrefix()
    for place, byte in enumerate(data):
        length = prefix.feed(byte)
        if length is not None:
            message = data[place + 1 :]
            if len(message) != length:
                break
            return decode(message)
    raise RemoteProtocolError("these bytes are not one message")


def render() -> dict[str, str]:
    """The text of each vector file by its name."""
    files = {}
    for name, vector in vectors().items():
        found: dict[str, Any] = dict(vector)
        if "error" not in vector:
            found["meaning"] = meaning(read(bytes.fromhex(vector["bytes"])))
        files[f"{name}.json"] = json.dumps(found, indent=2, ensure_ascii=True) + "\n"
    return files


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for stale in FOLDER.glob("*.json"):
        stale.unlink()
    for file, text in render().items():
        (FOLDER / file).write_text(text, "utf-8")
