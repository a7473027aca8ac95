"""The key of a peer: made once, kept in one private file, used by one process at a time.

The file holds libp2p's own serialization of an Ed25519 private key (libp2p specs, peer-ids: protobuf PrivateKey),
so go-libp2p, kubo and rust-libp2p read it too.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import base58
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shardp2p.errors import ConfigError, write_advice
from shardp2p.vocabulary import PeerId

SEED_BYTES = 32
PUBLIC_BYTES = 32
_PUBLIC_KEY_PREFIX = bytes.fromhex("08011220")
"""protobuf PublicKey: key type 1 (Ed25519), then 32 bytes."""
_MULTIHASH_PREFIX = bytes((0x00, len(_PUBLIC_KEY_PREFIX) + PUBLIC_BYTES)) + _PUBLIC_KEY_PREFIX
_PEER_ID_CHARACTERS = 52
KEPT_IDS = 16_384
"""Peer ids whose keys are kept at hand, since decoding base58 is slow: the largest view, in some 4 MB."""
_PRIVATE_KEY_PREFIX = bytes.fromhex("08011240")
"""protobuf PrivateKey: key type 1 (Ed25519), then 64 bytes, the seed and the public key."""
_FILE_BYTES = len(_PRIVATE_KEY_PREFIX) + 2 * SEED_BYTES


class IdentityHeldError(ConfigError):
    """Another process runs with this identity now."""


@dataclass(frozen=True)
class Identity:
    """An Ed25519 private key and the peer id that follows from it."""

    private_key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls) -> Identity:
        """A new random identity that lives no longer than the process, for clients."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The identity of a 32-byte seed (RFC 8032 private key)."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @cached_property
    def peer_id(self) -> PeerId:
        """The peer id of the public key."""
        return peer_id_of(self.public_bytes)

    @property
    def public_bytes(self) -> bytes:
        """The 32-byte public key."""
        return self.private_key.public_key().public_bytes_raw()

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes. Only the host (for the handshake) and the key file need them."""
        return self.private_key.private_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        """The 64-byte Ed25519 signature of `data`."""
        return self.private_key.sign(data)


def peer_id_of(public: bytes) -> PeerId:
    """The peer id of a 32-byte public key: base58btc of the identity multihash of the protobuf public key (libp2p
    specs, peer-ids).
    """
    return PeerId(base58.b58encode(_MULTIHASH_PREFIX + public).decode("ascii"))


@lru_cache(maxsize=KEPT_IDS)
def public_bytes_of(peer: PeerId) -> bytes:
    """The 32-byte Ed25519 public key that a peer id carries. Raises: ConfigError where it carries none."""
    # Base58 takes quadratic time, and a peer id has one length.
    try:
        multihash = base58.b58decode(peer) if len(peer) <= _PEER_ID_CHARACTERS else b""
    except ValueError:
        multihash = b""
    public = multihash[len(_MULTIHASH_PREFIX) :]
    if len(public) != PUBLIC_BYTES or peer_id_of(public) != peer:
        raise ConfigError(f"{peer[:64]!r} is no peer id of an Ed25519 key; it looks like 12D3KooW…")
    return public


def load_or_create(path: Path) -> Identity:
    """The identity kept in `path`; a new one is made and kept there when the file does not exist.

    The file has mode 0600 and appears whole or not at all; of two processes that make it at once, both get the
    same key. Raises: ConfigError when the file is readable by others, truncated, no key, or cannot be made.
    """
    try:
        return _load(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(f"cannot read the identity {path}: {error.strerror}") from error
    try:
        _create(path, Identity.generate())
        return _load(path)
    except OSError as error:
        raise ConfigError(
            f"cannot make the identity {path}: {error.strerror}{write_advice(error, 'make its directory writable')}, "
            "or name another file with --identity FILE"
        ) from error


def _load(path: Path) -> Identity:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError(f"the identity {path} is no regular file; name another with --identity FILE")
        if stat.S_IMODE(mode) & 0o077:
            raise ConfigError(f"other users can read the identity {path}; run: chmod 600 {path}")
        encoded = file.read(_FILE_BYTES + 1)
    return _decode(encoded, path)


def _decode(encoded: bytes, path: Path) -> Identity:
    advice = f"restore it from a backup, or delete {path} to become a new peer"
    seed = encoded[len(_PRIVATE_KEY_PREFIX) : len(_PRIVATE_KEY_PREFIX) + SEED_BYTES]
    if not encoded or not encoded.startswith(_PRIVATE_KEY_PREFIX[: len(encoded)]):
        raise ConfigError(f"the file {path} holds no Ed25519 key; {advice}")
    if len(encoded) != _FILE_BYTES:
        raise ConfigError(f"the identity {path} has the wrong length ({len(encoded)} bytes of {_FILE_BYTES}); {advice}")
    identity = Identity.from_seed(seed)
    if encoded != _encode(identity):
        raise ConfigError(f"the identity {path} is damaged: its two halves do not belong together; {advice}")
    return identity


def _encode(identity: Identity) -> bytes:
    return _PRIVATE_KEY_PREFIX + identity.seed + identity.public_bytes


def _create(path: Path, identity: Identity) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_encode(identity))
            file.flush()
            os.fsync(file.fileno())
        # A link, not a rename: it never replaces the key that another process has just made.
        with suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        unfinished.unlink()


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """While inside, no other process can hold the identity in `path`.

    The lock is the kernel's, on a file beside it, and ends with the process however it ends.
    Raises: IdentityHeldError, a ConfigError, that names the process that holds it.
    """
    if not path.name:
        raise ConfigError(f"the identity {path} is a directory; name a file with --identity FILE")
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        lock_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot lock the identity {path}: {lock_path}: {error.strerror}{write_advice(error)}"
        ) from error
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = file.read(16).decode("ascii", "replace").strip() or "unknown"
            raise IdentityHeldError(
                f"another shardp2p process (pid {holder}) already runs with the identity {path}; "
                "stop it, or give this one its own with --identity FILE"
            ) from error
        # Where the disk is full, whoever meets the lock reads no pid; held it is all the same.
        with suppress(OSError):
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode("ascii"))
        yield
