"""Regenerates tests/vectors/membership byte for byte: `python -m tests.vectors.regenerate_membership`.

Each file has the bytes of one value, and what they mean or which kind of error they are. Keys are from fixed seeds, and
Ed25519 signatures are deterministic.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from shardp2p.identity.canonical import number, sized
from shardp2p.identity.join import PREFIX, OpenSwarm, parse_join, write_join
from shardp2p.identity.keys import Identity
from shardp2p.identity.revocation import read_revocation, sign_revocation
from shardp2p.identity.signed import seal, sign, unseal
from shardp2p.identity.token import read_grant, read_member
from shardp2p.vocabulary import SwarmId
from tests.support.members import NOW_S, OTHER_OWNER, OWNER, invite, peer

FOLDER: Final = Path(__file__).parent / "membership"
SWARM: Final = SwarmId(OWNER.peer_id)
PEERS: Final = (f"/ip4/192.0.2.7/tcp/4001/p2p/{peer(1).peer_id}", f"/dns4/a.example/tcp/4001/p2p/{peer(2).peer_id}")

READERS: Final[dict[str, Callable[[bytes], object]]] = {
    "sealed": lambda data: unseal(data, "example/1"),
    "grant": read_grant,
    "member": read_member,
    "revocation": lambda data: read_revocation(data, SWARM),
    "join": lambda data: parse_join(data.decode("ascii")),
}


def text_of(kind: int, body: bytes) -> str:
    """A join text of any kind and body, with a right length and checksum."""
    data = number(kind, 1) + sized(body, 2)
    data += hashlib.sha256(data).digest()[:4]
    return PREFIX + base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def bound_to_another() -> bytes:
    """A proof in which a peer uses an invite that is for another."""
    made = invite(bound_to=peer(2).peer_id)
    claim = peer(1).public_bytes + number(int(NOW_S), 8)
    digest = hashlib.sha256(made.sealed_grant).digest()
    signature = sign(Identity.from_seed(made.seed), "member/1", digest + claim)
    return sized(made.sealed_grant, 2) + claim + signature


def before_the_invite() -> bytes:
    """A proof that claims to be older than its invite."""
    made = invite()
    claim = peer(1).public_bytes + number(int(NOW_S) - 1, 8)
    digest = hashlib.sha256(made.sealed_grant).digest()
    signature = sign(Identity.from_seed(made.seed), "member/1", digest + claim)
    return sized(made.sealed_grant, 2) + claim + signature


def changed(data: bytes, place: int) -> bytes:
    """`data` with the lowest bit of one byte turned."""
    spoilt = bytearray(data)
    spoilt[place] ^= 1
    return bytes(spoilt)


def vectors() -> dict[str, dict[str, str]]:
    """What each vector is of, its bytes, and the kind of error where it is none."""
    plain, full = invite(), invite(role="client", uses=3, bound_to=peer(1).peer_id, peers=PEERS)
    grant, member = plain.sealed_grant, plain.claim(peer(1), NOW_S + 60)
    revocation = sign_revocation(OWNER, "invite", plain.grant.invite, NOW_S)
    token = write_join(invite(peers=PEERS))
    return {
        "sealed": entry("sealed", seal(OWNER, "example/1", b"payload")),
        "sealed_nothing": entry("sealed", seal(OWNER, "example/1", b"")),
        "sealed_for_another_purpose": entry("sealed", seal(OWNER, "example/2", b"payload"), "integrity"),
        "sealed_cut_short": entry("sealed", bytes(95), "protocol"),
        "grant": entry("grant", grant),
        "grant_with_every_limit": entry("grant", full.sealed_grant),
        "grant_with_a_changed_signature": entry("grant", changed(grant, 40), "integrity"),
        "grant_of_an_unknown_role": entry("grant", resealed(grant, 32, 9), "protocol"),
        "grant_with_a_byte_too_many": entry("grant", seal(OWNER, "grant/1", grant[96:] + b"\0"), "protocol"),
        "member": entry("member", member),
        "member_of_a_counted_and_bound_invite": entry("member", full.claim(peer(1), NOW_S)),
        "member_by_another_peers_invite": entry("member", bound_to_another(), "integrity"),
        "member_before_its_invite": entry("member", before_the_invite(), "integrity"),
        "member_with_another_peers_key": entry("member", changed(member, -100), "integrity"),
        "member_cut_short": entry("member", member[:-1], "protocol"),
        "revocation_of_an_invite": entry("revocation", revocation),
        "revocation_of_a_peer": entry("revocation", sign_revocation(OWNER, "peer", peer(1).public_bytes, NOW_S)),
        "revocation_by_another": entry(
            "revocation", sign_revocation(OTHER_OWNER, "peer", peer(1).public_bytes, NOW_S), "integrity"
        ),
        "revocation_of_an_unknown_kind": entry(
            "revocation", seal(OWNER, "revocation/1", b"\x09" + revocation[97:]), "protocol"
        ),
        "join_by_invite": entry("join", token.encode("ascii")),
        "join_of_an_open_swarm": entry("join", write_join(OpenSwarm(SWARM, "lab", PEERS)).encode("ascii")),
        "join_cut_short": entry("join", token[:-1].encode("ascii"), "config"),
        "join_mistyped": entry("join", (token[:-9] + "AAAA" + token[-5:]).encode("ascii"), "config"),
        "join_of_an_unknown_kind": entry("join", text_of(9, b"").encode("ascii"), "config"),
    }


def resealed(grant: bytes, place: int, value: int) -> bytes:
    """A grant signed again with another byte in its payload."""
    payload = bytearray(grant[96:])
    payload[place] = value
    return seal(OWNER, "grant/1", bytes(payload))


def entry(what: str, data: bytes, error: str = "") -> dict[str, str]:
    """One vector without its meaning."""
    return {"what": what, "bytes": data.hex(), **({"error": error} if error else {})}


def read(what: str, data: bytes) -> object:
    """The value in bytes that are said to be one of READERS."""
    return READERS[what](data)


def meaning(value: object) -> Any:
    """A value as JSON: dataclasses as objects that name their type, bytes in hexadecimal, tuples as lists."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: meaning(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [meaning(item) for item in value]
    return value


def render() -> dict[str, str]:
    """The text of each vector file by its name."""
    files = {}
    for name, vector in vectors().items():
        found: dict[str, Any] = dict(vector)
        if "error" not in vector:
            found["meaning"] = meaning(read(vector["what"], bytes.fromhex(vector["bytes"])))
        files[f"{name}.json"] = json.dumps(found, indent=2, ensure_ascii=True) + "\n"
    return files


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for stale in FOLDER.glob("*.json"):
        stale.unlink()
    for file, text in render().items():
        (FOLDER / file).write_text(text, "utf-8")
