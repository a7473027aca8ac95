"""Files that only this user can read, which appear whole or not at all, or grow by whole lines."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from shardp2p.errors import ConfigError, write_advice


def write_private(path: Path, data: bytes, *, may_replace: bool = True) -> None:
    """Write `data` to `path` with mode 0600. Raises: ConfigError, also when it exists and must not be replaced."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if may_replace:
                unfinished.replace(path)
            else:
                os.link(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"the file {path} exists already; name another, or remove it") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}{write_advice(error)}") from error


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Add lines to a private file, which several processes may do at once. Raises: ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0, os.SEEK_END)
            # A line that was cut short, as by a full disk, must not spoil the next one.
            if file.tell() and os.pread(descriptor, 1, file.tell() - 1) != b"\n":
                file.write(b"\n")
            file.write("".join(f"{line}\n" for line in lines).encode("ascii"))
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}{write_advice(error)}") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a file; none where there is no file. Raises: ConfigError when it cannot be read."""
    try:
        return path.read_text("ascii", "replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
