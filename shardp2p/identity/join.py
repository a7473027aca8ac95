"""Join texts: what a person copies to join a swarm. Pure, but for `read_join`, which may read a file or stdin.

A text says what is wrong with it: its beginning, a character, its length, a mistyped part, a peer's address, or the
owner's signature. No error quotes more of it than one address. Layout: docs/protocols/membership.md.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardp2p.errors import ConfigError, IntegrityError, RemoteProtocolError
from shardp2p.identity.canonical import Reader, number, sized
from shardp2p.identity.keys import PUBLIC_BYTES, SEED_BYTES, Identity, peer_id_of, public_bytes_of
from shardp2p.identity.token import MAX_GRANT_BYTES, MAX_NAME_BYTES, Invite, hints_of, read_grant
from shardp2p.vocabulary import PeerId, SwarmId

PREFIX: Final = "shardp2p-join-"
MAX_PEERS: Final = 16
"""A joiner needs one that answers; a longer list belongs into a settings file."""
MAX_ADDRESS_BYTES: Final = 255
MAX_TEXT_CHARACTERS: Final = 8192
"""Above the longest: MAX_PEERS addresses and a grant, in base64."""

_INVITE_KIND: Final = 1
_OPEN_KIND: Final = 2
_HEAD_BYTES: Final = 3
_CHECKSUM_BYTES: Final = 4
_STRANGE = re.compile(r"[^A-Za-z0-9_-]")
_ADDRESS = re.compile(r"/[\x21-\x7e]+")
_ADVICE: Final = "ask the swarm's owner to send it again, best as a file"


@dataclass(frozen=True, slots=True)
class OpenSwarm:
    """Where an open swarm is. Nothing in it is secret or signed: any peer of it can write one with its own address."""

    swarm: SwarmId
    name: str
    peers: tuple[str, ...]


Join = Invite | OpenSwarm


def check_peer_address(address: str) -> str:
    """`address`, if it could be a multiaddr that ends with a peer id. Raises: ConfigError."""
    peer = address.rpartition("/p2p/")[2]
    if _ADDRESS.fullmatch(address) is None or len(address) > MAX_ADDRESS_BYTES or "/p2p/" not in address:
        raise ConfigError(f"{address[:80]!r} is no peer's address; it looks like /ip4/192.0.2.7/tcp/4001/p2p/12D3KooW…")
    try:
        public_bytes_of(PeerId(peer))
    except ConfigError as error:
        raise ConfigError(f"the address {address[:80]!r} does not end with a peer id: {error.message}") from error
    return address


def write_join(join: Join) -> str:
    """The text of an invite or of an open swarm's place. Raises: ConfigError for a peer's address or their number."""
    if len(join.peers) > MAX_PEERS:
        raise ConfigError(f"{len(join.peers)} addresses are too many for one text; name the best {MAX_PEERS}")
    addresses = [sized(check_peer_address(peer).encode("ascii"), 1) for peer in join.peers]
    peers = number(len(addresses), 1) + b"".join(addresses)
    if isinstance(join, Invite):
        kind, body = _INVITE_KIND, peers + sized(join.sealed_grant, 2) + join.seed
    else:
        kind, body = _OPEN_KIND, peers + public_bytes_of(PeerId(join.swarm)) + sized(join.name.encode("utf-8"), 1)
    data = number(kind, 1) + sized(body, 2)
    encoded = base64.urlsafe_b64encode(data + _checksum(data)).decode("ascii")
    return PREFIX + encoded.rstrip("=")


def parse_join(text: str) -> Join:
    """What a join text stands for; spaces and line ends within it do not matter. An invite may have expired.

    Raises: ConfigError that says which part of the text is wrong.
    """
    kind, body = _body(text)
    if kind not in (_INVITE_KIND, _OPEN_KIND):
        raise ConfigError(f"the join token is of the unknown kind {kind}; it may need a newer shardp2p")
    reader = Reader(body, "join token")
    try:
        peers = _peers(reader)
        if kind == _INVITE_KIND:
            sealed_grant, seed = reader.sized(2, MAX_GRANT_BYTES), reader.take(SEED_BYTES)
            reader.finish()
            return _invite(sealed_grant, peers, seed)
        swarm = SwarmId(peer_id_of(reader.take(PUBLIC_BYTES)))
        name = reader.text(MAX_NAME_BYTES)
        reader.finish()
    except RemoteProtocolError as error:
        raise ConfigError(f"the join token is malformed: {error.message}; {_ADVICE}") from error
    return OpenSwarm(swarm, name, peers)


def read_join(text_or_path: str) -> Join:
    """The join text that is given itself, stands in a file, or comes from standard input (`-`).

    Raises: ConfigError, also when the file cannot be read.
    """
    given = text_or_path.strip()
    if given.startswith(PREFIX):
        return parse_join(given)
    if given == "-":
        return _parse_from("standard input", sys.stdin.read(MAX_TEXT_CHARACTERS + 1))
    path = Path(given).expanduser()
    try:
        with path.open(encoding="ascii") as file:
            text = file.read(MAX_TEXT_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file {path} holds no join token: it is no text") from error
    except (OSError, ValueError) as error:
        # What was given may be a token without its beginning, so it is not quoted.
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        raise ConfigError(
            f"--join is neither a token ({PREFIX}…) nor a file that can be read ({reason}), nor the name of "
            "a swarm of yours, or of one that was joined here"
        ) from error
    return _parse_from(f"the file {path}", text)


def _parse_from(where: str, text: str) -> Join:
    """As `parse_join`, for what was read from somewhere: errors say from where."""
    if not text.strip():
        raise ConfigError(f"{where} is empty: it has no join token; {_ADVICE}")
    try:
        return parse_join(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from error


def _invite(sealed_grant: bytes, peers: tuple[str, ...], seed: bytes) -> Invite:
    try:
        grant = read_grant(sealed_grant)
    except IntegrityError as error:
        raise ConfigError(f"the join token's signature is wrong: no swarm's owner made it; {_ADVICE}") from error
    if Identity.from_seed(seed).public_bytes != grant.invite:
        raise ConfigError(f"the join token's secret does not belong to what its owner signed; {_ADVICE}")
    if hints_of(peers) != grant.hints:
        raise ConfigError(f"the join token's peer list is not the one that its owner signed; {_ADVICE}")
    return Invite(grant, sealed_grant, peers, seed)


def _body(text: str) -> tuple[int, bytes]:
    """The kind and the bytes of a join text whose checksum is right."""
    joined = "".join(text.split())
    if not joined.startswith(PREFIX):
        raise ConfigError(f"this is no join token: it must begin with {PREFIX}")
    if len(joined) > MAX_TEXT_CHARACTERS:
        raise ConfigError(f"the join token is too long: it has more than {MAX_TEXT_CHARACTERS} characters")
    encoded = joined[len(PREFIX) :]
    if strange := _STRANGE.search(encoded):
        place = len(PREFIX) + strange.start() + 1
        raise ConfigError(f"the join token has a wrong character at place {place}; copy it again, or use a file")
    head = _decode(encoded[: _HEAD_BYTES * 4 // 3])
    wanted = -(-8 * (_HEAD_BYTES + int.from_bytes(head[1:], "big") + _CHECKSUM_BYTES) // 6)
    if len(head) < _HEAD_BYTES or len(encoded) < wanted:
        wanted_text = f" of {wanted + len(PREFIX)}" if len(head) == _HEAD_BYTES else ""
        raise ConfigError(
            f"the join token is cut short: it has {len(joined)}{wanted_text} characters; copy all of it, or use a file"
        )
    if len(encoded) > wanted:
        raise ConfigError(
            f"the join token goes on after its end: it has {len(joined)} characters instead of {wanted + len(PREFIX)}"
        )
    data = _decode(encoded)
    if _checksum(data[:-_CHECKSUM_BYTES]) != data[-_CHECKSUM_BYTES:]:
        raise ConfigError("the join token is mistyped: its checksum is wrong; copy it again, or use a file")
    return data[0], data[_HEAD_BYTES:-_CHECKSUM_BYTES]


def _decode(encoded: str) -> bytes:
    """The bytes of base64url without padding. Characters that complete no byte are left out."""
    usable = encoded if len(encoded) % 4 != 1 else encoded[:-1]
    return base64.urlsafe_b64decode(usable + "=" * (-len(usable) % 4))


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_CHECKSUM_BYTES]


def _peers(reader: Reader) -> tuple[str, ...]:
    count = reader.number(1)
    if count > MAX_PEERS:
        raise RemoteProtocolError(f"it has {count} peers; at most {MAX_PEERS} are allowed")
    peers = []
    for index in range(1, count + 1):
        address = reader.sized(1, MAX_ADDRESS_BYTES).decode("ascii", "replace")
        try:
            peers.append(check_peer_address(address))
        except ConfigError as error:
            raise ConfigError(f"the join token's peer {index} of {count} is wrong: {error.message}") from error
    return tuple(peers)
