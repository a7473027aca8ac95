"""Which records the directory keeps, and which of several is the newest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from libp2p.records.validator import Validator

from shardp2p.errors import ConfigError, RemoteProtocolError, ShardError
from shardp2p.host.addresses import parse_peer_id
from shardp2p.vocabulary import PeerId

MAX_VALUE_BYTES: Final = 16 * 1024
"""A record of a peer with a few layer ranges and links takes some KiB; libp2p itself would keep a megabyte."""

MAX_KEY_CHARACTERS: Final = 128

Validate = Callable[[PeerId, bytes], int]
"""Gives the sequence of a peer's record. Raises: RemoteProtocolError or IntegrityError for one that is not its own."""


class RecordValidator(Validator):
    """Accepts `/namespace/peer-id` with a value that `validate` accepts as that peer's."""

    def __init__(self, namespace: str, validate: Validate) -> None:
        self._prefix = f"/{namespace}/"
        self._validate = validate

    def sequence_of(self, key: str, value: bytes) -> int:
        """The record's sequence. Raises: RemoteProtocolError, IntegrityError."""
        if len(value) > MAX_VALUE_BYTES:
            raise RemoteProtocolError(f"a record of {len(value)} bytes; at most {MAX_VALUE_BYTES} are kept")
        if len(key) > MAX_KEY_CHARACTERS or not key.startswith(self._prefix):
            raise RemoteProtocolError(f"a record under {key[:MAX_KEY_CHARACTERS]!r}, which is no peer's key here")
        try:
            peer = parse_peer_id(key.removeprefix(self._prefix))
        except ConfigError as error:
            raise RemoteProtocolError(f"a record under {key!r}, which names no peer") from error
        return self._validate(peer, value)

    def best(self, key: str, values: Sequence[bytes]) -> bytes | None:
        """The valid value with the highest sequence, the last of equal ones; None when none is valid."""
        best: tuple[int, bytes] | None = None
        for value in dict.fromkeys(values):
            try:
                sequence = self.sequence_of(key, value)
            except ShardError:
                continue
            if best is None or sequence >= best[0]:
                best = sequence, value
        return None if best is None else best[1]

    # What libp2p calls.

    def validate(self, key: str, value: bytes) -> None:
        """Raises: ValueError, which libp2p takes as a refusal, for a record that is not the key's peer's."""
        try:
            self.sequence_of(key, value)
        except ShardError as error:
            raise ValueError(error.message) from error

    def select(self, key: str, values: list[bytes]) -> int:
        """The index of the best value, the last of equal ones: a record that is put again counts as renewed."""
        best = self.best(key, values)
        return max((index for index, value in enumerate(values) if value == best), default=0)
