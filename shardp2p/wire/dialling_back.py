"""Asking a peer to dial us back: whether others reach us, and where they see us. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DialOutcome = Literal["open", "other", "refused", "timeout"]
"""How a dial-back to a port went: the asker itself answered, something else did, nothing listens, nothing came back."""


@dataclass(frozen=True, slots=True)
class AskDialBack:
    """A peer to one that sees it from outside: connect to these ports of the address from which I ask."""

    nonce: bytes
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DialBackResult:
    """The answer: the address and port from which the asking connection came, and how it went at each port."""

    nonce: bytes
    host: str
    port: int
    outcomes: tuple[DialOutcome, ...]


DialBackMessage = AskDialBack | DialBackResult
