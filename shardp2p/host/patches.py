"""What is replaced inside libp2p, all in one place, for exactly one version of it.

Everything else that libp2p does badly for us is replaced through its own interfaces (muxer.py, tcp.py, host.py).
Why each is needed: docs/decisions/0002-libp2p-patches.md.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from importlib.metadata import version
from typing import Final

import trio
from libp2p.kad_dht import utils as kad_utils
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.connection import swarm_connection
from libp2p.peer.envelope import consume_envelope
from libp2p.stream_muxer import muxer_multistream

from shardp2p.errors import ConfigError
from shardp2p.host.muxer import Muxer

PATCHED_VERSION: Final = "0.8.1"

_ENVELOPES: Final = 4096
"""As many as peers in an address book; each is below a KiB as a rule, and bounded by a stream of the directory."""


def apply() -> None:
    """Apply every patch; applying twice changes nothing more.

    Raises: ConfigError when another version of libp2p is installed, since a patch could miss its target in silence.
    """
    installed = version("libp2p")
    if installed != PATCHED_VERSION:
        raise ConfigError(
            f"libp2p {installed} is installed, but shardp2p is made for exactly {PATCHED_VERSION}; "
            f"run: pip install libp2p=={PATCHED_VERSION}"
        )
    use_own_muxer()
    stop_dialling_by_itself()
    remember_signatures()
    quieten_logs()


def use_own_muxer() -> None:
    """Make libp2p run Yamux by our `Muxer`: it ignores the class given in `muxer_opt` and names its own."""
    setattr(muxer_multistream, "Yamux", Muxer)  # noqa: B010


def stop_dialling_by_itself() -> None:
    """Keep the swarm from dialling peers that nobody asked for.

    With a low watermark of 0 it still aims half-way to the high one.
    """
    setattr(AutoConnector, "maybe_connect", _connect_to_nobody)  # noqa: B010


async def _connect_to_nobody(_: AutoConnector) -> None:
    await trio.lowlevel.checkpoint()


def remember_signatures() -> None:
    """Check each peer's signed addresses once: every answer in the directory repeats those of up to 20 peers."""
    setattr(kad_utils, "consume_envelope", _consume_envelope)  # noqa: B010


_consume_envelope = lru_cache(_ENVELOPES)(consume_envelope)


def quieten_logs() -> None:
    """Silence libp2p's loggers: they report every ordinary end of a connection as a warning or an error.

    What matters reaches our callers as an exception with a reason. One module logs to the root logger, which would
    also give that a handler on stderr.
    """
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("libp2p.") and isinstance(logger, logging.Logger):
            logger.setLevel(logging.NOTSET)
    setattr(swarm_connection, "logging", logging.getLogger(swarm_connection.__name__))  # noqa: B010
