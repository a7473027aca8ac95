"""The messages of /shardp2p/generate/1, as those of the other protocols in messages.py. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shardp2p.vocabulary import DType, LayerRange, ModelId, PeerId, SamplingParams, Token, WireScheme

DraftKind = Literal["none", "text", "lookup", "model"]
"""Who proposes at the driver: nobody; what followed earlier in the text alone; that, and what the driver answered this
asker before, which will then include this answer; a draft model and the text, where the driver has such a model.
"""

EndReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class RingStage:
    """A stage of the ring: its peer, the multiaddrs at which it can be dialled, best first, and what it runs."""

    peer_id: PeerId
    addresses: tuple[str, ...]
    layers: LayerRange


@dataclass(frozen=True, slots=True)
class Generate:
    """Client to driver: generate over this ring. The fields are those of a plan, a request and its limits."""

    model: ModelId
    model_digest: str
    dtype: DType
    context_tokens: int
    stages: tuple[RingStage, ...]
    prompt_tokens: tuple[Token, ...]
    max_tokens: int
    stop_tokens: tuple[Token, ...] = ()
    vocab_size: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    budget_s: float | None = None
    draft: DraftKind = "none"
    max_chunks: int = 1
    chunk_tokens: int = 1
    prefill_tokens: int = 1
    draft_tokens: int = 0
    wire_scheme: WireScheme = "raw"
    wait_s: float = 0.0
    shares_rows: bool = False
    wants_signs: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Driver to client: these tokens are committed."""

    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Working:
    """Driver to client that wants signs: it is at work, and there are no new tokens."""


@dataclass(frozen=True, slots=True)
class LapTime:
    """One chunk's way around the ring: its tokens, how long it took, and how much of that was computing."""

    tokens: int
    lap_s: float
    compute_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """Driver to client: the answer is complete. `by_lap` has the latest laps, at most codec_generate.MAX_LAPS."""

    reason: EndReason
    tokens: int
    laps: int
    ttft_s: float
    total_s: float
    by_lap: tuple[LapTime, ...] = ()


GenerateMessage = Generate | Batch | Finished | Working
