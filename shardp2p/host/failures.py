"""Which foreign exceptions mean that a connection or a handshake failed, whoever's bytes caused it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio
from cryptography.exceptions import InvalidKey, InvalidSignature, InvalidTag, UnsupportedAlgorithm
from google.protobuf.message import DecodeError
from libp2p.exceptions import BaseLibp2pError
from nacl.exceptions import CryptoError
from noise.exceptions import (
    NoiseHandshakeError,
    NoiseInvalidMessage,
    NoiseMaxNonceError,
    NoiseValidationError,
    NoiseValueError,
)

CONNECTION_FAILURES: Final[tuple[type[Exception], ...]] = (
    BaseLibp2pError,
    OSError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    NoiseInvalidMessage,
    NoiseMaxNonceError,
    NoiseValueError,
)
"""What reading and writing an established connection raises."""

NEGOTIATION_FAILURES: Final[tuple[type[Exception], ...]] = (*CONNECTION_FAILURES, ValueError)
"""What agreeing on a stream's protocol raises; a name that is no UTF-8 comes through as a ValueError."""

HANDSHAKE_FAILURES: Final[tuple[type[Exception], ...]] = (
    *CONNECTION_FAILURES,
    trio.TooSlowError,
    NoiseHandshakeError,
    NoiseValidationError,
    CryptoError,
    InvalidKey,
    InvalidSignature,
    InvalidTag,
    UnsupportedAlgorithm,
    DecodeError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What libp2p raises while it parses a stranger's handshake: it lets through Python's own errors, and those of each
library of cryptography below it."""


@contextmanager
def single_errors() -> Iterator[None]:
    """Unwrap an exception group that holds, however deep, a single exception."""
    try:
        yield
    except BaseExceptionGroup as group:
        only: BaseException = group
        while isinstance(only, BaseExceptionGroup) and len(only.exceptions) == 1:
            only = only.exceptions[0]
        if isinstance(only, BaseExceptionGroup):
            raise
        raise only from only.__cause__
