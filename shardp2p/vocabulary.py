"""Shared words: ids, slots, positions, layer ranges, sampling parameters and chunk references.

Every name here means the same thing in every package and on the wire (docs/architecture.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Literal, NewType, get_args

from shardp2p.errors import ConfigError

PeerId = NewType("PeerId", str)
"""A libp2p peer id in base58 text, as `12D3KooW…`."""

SwarmId = NewType("SwarmId", str)
"""A swarm: the peer id of its owner's key, in base58 text."""

ModelId = NewType("ModelId", str)
"""The name a model has in a swarm and in the local store, as `smollm2`."""

SessionId = NewType("SessionId", str)
"""One generation over one ring: 32 lower-case hexadecimal digits, random."""

Slot = NewType("Slot", int)
"""The number of a sent token within an epoch: 0, 1, 2, … in the order of sending."""

Position = NewType("Position", int)
"""How many tokens stand before a token on its path: the first prompt token has position 0."""

MAX_TOKEN = 2**31
"""Token ids are below it: they cross the network as signed 32-bit numbers."""

MAX_LOGIT_BIASES = 1024
"""As many as an Open message has room for."""

MAX_DIGITS = 9
"""Of a layer's number."""

DType = Literal["float32", "float16", "bfloat16"]
"""The element type in which a block computes and its hidden states cross the network."""

WireScheme = Literal["raw", "fp16", "int8"]
"""How hidden states cross the network: bit by bit as they are, or smaller with an error that is stated."""

WIRE_SCHEMES: Final[tuple[WireScheme, ...]] = get_args(WireScheme)

Token = int
"""A token id of the model's vocabulary."""

NO_PARENT = Slot(-1)
"""The parent of the slot that holds the first token of the text."""


@dataclass(frozen=True, slots=True, order=True)
class LayerRange:
    """Layers [start, stop) of a model."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ConfigError(
                f"the layer range {self.start}:{self.stop} is empty or negative; write A:B with 0 <= A < B"
            )

    @classmethod
    def parse(cls, text: str) -> LayerRange:
        """The range that `A:B` names. Raises ConfigError for any other text."""
        start, colon, stop = text.partition(":")
        if not (colon and all(part.isascii() and part.isdigit() and len(part) <= MAX_DIGITS for part in (start, stop))):
            raise ConfigError(f"{text!r} is no layer range; write A:B, for example 0:15")
        return cls(int(start), int(stop))

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the last stage chooses a token from logits. The defaults are greedy decoding.

    temperature 0 is greedy (argmax); top_k 0, top_p 1 and min_p 0 switch that filter off; repetition_penalty 1 and
    the two other penalties 0 have no effect. Names and meanings are those of the OpenAI API and transformers.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[Token, float], ...] = field(default=())
    seed: int = 0

    def __post_init__(self) -> None:
        for name, is_valid, rule in (
            ("temperature", 0.0 <= self.temperature <= 100.0, "between 0 and 100"),
            ("top_k", 0 <= self.top_k < 2**31, "0 (off) or a positive number"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1"),
            ("repetition_penalty", 0.01 <= self.repetition_penalty <= 100.0, "between 0.01 and 100"),
            ("frequency_penalty", -100.0 <= self.frequency_penalty <= 100.0, "between -100 and 100"),
            ("presence_penalty", -100.0 <= self.presence_penalty <= 100.0, "between -100 and 100"),
            (
                "logit_bias",
                len(self.logit_bias) <= MAX_LOGIT_BIASES
                and all(0 <= token < MAX_TOKEN and -1000 <= bias <= 1000 for token, bias in self.logit_bias),
                f"at most {MAX_LOGIT_BIASES} pairs of a token id and a bias of ±1000 at most",
            ),
            ("seed", 0 <= self.seed < 2**64, "between 0 and 2^64 - 1"),
        ):
            if not is_valid:
                raise ConfigError(f"{name} is {str(getattr(self, name))[:80]}; it must be {rule}")

    @property
    def is_greedy(self) -> bool:
        """Whether the choice is the plain argmax of the (penalised) logits."""
        return self.temperature == 0.0

    @property
    def needs_tokens(self) -> bool:
        """Whether choosing depends on the token ids that stand before a position."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """The id of a chunk, the same on every message about it: one text to search the logs for.

    `seq` counts the chunks of a session over all epochs; `first_slot` is the slot of the chunk's first token.
    """

    session: SessionId
    epoch: int
    seq: int
    first_slot: Slot

    def __str__(self) -> str:
        return f"{self.session[:8]}/{self.epoch}/{self.seq}@{self.first_slot}"


@dataclass(frozen=True, slots=True)
class Branch:
    """A proposed continuation.

    `probability` estimates that its first token is right, `continues` that each later one is when those before it are.
    """

    tokens: tuple[Token, ...]
    probability: float
    continues: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerSpeed:
    """Seconds that one layer takes: for a chunk of one token, and for each token of a wide chunk."""

    decode_layer_s: float
    prefill_layer_s: float


MAX_BYTES = 2**50
"""No machine has a pebibyte of memory: who says so made a mistake."""

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?([KMGT]i?)B", re.IGNORECASE | re.ASCII)
_REGION = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)
MAX_REGION_CHARACTERS = 32


def parse_bytes(text: str) -> int:
    """The bytes that `8GiB`, `500MB` or `1.5TiB` stand for: KiB, MiB, … are powers of 1024, KB, MB, … of 1000.

    Raises: ConfigError for any other text, and for what no machine has.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text[:40]!r} is no size; write a number with KiB, MiB, GiB or TiB, for example 8GiB")
    number, unit = match[1], match[2].upper()
    size = int(Fraction(number) * (1024 if unit.endswith("I") else 1000) ** ("KMGT".index(unit[0]) + 1))
    if not 1 <= size <= MAX_BYTES:
        raise ConfigError(f"{text!r} is not between one byte and {MAX_BYTES // 2**40} TiB")
    return size


def parse_region(text: str) -> str:
    """`text` as the region that a peer declares; "" where it declares none. Raises: ConfigError for any other form."""
    if text and not (_REGION.fullmatch(text) and len(text) <= MAX_REGION_CHARACTERS):
        raise ConfigError(
            f"{text[:40]!r} is no region; use up to {MAX_REGION_CHARACTERS} lower-case letters and digits with single "
            "hyphens between them, for example eu-west"
        )
    return text
