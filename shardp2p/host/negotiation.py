"""Opening a stream of a protocol over a connection, and why it failed, in words."""

from __future__ import annotations

from typing import Final

from libp2p.custom_types import TProtocol
from libp2p.protocol_muxer.exceptions import MultiselectClientError, ProtocolNotSupportedError
from libp2p.protocol_muxer.multiselect import MULTISELECT_PROTOCOL_ID
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator

from shardp2p.host.muxed_stream import MuxedStream
from shardp2p.host.muxer import Muxer
from shardp2p.vocabulary import PeerId

NEGOTIATION_S: Final = 10


async def negotiated_stream(muxer: Muxer, protocol: str) -> MuxedStream:
    """A new stream of `protocol` over `muxer`. Raises: one of NEGOTIATION_FAILURES."""
    muxed = await muxer.open_stream()
    try:
        communicator = MultiselectCommunicator(muxed)
        await MultiselectClient().select_one_of([TProtocol(protocol)], communicator, NEGOTIATION_S)
    except BaseException:
        await muxed.reset()
        raise
    return muxed


async def stream_with(muxer: Muxer, protocol: str, first: bytes) -> MuxedStream:
    """A new stream of a protocol that the peer is known to speak, with `first` sent along with the protocol's name.

    So the peer's answer is there after one round trip instead of three. Raises: one of NEGOTIATION_FAILURES.
    """
    muxed = await muxer.open_stream()
    names = (MULTISELECT_PROTOCOL_ID, protocol)
    try:
        communicator = MultiselectCommunicator(muxed)
        for name in names:
            await communicator.write(name)
        await muxed.write(first)
        for name in names:
            if (said := await communicator.read()) != name:
                raise MultiselectClientError(f"protocol not supported: {said[:80]}")
    except BaseException:
        await muxed.reset()
        raise
    return muxed


def negotiation_failure(peer: PeerId, protocol: str, muxer: Muxer, error: BaseException) -> str:
    """Why no stream of `protocol` came about."""
    if muxer.failure is not None:
        return f"lost the connection to peer {peer}: {muxer.failure}"
    # libp2p's client folds the peer's refusal into a text.
    if isinstance(error, ProtocolNotSupportedError) or "not supported" in str(error):
        return f"peer {peer} does not speak {protocol}; it may run another version or another role"
    return f"peer {peer} did not open a stream of {protocol}: {error}"
