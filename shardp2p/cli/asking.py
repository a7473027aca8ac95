"""How `generate` and `chat` have peers answer: what was asked for, and the answer as it comes.

Who answers: asked_swarm.py, the best ring of a swarm; asked_ring.py, the ring of the peers that were named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from shardp2p.cli.output import one_line, write
from shardp2p.cli.progress import Report
from shardp2p.errors import ConfigError
from shardp2p.vocabulary import WIRE_SCHEMES, PeerId, SamplingParams, Token, WireScheme
from shardp2p.weights.store import StoredModel

if TYPE_CHECKING:
    from pathlib import Path

    from shardp2p.coordinator.commands import FinishReason, Limits
    from shardp2p.coordinator.request import GenerationRequest, Result
    from shardp2p.runtime.tokenizer import TextStream
    from shardp2p.scheduler.plan import Plan
    from shardp2p.wire.driving import DraftKind

DEFAULT_MAX_TOKENS = 256
DEFAULTS = SamplingParams()


Show = Callable[[str], None]
"""Shows a piece of text; called in a thread of its own, since whoever reads our output may take long."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How the user wants to be answered. `max_tokens` None: as many as is usual.

    `peers`: the ring, or whom to dial first in a swarm that was named. `is_local`: the generation is driven here, not
    by the peer of the first layers. `local_layers`: so many of the first layers run here. `only` empty: any peer but
    the `blocked`.
    """

    peers: tuple[str, ...]
    max_tokens: int | None
    sampling: SamplingParams
    stop_strings: tuple[str, ...]
    draft: DraftKind
    limits: Limits
    is_local: bool
    local_layers: int
    blocked: frozenset[PeerId] = frozenset()
    only: frozenset[PeerId] = frozenset()
    wire_scheme: WireScheme = "raw"
    wait_s: float = 0.0
    shares_rows: bool = True
    draft_model: Path | None = None


class Tokens(Protocol):
    """The tokens of an answer in batches as they come, and how it went."""

    @property
    def result(self) -> Result: ...

    @property
    def tok_s(self) -> float: ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> tuple[Token, ...]: ...


class Answering(Protocol):
    """Who answers."""

    async def find_ring(self, request: GenerationRequest) -> Plan:
        """The ring that would answer now. Raises: the error that says why there is none."""
        ...

    def generate(self, request: GenerationRequest, report: Report) -> AbstractAsyncContextManager[tuple[Plan, Tokens]]:
        """The ring that answers and its tokens; `report` hears what is waited for."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Speeds are 0 where there is too little to measure; laps count the prompt's own.

    `swarm` is what the swarm is called that answered; empty of a ring by hand.
    """

    plan: Plan
    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    tok_s: float
    ttft_s: float
    laps: int
    swarm: str = ""

    @property
    def accepted_per_lap(self) -> float:
        """Tokens of the answer per lap: 1 without drafts."""
        return len(self.tokens) / self.laps if self.laps else 0.0

    def account(self) -> str:
        """What it took, as a line to read."""
        cut = "; cut at the most tokens allowed" if self.finish_reason == "length" else ""
        where = f" of the swarm {one_line(self.swarm)}" if self.swarm else ""
        return (
            f"{_count(len(self.tokens), 'token')} in {_count(self.laps, 'lap')} of "
            f"{_count(len(self.plan.stages), 'stage')}{where}, "
            f"{self.tok_s:.1f} tokens/s, the first after {self.ttft_s:.2f} s{cut}"
        )


def parse_biases(texts: Sequence[str]) -> tuple[tuple[Token, float], ...]:
    """The logit biases that were given. Raises: ConfigError."""
    biases = []
    for text in texts:
        token, _, bias = text.partition(":")
        try:
            biases.append((int(token), float(bias)))
        except ValueError:
            raise ConfigError(
                f"--logit-bias {text!r} is no TOKEN:BIAS; write a token id and a number, as 42:-5"
            ) from None
    return tuple(biases)


def check_peers(addresses: Sequence[str]) -> tuple[str, ...]:
    """Refuse what is no address of a peer, before anything slow begins."""
    from shardp2p.host.addresses import parse_address

    advice = "name a peer with --peer ADDRESS, as its `shardp2p up` prints it"
    for address in addresses:
        if not address.strip():
            raise ConfigError(f"a --peer is empty; {advice}")
        try:
            named = parse_address(address)
        except ConfigError as error:
            whole = "/p2p/PEER-ID" if error.message.endswith("/tcp/4001") else ""  # the example is of any address
            raise ConfigError(f"--peer {error.message}{whole}") from error
        if named.peer is None:
            raise ConfigError(f"{address} names no peer, for it does not end in /p2p/PEER-ID; {advice}")
    return tuple(addresses)


def check_peer_ids(texts: Sequence[str], option: str) -> frozenset[PeerId]:
    """The peers that were named to `option`. Raises: ConfigError for what is no peer id."""
    from shardp2p.identity.keys import public_bytes_of

    for text in texts:
        try:
            public_bytes_of(PeerId(text))
        except ConfigError as error:
            raise ConfigError(f"{option}: {error.message}") from error
    return frozenset(map(PeerId, texts))


def parse_drafting(
    draft: str, depth: int, *, has_model: bool = False, remembers: bool = True
) -> tuple[DraftKind, Limits]:
    """Who proposes, and how much may be under way. A model that is there drafts. Raises: ConfigError."""
    from shardp2p.coordinator.commands import Limits
    from shardp2p.wire.protocols import INITIAL_CREDITS

    kinds: dict[str, DraftKind] = {"none": "none", "lookup": "lookup" if remembers else "text", "model": "model"}
    if draft not in kinds:
        raise ConfigError(f"--draft is {draft!r}; it must be one of none, lookup, model")
    if depth > INITIAL_CREDITS:
        raise ConfigError(f"--depth is {depth}; it must be at most {INITIAL_CREDITS}")
    return ("model" if has_model else kinds[draft]), Limits(max_chunks=depth)


def parse_wait(seconds: float) -> float:
    """How long it may wait for room. Raises: ConfigError."""
    from shardp2p.wire.codec_generate import MAX_WAIT_S

    if not 0 <= seconds <= MAX_WAIT_S:
        raise ConfigError(f"--wait is {seconds:g}; it must be between 0 and {MAX_WAIT_S:.0f} seconds")
    return seconds


def parse_wire(text: str) -> WireScheme:
    """How hidden states are to cross the network. Raises: ConfigError."""
    for scheme in WIRE_SCHEMES:
        if text == scheme:
            return scheme
    raise ConfigError(f"--wire is {text!r}; it must be one of {', '.join(WIRE_SCHEMES)}")


class Asker:
    """Has questions answered, each by the ring that is best at that moment."""

    def __init__(self, answering: Answering, wish: Wish, model: StoredModel, swarm: str = "") -> None:
        """`swarm` is what the swarm is called that answers, if one does."""
        self.swarm = swarm
        self._answering = answering
        self._wish = wish
        self._model = model

    async def find_ring(self) -> Plan:
        """The ring that would answer a short question now."""
        return await self._answering.find_ring(self._request((0,), frozenset(), 1))

    async def ask(
        self,
        prompt_tokens: tuple[Token, ...],
        stop_tokens: frozenset[Token],
        text: TextStream,
        *,
        report: Report,
        show: Show | None,
    ) -> Answer:
        """Have it answered; `show` gets the text as it comes."""
        max_tokens = self._wish.max_tokens
        if max_tokens is None:
            # The default, as far as the context has room after the prompt.
            room_tokens = self._model.manifest.context_tokens - len(prompt_tokens)
            max_tokens = max(1, min(DEFAULT_MAX_TOKENS, room_tokens))
        request = self._request(prompt_tokens, stop_tokens, max_tokens)
        async with self._answering.generate(request, report) as (plan, stream):
            tokens = await _read(stream, text, show)
        result = stream.result
        return Answer(
            plan=plan,
            text=text.text,
            tokens=tokens,
            # Without a finish it was us who ended it, at a stop string.
            finish_reason=result.finish.reason if result.finish and not text.is_stopped else "stop",
            tok_s=stream.tok_s,
            ttft_s=result.ttft_s or 0.0,
            laps=result.finish.laps if result.finish else len(result.laps),
            swarm=self.swarm,
        )

    def _request(
        self, prompt_tokens: tuple[Token, ...], stop_tokens: frozenset[Token], max_tokens: int
    ) -> GenerationRequest:
        from shardp2p.coordinator.request import GenerationRequest

        wish, vocab_size = self._wish, self._model.manifest.vocab_size
        return GenerationRequest(
            prompt_tokens,
            max_tokens,
            stop_tokens,
            wish.sampling,
            vocab_size,
            wire_scheme=wish.wire_scheme,
            wait_s=wish.wait_s,
            shares_rows=wish.shares_rows,
        )


async def _read(stream: Tokens, text: TextStream, show: Show | None) -> tuple[Token, ...]:
    """Read to the end or to a stop string."""
    import trio

    tokens: list[Token] = []

    async def put(piece: str) -> None:
        if piece and show is not None:
            await trio.to_thread.run_sync(show, piece, abandon_on_cancel=True)

    async for batch in stream:
        tokens.extend(batch)
        await put(text.feed(batch))
        if text.is_stopped:
            break
    await put(text.finish())
    return tuple(tokens)


class Printer:
    """Shows an answer on stdout, and ends its last line."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before
        self._is_in_line = False

    def show(self, piece: str) -> None:
        """Write a piece of the text; `before` is called first."""
        self._before()
        self._is_in_line = not piece.endswith("\n")
        write(piece)

    def end(self) -> None:
        """Begin a new line, unless one has begun."""
        if self._is_in_line:
            self._is_in_line = False
            write("\n")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
