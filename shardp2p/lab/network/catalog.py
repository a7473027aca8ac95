"""The networks that are shipped: profiles of measured paths, and networks of routers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from shardp2p.errors import ConfigError
from shardp2p.lab.network.description import Description
from shardp2p.lab.network.reading import parse_description

MAX_BYTES: Final = 1 << 20
"""Of a file that describes a network; the shipped ones have some hundreds."""

_FOLDERS: Final = ("profiles", "networks")


def shipped_networks() -> dict[str, Description]:
    """All of them by name, profiles first."""
    return {name: parse_description(file.read_bytes()) for name, file in _shipped()}


def read_network(name_or_file: str) -> Description:
    """The shipped network of that name, or the one that a file describes. Raises: ConfigError."""
    try:
        return parse_description(read_text(name_or_file))
    except ConfigError as error:
        if any(name == name_or_file for name, _ in _shipped()) or error.message.startswith(name_or_file):
            raise
        raise ConfigError(f"{name_or_file}: {error.message}") from None


def read_text(name_or_file: str) -> bytes:
    """What the shipped network of that name says, or a file. Raises: ConfigError."""
    for name, shipped in _shipped():
        if name == name_or_file:
            return shipped.read_bytes()
    path = Path(name_or_file)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)  # a device or a pipe tells no size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{name_or_file or 'an empty name'} is neither a shipped network (`shardp2p lab list`) nor a file that can "
            f"be read: {reason}"
        ) from None
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{path} has more than {MAX_BYTES} bytes, too many for the description of a network")
    return text


def _shipped() -> Iterator[tuple[str, Traversable]]:
    for folder in _FOLDERS:
        directory = files("shardp2p.lab") / folder
        for file in sorted(directory.iterdir(), key=lambda file: file.name):
            if file.name.endswith(".json"):
                yield file.name.removesuffix(".json"), file
