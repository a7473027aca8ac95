"""What is replaced inside libp2p, all in one place, for exactly one version of it.

Everything else that libp2p does badly for us is replaced through its own interfaces (muxer.py, tcp.py, host.py).
Why each is needed: docs/decisions/0002-libp2p-patches.md.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Final

import libp2p.stream_muxer.muxer_multistream as muxer_multistream

from shardp2p.errors import ConfigError
from shardp2p.host.muxer import Muxer

PATCHED_VERSION: Final = "0.8.1"


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
    quieten_logs()


def use_own_muxer() -> None:
    """Make libp2p run Yamux by our `Muxer`: it ignores the class given in `muxer_opt` and names its own."""
    setattr(muxer_multistream, "Yamux", Muxer)  # noqa: B010


def quieten_logs() -> None:
    """Silence libp2p's loggers: they report every ordinary end of a connection as a warning or an error.

    What matters reaches our callers as an exception with a reason.
    """
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
