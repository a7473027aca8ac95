"""Sealed values that everybody should have, as revocations: opaque bytes of a kind, the newest of each subject. Pure.

A kind's validator says what a value is about and how new it is; for each subject the newest is kept and passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from shardp2p.errors import OverloadedError, RemoteProtocolError
from shardp2p.wire.codec_gossip import DIGEST_BYTES, MAX_VALUE_BYTES
from shardp2p.wire.news import ValueId, ValueNews

MAX_VALUES: Final = 4096
"""Of each kind; every peer keeps them all."""

REVOCATIONS: Final = 1
"""The kind of revocations. Further kinds are numbered from here."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a value is about, and how new it is. Two different values about one subject have different versions."""

    key: bytes
    version: int


Validator = Callable[[bytes], Subject]
"""Reads the sealed bytes of one kind. Raises RemoteProtocolError or IntegrityError."""


class SharedValues:
    """The newest value about each subject, for each kind that we know."""

    def __init__(self, validators: Mapping[int, Validator]) -> None:
        self._validators = dict(validators)
        self._newest: dict[tuple[int, bytes], tuple[int, ValueId]] = {}
        self._values: dict[ValueId, bytes] = {}
        self._counts = dict.fromkeys(validators, 0)

    def ids(self) -> Iterator[ValueId]:
        """Every value that we have."""
        return iter(self._values)

    def of_kind(self, kind: int) -> tuple[bytes, ...]:
        """The sealed bytes of every value of that kind."""
        return tuple(sealed for value, sealed in self._values.items() if value.kind == kind)

    def get(self, value: ValueId) -> ValueNews | None:
        """That value, if we have it."""
        sealed = self._values.get(value)
        return None if sealed is None else ValueNews(value.kind, sealed)

    def lacks(self, value: ValueId) -> bool:
        """Whether we want it: not the values of kinds that a newer version made, nor more than fit."""
        count = self._counts.get(value.kind)
        return count is not None and count < MAX_VALUES and value not in self._values

    def add(self, news: ValueNews) -> ValueId | None:
        """Take in a value; its id where it is new, None where we have it or a newer one.

        Raises: RemoteProtocolError, IntegrityError; OverloadedError when there are too many.
        """
        validator = self._validators.get(news.kind)
        if validator is None:
            return None
        if len(news.sealed) > MAX_VALUE_BYTES:
            raise RemoteProtocolError(f"a value of {len(news.sealed)} bytes; at most {MAX_VALUE_BYTES} are allowed")
        subject = validator(news.sealed)
        place = news.kind, subject.key
        version, before = self._newest.get(place, (-1, None))
        if subject.version <= version:
            return None
        if before is None and self._counts[news.kind] >= MAX_VALUES:
            raise OverloadedError(f"there are {MAX_VALUES} values of kind {news.kind}, which is all that a peer keeps")
        if before is None:
            self._counts[news.kind] += 1
        else:
            del self._values[before]
        value = value_id(news)
        self._newest[place] = subject.version, value
        self._values[value] = news.sealed
        return value


def value_id(news: ValueNews) -> ValueId:
    """How a value is named in offers and wants."""
    return ValueId(news.kind, sha256(news.sealed).digest()[:DIGEST_BYTES])
