"""Whether the answer that a driver sends can be the one that was asked for. Rules: docs/protocols/generate.md. Pure."""

from __future__ import annotations

from shardp2p.coordinator.commands import Finish
from shardp2p.coordinator.request import GenerationRequest
from shardp2p.errors import RemoteProtocolError
from shardp2p.vocabulary import Token
from shardp2p.wire.driving import Batch, Finished


class RemoteAnswer:
    """What came of one answer so far. Each method raises RemoteProtocolError for what no honest driver sends."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._count = 0
        self._last: Token | None = None

    def take(self, batch: Batch) -> tuple[Token, ...]:
        """The tokens of the next batch. The answer ends at its first stop token."""
        request, tokens = self._request, batch.tokens
        self._count += len(tokens)
        if self._count > request.max_tokens:
            raise RemoteProtocolError(f"it sent more than the {request.max_tokens} tokens asked for")
        if request.vocab_size and max(tokens) >= request.vocab_size:
            raise RemoteProtocolError(f"it sent token {max(tokens)}, and the model has {request.vocab_size} tokens")
        if self._last in request.stop_tokens or any(token in request.stop_tokens for token in tokens[:-1]):
            raise RemoteProtocolError("it went on behind a stop token")
        self._last = tokens[-1]
        return tokens

    def finish(self, message: Finished) -> Finish:
        """How it ended."""
        if message.tokens != self._count:
            raise RemoteProtocolError(f"it sent {self._count} tokens and says {message.tokens}")
        if self._last is None:
            raise RemoteProtocolError("it ended the answer without a token")
        reason = "stop" if self._last in self._request.stop_tokens else "length"
        if message.reason != reason or (reason == "length" and self._count < self._request.max_tokens):
            raise RemoteProtocolError(
                f"it ended the answer by {message.reason!r} after {self._count} of {self._request.max_tokens} tokens, "
                f"the last of them {'a' if reason == 'stop' else 'no'} stop token"
            )
        return Finish(message.reason, message.tokens, message.laps)
