"""ShardError and its six kinds: whose fault it is, and what happens next.

A message is a sentence for its reader that says what to do next. Foreign exceptions become one of these at the
edge where they arise (host/ and file edges), and nowhere else.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class ShardError(Exception):
    """The root of everything this project raises on purpose. `peer` is the id of the peer to blame, where known."""

    exit_code: ClassVar[int] = 1
    wire_status: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, peer: str | None = None) -> None:
        super().__init__(message)
        self.peer = peer

    @property
    def message(self) -> str:
        """The one line that a user reads."""
        return str(self)


class ConfigError(ShardError):
    """The user asked for something impossible, or a setting is wrong."""

    exit_code = 2
    wire_status = "config"
    http_status = 400


class LocalProtocolError(ShardError):
    """We broke our own rules: a bug here, let it crash."""

    exit_code = 1
    wire_status = "internal"
    http_status = 500


class RemoteProtocolError(ShardError):
    """The peer broke the specification: reset the stream and count a strike."""

    exit_code = 3
    wire_status = "protocol"
    http_status = 502


class IntegrityError(ShardError):
    """A digest or a signature is wrong: strike, drop that source, never retry there."""

    exit_code = 4
    wire_status = "integrity"
    http_status = 502


class PeerUnavailableError(ShardError):
    """A peer is gone or cannot be reached: repair, or try another."""

    exit_code = 3
    wire_status = "unavailable"
    http_status = 503


class OverloadedError(ShardError):
    """A peer declined because it has no room: back off."""

    exit_code = 3
    wire_status = "overloaded"
    http_status = 429


BY_WIRE_STATUS: dict[str, type[ShardError]] = {
    kind.wire_status: kind
    for kind in (
        ConfigError,
        LocalProtocolError,
        RemoteProtocolError,
        IntegrityError,
        PeerUnavailableError,
        OverloadedError,
    )
}


NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""What writing fails by where the disk is full, or the user's share of it."""


def write_advice(error: OSError, otherwise: str = "") -> str:
    """What to do where a file cannot be written, as the end of a line: to free space, or else `otherwise`."""
    advice = "free some space there" if error.errno in NO_ROOM else otherwise
    return f"; {advice}" if advice else ""


MAX_REPORT_CHARACTERS = 200
"""Of what a peer reports: an error is for its reader to read, however much the peer says."""


def clipped_report(text: str, most: int = MAX_REPORT_CHARACTERS) -> str:
    """At most so many characters of a text that a peer sent."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def error_from_wire(status: str, message: str, peer: str | None = None) -> ShardError:
    """The error that a peer reported. Its bugs are none of ours; an unknown status is its own fault as well."""
    kind = BY_WIRE_STATUS.get(status, RemoteProtocolError)
    if kind is LocalProtocolError:
        return RemoteProtocolError(f"internal error: {message}", peer)
    return kind(message, peer)


@contextmanager
def blaming(peer: str) -> Iterator[None]:
    """Let every ShardError from within that names no peer name this one."""
    try:
        yield
    except ShardError as error:
        if error.peer is None:
            error.peer = peer
        raise


def first_of(group: BaseExceptionGroup[ShardError]) -> ShardError:
    """The ShardError that comes first in a group that holds nothing else."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, ShardError):
        raise LocalProtocolError(f"a {type(error).__name__} among our own errors")
    return error
