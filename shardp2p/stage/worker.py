"""What one session computes on the device: rows in, rows or choices out.

packer.py calls it, and is the way in. Every method of a worker is called on the device's thread (runtime/device.py),
one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from shardp2p.errors import RemoteProtocolError
from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import RowBatch
from shardp2p.runtime.choose import choose
from shardp2p.runtime.packing import Part
from shardp2p.runtime.penalties import TokenCounts
from shardp2p.stage.session import Work
from shardp2p.vocabulary import Position, SamplingParams, Token, WireScheme
from shardp2p.wire.messages import Activations, Chunk, Open, Verdict
from shardp2p.wire.tensor import TORCH_DTYPES, Tensor, decode_tensor, encode_tensor

MAX_COMPUTE_US = 2**64 - 1
"""The largest sum that goes on; what the previous stages claim may be anything up to it."""


class SessionWorker:
    """The cache of a session and what runs over it. `prompt_tokens`: how much of the text was not generated."""

    def __init__(
        self, block: Block, *, cache_rows: int, sampling: SamplingParams, prompt_tokens: int, wire_scheme: WireScheme
    ) -> None:
        self._block = block
        self._cache = block.new_cache(cache_rows)
        self._sampling = sampling
        self._prompt_tokens = prompt_tokens
        self._scheme = wire_scheme
        self._counts: list[TokenCounts] = []  # by cache row; only where penalties need them

    @classmethod
    def of(cls, block: Block, request: Open) -> SessionWorker:
        """The worker that `request` asks for, over the block's layers or some of them.

        Raises: OverloadedError when the device has no memory for the cache.
        """
        return cls(
            block if request.layers == block.layers else block.part(request.layers),
            cache_rows=request.cache_rows,
            sampling=request.sampling or SamplingParams(),
            prompt_tokens=request.prompt_tokens,
            wire_scheme=request.wire_scheme,
        )

    @property
    def block(self) -> Block:
        """The layers that run; workers of the same layers may share a forward."""
        return self._block

    def close(self) -> None:
        """Nothing more is computed: the cache is free, whoever still refers to this."""
        del self._cache

    def copy_rows(self, other: SessionWorker, rows: Sequence[int]) -> bool:
        """Begin with rows of another session of the same layers: those of the text's first tokens.

        Not where penalties need the ids of all tokens. False: the other has not computed them yet.
        """
        if not other._cache.has(rows):
            return False
        self._cache.copy_from(other._cache, rows)
        return True

    def begin(self, work: Work) -> Tensor | None:
        """The inputs of a chunk's live rows, for which the cache is made ready; None when no row is alive.

        Raises: RemoteProtocolError for inputs that do not fit the model.
        """
        if work.keep is not None:
            first, rows = work.keep
            self._cache.keep(rows, first)
            if self._counts:
                self._counts[first:] = [self._counts[row] for row in rows]
        return self._inputs(work) if work.rows else None

    def prepare(self, work: Work, inputs: Tensor, start: int, stop: int) -> Part:
        """The live rows [start, stop) of a chunk for `Block.forward_many`, which comes next; in order, without gaps."""
        rows = RowBatch(work.cache_parents[start:stop], work.positions[start:stop])
        return self._block.prepare(inputs[start:stop], self._cache, rows)

    def wanted(self, work: Work, hidden: Tensor) -> Tensor | None:
        """The rows [n, H] of what the block made of a chunk whose logits are needed; None when there are none."""
        wanted = _wanted(work)
        if not self._block.is_last or not wanted:
            return None
        return hidden if len(wanted) == len(work.rows) else hidden[wanted]

    def finish(
        self, work: Work, tokens: Sequence[Token], hidden: Tensor | None, logits: Tensor | None, spent_s: float
    ) -> Activations | Verdict:
        """What goes on: hidden [T, H] of the live rows, or the choices that their logits [n, V] make.

        `tokens` are the ids of `work.rows` where penalties need them, else empty. `spent_s` is what the chunk has cost
        before, and goes on with it.
        """
        started = perf_counter() - spent_s
        if self._block.is_last:
            choices = self._choose(work, tokens, logits)
            return Verdict(work.ref, work.arrival.quiet, choices, *_spent_us(work, started))
        frame = None if hidden is None else encode_tensor(hidden, self._scheme)
        a = work.arrival
        return Activations(a.ref, a.parents, a.root, a.quiet, work.skipped, frame, *_spent_us(work, started))

    def _inputs(self, work: Work) -> Tensor:
        arrival = work.arrival
        if isinstance(arrival, Chunk) != self._block.is_first:
            raise RemoteProtocolError(f"{type(arrival).__name__} came to the stage of layers {self._block.layers}")
        if isinstance(arrival, Chunk):
            return self._block.token_inputs(tuple(arrival.tokens[at] for at in work.inputs))
        frame = arrival.hidden
        if frame is None:
            raise RemoteProtocolError(f"chunk {arrival.ref} came without the hidden rows that are alive")
        if TORCH_DTYPES[frame.dtype] != self._block.dtype:
            raise RemoteProtocolError(f"hidden rows are {frame.dtype}; this session's are {self._block.dtype}")
        if frame.scheme != self._scheme:
            raise RemoteProtocolError(f"hidden rows came as {frame.scheme}; this ring's are sent as {self._scheme}")
        if frame.shape[1] != self._block.hidden_size:
            raise RemoteProtocolError(
                f"hidden rows are {frame.shape[1]} wide; this model's are {self._block.hidden_size}"
            )
        hidden = decode_tensor(frame, self._block.dtype, self._block.device)
        return hidden if len(work.inputs) == frame.shape[0] else hidden[list(work.inputs)]

    def _choose(self, work: Work, tokens: Sequence[Token], logits: Tensor | None) -> tuple[Token | None, ...]:
        """The choice after each row from `quiet` on, None for the skipped ones."""
        if tokens:
            self._count(work, tokens)
        wanted = _wanted(work)
        chosen: dict[int, Token] = {}
        if logits is not None:
            positions = [Position(work.positions[at] + 1) for at in wanted]
            first = len(self._counts) - len(work.rows)
            history = [self._counts[first + at] for at in wanted] if self._counts else None
            picked = choose(logits, self._sampling, positions, history)
            chosen = {work.rows[at]: token for at, token in zip(wanted, picked, strict=True)}
        return tuple(chosen.get(row) for row in range(work.arrival.quiet, len(work.arrival.parents)))

    def _count(self, work: Work, tokens: Sequence[Token]) -> None:
        for parent, position, token in zip(work.cache_parents, work.positions, tokens, strict=True):
            before = self._counts[parent] if parent >= 0 else TokenCounts()
            self._counts.append(before.after(token, is_generated=position >= self._prompt_tokens))


def _spent_us(work: Work, started: float) -> tuple[int, int]:
    """What the stages so far have spent on the chunk, all together and the slowest of them."""
    own = round((perf_counter() - started) * 1e6)
    a = work.arrival
    total, slowest = (a.compute_us, a.slowest_us) if isinstance(a, Activations) else (0, 0)
    return min(total + own, MAX_COMPUTE_US), max(slowest, own)


def _wanted(work: Work) -> list[int]:
    """Where the rows that need a choice lie among the live ones."""
    return [at for at, row in enumerate(work.rows) if row >= work.arrival.quiet]
