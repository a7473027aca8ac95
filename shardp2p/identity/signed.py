"""Sealed values: bytes that say who signed them, and for what purpose. Pure. Layout: docs/protocols/membership.md.

The purpose (`domain`) is signed but not sent, so that a value signed for one cannot be passed off as another's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from shardp2p.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from shardp2p.identity.keys import PUBLIC_BYTES, Identity, peer_id_of
from shardp2p.vocabulary import PeerId

SIGNATURE_BYTES: Final = 64
SEAL_BYTES: Final = PUBLIC_BYTES + SIGNATURE_BYTES
"""By how much a sealed value is longer than its payload."""
MAX_PAYLOAD_BYTES: Final = 2**20
"""What is sealed is gossiped or kept in a DHT, which carries no more; a kind of value sets its own, smaller bound."""

_DOMAIN = re.compile(r"[a-z0-9./-]{1,64}")
_PREFIX: Final = b"shardp2p-signed-v1\0"


@dataclass(frozen=True, slots=True)
class Sealed:
    """A payload whose signature was checked, and the peer whose key made it."""

    signer: PeerId
    payload: bytes


def seal(identity: Identity, domain: str, payload: bytes) -> bytes:
    """`payload` signed for `domain` (as "coverage/1"): public key, signature, payload.

    Raises: LocalProtocolError for a payload above the limit.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise LocalProtocolError(f"a payload of {len(payload)} bytes is too long to sign")
    return identity.public_bytes + sign(identity, domain, payload) + payload


def unseal(data: bytes, domain: str, *, signer: PeerId | None = None) -> Sealed:
    """What `seal` was given, once the signature is checked; `signer`, where given, must have made it.

    Raises: RemoteProtocolError when it is too short or too long; IntegrityError for a wrong signature or signer.
    """
    if not SEAL_BYTES <= len(data) <= SEAL_BYTES + MAX_PAYLOAD_BYTES:
        raise RemoteProtocolError(f"a sealed value of {len(data)} bytes is too short or too long")
    public, signature, payload = data[:PUBLIC_BYTES], data[PUBLIC_BYTES:SEAL_BYTES], data[SEAL_BYTES:]
    claimed = peer_id_of(public)
    if signer is not None and claimed != signer:
        raise IntegrityError(f"signed by {claimed}, not by {signer}")
    verify_with(public, domain, payload, signature)
    return Sealed(claimed, bytes(payload))


def sign(identity: Identity, domain: str, payload: bytes) -> bytes:
    """The 64-byte signature of `payload` for `domain`, where the public key travels some other way."""
    return identity.sign(_signed_bytes(domain, payload))


def verify_with(public: bytes, domain: str, payload: bytes, signature: bytes) -> None:
    """Check a signature that `sign` made. Raises: IntegrityError, also where `public` is no Ed25519 key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _signed_bytes(domain, payload))
    except (InvalidSignature, ValueError) as error:
        raise IntegrityError(f"the signature of a {domain} value is wrong") from error


def _signed_bytes(domain: str, payload: bytes) -> bytes:
    if _DOMAIN.fullmatch(domain) is None:
        raise LocalProtocolError(f"{domain!r} is no domain of signatures")
    # The zero byte ends the domain: no two pairs of domain and payload give the same bytes.
    return _PREFIX + domain.encode("ascii") + b"\0" + payload
