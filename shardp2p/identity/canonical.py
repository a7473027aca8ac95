"""Canonical bytes: one value has one form, so that what was signed can be rebuilt and compared. Pure.

Numbers are unsigned and big-endian; bytes and texts of variable length have their length, in one or two bytes, before
them. Layouts: docs/protocols/membership.md.
"""

from __future__ import annotations

from shardp2p.errors import RemoteProtocolError


class Reader:
    """Takes a value apart, field by field. Raises RemoteProtocolError when the bytes end early or go on."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._offset = 0
        self._what = what

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        end = self._offset + count
        if end > len(self._data):
            raise RemoteProtocolError(f"a {self._what} ends after {len(self._data)} bytes, in the middle of a field")
        taken = self._data[self._offset : end]
        self._offset = end
        return taken

    def number(self, width: int) -> int:
        """A number of `width` bytes."""
        return int.from_bytes(self.take(width), "big")

    def sized(self, width: int, longest: int) -> bytes:
        """Bytes with their length before them, in `width` bytes."""
        length = self.number(width)
        if length > longest:
            raise RemoteProtocolError(f"a {self._what} has a field of {length} bytes; at most {longest} are allowed")
        return self.take(length)

    def text(self, longest: int) -> str:
        """Printable UTF-8 of at most `longest` bytes, with its length before it in one byte."""
        try:
            text = self.sized(1, longest).decode("utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"a {self._what} has a text that is no UTF-8") from error
        if not text.isprintable():
            raise RemoteProtocolError(f"a {self._what} has a text that is not printable")
        return text

    def finish(self) -> None:
        """The value ends here."""
        if self._offset != len(self._data):
            raise RemoteProtocolError(f"a {self._what} goes on after its last field")


def number(value: int, width: int) -> bytes:
    """`value` in `width` bytes."""
    return value.to_bytes(width, "big")


def sized(data: bytes, width: int) -> bytes:
    """`data` with its length before it, in `width` bytes."""
    return number(len(data), width) + data
