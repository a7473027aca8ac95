"""Reading a JSON object member by member, where a bad one is told in one line. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

from shardp2p.errors import ConfigError

NAME_CHARACTERS: Final = 60
"""Of an unknown name in a message."""

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


class Fields:
    """The members of a JSON object, each read once; `finish` refuses those that nobody read."""

    def __init__(self, what: str, value: object) -> None:
        self._what = what
        if not isinstance(value, dict):
            raise ConfigError(f"{what} is {shown(value)}; it must be an object, for example {{}}")
        self._left: dict[str, Any] = dict(value)

    def fail(self, reason: str) -> NoReturn:
        """Raises: ConfigError with this reason, and of what it is."""
        raise ConfigError(f"{self._what}: {reason}")

    def ignore(self, names: tuple[str, ...]) -> None:
        """Leave these to others."""
        for name in names:
            self._left.pop(name, None)

    def has(self, name: str) -> bool:
        """Whether there is such a member that nobody read yet."""
        return name in self._left

    def take(self, name: str) -> object:
        """A member as it is; None where there is none."""
        return self._left.pop(name, None)

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """A number in these bounds."""
        value = self._left.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            self.fail(f"{name} is {shown(value)}; it must be a number from {least:g} to {most:g}")
        return float(value)

    def optional_number(self, name: str, default: float | None, least: float, most: float) -> float | None:
        """A number in these bounds, or null."""
        if self._left.get(name, default) is None:
            self._left.pop(name, None)
            return None
        return self.number(name, default or 0.0, least, most)

    def flag(self, name: str) -> bool:
        """A boolean, false where there is none."""
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            self.fail(f"{name} is {shown(value)}; it must be true or false")
        return value

    def text(self, name: str, default: str) -> str:
        """A text."""
        value = self._left.pop(name, default)
        if not isinstance(value, str):
            self.fail(f"{name} is {shown(value)}; it must be a text")
        return value

    def one_of(self, name: str, default: str | None, allowed: tuple[str, ...]) -> str:
        """One of these words."""
        value = self._left.pop(name, default)
        if value not in allowed:
            self.fail(f"{name} is {shown(value)}; it must be one of {', '.join(allowed)}")
        assert isinstance(value, str)
        return value

    def optional_name(self, name: str) -> str | None:
        """A name, or None."""
        value = self._left.pop(name, None)
        return None if value is None else self._name(value)

    def names(self, name: str) -> list[str]:
        """A list of names, none twice."""
        values = self._left.pop(name, [])
        if not isinstance(values, list):
            self.fail(f"{name} is {shown(values)}; it must be a list of names")
        names = [self._name(value) for value in values]
        if len(set(names)) < len(names):
            self.fail(f"{name} has a name twice")
        return names

    def ports(self, name: str) -> tuple[int, ...] | None:
        """A list of TCP ports, or None."""
        values = self._left.pop(name, None)
        if values is None:
            return None
        if not isinstance(values, list) or not all(type(port) is int and 0 < port < 65536 for port in values):
            self.fail(f"{name} is {shown(values)}; it must be a list of TCP ports, for example [443]")
        return tuple(values)

    def named(self, name: str) -> dict[str, Any]:
        """An object whose keys are names."""
        values = self._left.pop(name, {})
        if not isinstance(values, dict):
            self.fail(f"{name} is {shown(values)}; it must be an object with names as its keys")
        return {self._name(key): value for key, value in values.items()}

    def pairs(self, name: str) -> dict[str, float]:
        """An object of numbers."""
        values = self._left.pop(name, {})
        if not isinstance(values, dict):
            self.fail(f"{name} is {shown(values)}; it must be an object such as {{'a-b': 35.1}}")
        read = Fields(f"{self._what}, {name}", values)
        return {pair: read.number(pair, 0.0, 0.0, 10_000.0) for pair in values}

    def rest(self) -> tuple[str, ...]:
        """The names that nobody read yet."""
        return tuple(self._left)

    def finish(self) -> None:
        """Raises: ConfigError for what nobody read."""
        for name in self.rest():
            self.fail(f"{name[:NAME_CHARACTERS]!r} is not known here; see docs/lab.md, and docs/speed.md for profiles")

    def _name(self, value: object) -> str:
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            self.fail(f"{shown(value)} is no name; a name has at most 32 of a-z, 0-9 and - inside")
        return value


def shown(value: object) -> str:
    """A JSON value as a message shows it."""
    text = (
        json.dumps(value) if value is None or isinstance(value, bool | int | float | str | list | dict) else repr(value)
    )
    return text if len(text) <= 60 else text[:57] + "..."
