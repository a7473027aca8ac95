"""A small model that drafts for a large one: any Hugging Face directory with the same tokenizer.

Start with `load_draft_model`. A session keeps a row for every token that it has evaluated below the text, wherever
it came to lie: what is committed stays where it is, what is dead is a free row, and nothing is computed twice.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import outcome
import structlog
from numpy.typing import NDArray

from shardp2p.errors import ConfigError, ShardError
from shardp2p.runtime.architecture import read_architecture
from shardp2p.runtime.block import Block
from shardp2p.runtime.draft_choice import Ranked, rank_choices
from shardp2p.runtime.load import load_block
from shardp2p.runtime.penalties import TokenCounts
from shardp2p.runtime.static_rows import SCRAP, WIDTHS, StaticRows
from shardp2p.runtime.tokenizer import Tokenizer
from shardp2p.vocabulary import Branch, DType, LayerRange, Position, SamplingParams, Token

log = structlog.get_logger()

T = TypeVar("T")

BRANCHES: Final = 8
"""A draft's first eight tokens hold most of what it can know; the tree takes of them what pays."""

FIRST_ROWS: Final = 512
"""Rows at the start of a session; doubled when they are used up, up to what the model's context needs."""

SPARE_ROWS: Final = 512
"""Rows beyond the context: drafts that are alive beside the text."""


def check_same_tokens(draft: Tokenizer, target: Tokenizer, directory: Path) -> None:
    """Raises: ConfigError unless every text is the same token ids to both."""
    if draft.vocabulary != target.vocabulary:
        raise ConfigError(
            f"{directory} has another vocabulary than the model that it is to draft for; choose a draft model of the "
            "same family, or leave out --draft-model"
        )
    if draft.special_tokens != target.special_tokens:
        raise ConfigError(
            f"{directory} has other special tokens than the model that it is to draft for; choose a draft model of the "
            "same family, or leave out --draft-model"
        )


def load_draft_model(directory: Path, *, target: Path, dtype: DType, device: str = "cpu") -> DraftModel:
    """The model in `directory`, for drafts of the one in `target`. Raises: ConfigError, IntegrityError; see load_block.

    Tokenizers are compared before any weights are read.
    """
    if not directory.is_dir():
        raise ConfigError(
            f"there is no directory {directory}, and so no tokenizer.json in it; name the draft model's directory, as "
            "`shardp2p model list --json` shows it"
        )
    check_same_tokens(Tokenizer(directory), Tokenizer(target), directory)
    layers = read_architecture(directory).layer_count
    return DraftModel(load_block(directory, LayerRange(0, layers), dtype=dtype, device=device))


class DraftModel:
    """The model's weights, and the one thread that computes with them, for all sessions."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[outcome.Outcome[Any]]]]
        self._calls = queue.SimpleQueue()
        # A daemon, so that a process ends whatever it does. As many calls wait as there are sessions.
        threading.Thread(target=self._serve, name="draft", daemon=True).start()

    def drafts(self, sampling: SamplingParams, vocab_size: int = 0) -> ModelDrafts:
        """A proposer for one request; `vocab_size` is the target's."""
        return ModelDrafts(self, sampling, vocab_size or self.block.vocab_size)

    def run(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises, computed in the model's thread."""
        answer: queue.SimpleQueue[outcome.Outcome[T]] = queue.SimpleQueue()
        self._calls.put((work, answer))
        return answer.get().unwrap()

    def _serve(self) -> None:
        while True:
            work, answer = self._calls.get()
            answer.put(outcome.capture(work))
            del work, answer  # a session's rows must not live on in this frame until the next call comes


@dataclass(slots=True, eq=False)
class _Node:
    """An evaluated token: its row, and what the model would choose after it, where that was asked for."""

    token: Token
    row: int
    position: int
    parent: _Node | None
    history: TokenCounts | None
    ranked: Ranked | None = None
    children: dict[Token, _Node] = field(default_factory=dict)


class ModelDrafts:
    """One session's proposer. It answers one level of the tree: the best tokens after each path."""

    def __init__(self, model: DraftModel, sampling: SamplingParams, vocab_size: int) -> None:
        self._model = model
        self._sampling = sampling
        self._vocab_size = min(vocab_size, model.block.vocab_size)
        self._prompt_length = 0
        self._has_failed = False
        self._leaf: _Node | None = None
        self._text: list[Token] = []
        self._evaluated = 0

    @property
    def is_instant(self) -> bool:
        return False

    @property
    def evaluated(self) -> int:
        """How many tokens went through the model so far."""
        return self._evaluated

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> tuple[tuple[Branch, ...], ...]:
        """Up to BRANCHES single tokens after each path, all evaluated together; nothing beyond the model's context."""
        longest = len(text) + max((len(path) for path in paths), default=0)
        if self._has_failed or depth_tokens < 1 or not text or longest > self._model.block.context_tokens:
            return ((),) * len(paths)
        try:
            return self._model.run(lambda: self._propose(text, paths))
        except (RuntimeError, MemoryError, ShardError) as error:  # torch's allocators raise the first
            # The answer does not depend on drafts: one that no memory is left for goes on without.
            self._has_failed = True
            log.warning("draft_model_failed", reason=str(error)[:200])
            return ((),) * len(paths)

    def finish(self, text: Sequence[Token]) -> None:
        pass  # nothing is kept beyond the session

    def _propose(self, text: Sequence[Token], paths: Sequence[Sequence[Token]]) -> tuple[tuple[Branch, ...], ...]:
        new = self._follow(text)
        self._evaluate(new, ends=1)
        leaf = self._leaf
        assert leaf is not None
        wanted, ends = [], []
        for path in paths:
            node = leaf
            for token in path:
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = self._new_node(node, token)
                    wanted.append(child)
                node = child
            ends.append(node)
        self._evaluate(wanted, ends=len(wanted))
        return tuple(tuple(Branch((token,), share) for token, share in node.ranked or ()) for node in ends)

    def _follow(self, text: Sequence[Token]) -> list[_Node]:
        """Move to the end of `text`; gives the nodes of it that are to be evaluated, in order."""
        if list(text[: len(self._text)]) != self._text or not self._text:
            self._drop()
            self._prompt_length = len(text)
        new: list[_Node] = []
        for token in text[len(self._text) :]:
            leaf, child = self._leaf, None
            if leaf is not None:
                child = leaf.children.pop(token, None)
                self._free_below(leaf)
            if child is None:
                child = self._new_node(leaf, token)
                new.append(child)
            else:
                self._seen[child.row] = True
            child.parent = None
            self._leaf = child
            self._text.append(token)
        return new

    def _drop(self) -> None:
        self._text = []
        self._leaf = None
        self._rows = StaticRows(self._model.block, FIRST_ROWS)
        self._free = list(range(FIRST_ROWS - 1, SCRAP, -1))
        self._seen: NDArray[np.bool_] = np.zeros(FIRST_ROWS, dtype=np.bool_)  # rows of the text, once evaluated
        self._position_of: NDArray[np.int64] = np.zeros(FIRST_ROWS, dtype=np.int64)

    def _new_node(self, parent: _Node | None, token: Token) -> _Node:
        if not 0 <= token < self._model.block.vocab_size:
            raise ConfigError("the text has a token that the draft model does not have")
        if not self._free:
            self._double()
        position = parent.position + 1 if parent is not None else 0
        history = None
        if self._sampling.needs_tokens:
            before = TokenCounts() if parent is None or parent.history is None else parent.history
            history = before.after(token, is_generated=position >= self._prompt_length)
        node = _Node(token, self._free.pop(), position, parent, history)
        self._position_of[node.row] = position
        return node

    def _double(self) -> None:
        old = self._rows.capacity
        self._rows, smaller = StaticRows(self._model.block, 2 * old), self._rows
        self._rows.copy_from(smaller)
        self._free = list(range(2 * old - 1, old - 1, -1))
        self._seen = np.concatenate([self._seen, np.zeros(old, dtype=np.bool_)])
        self._position_of = np.concatenate([self._position_of, np.zeros(old, dtype=np.int64)])

    def _free_below(self, node: _Node) -> None:
        waiting = list(node.children.values())
        node.children.clear()
        while waiting:
            dead = waiting.pop()
            self._free.append(dead.row)
            waiting.extend(dead.children.values())

    def _evaluate(self, nodes: Sequence[_Node], *, ends: int) -> None:
        """Run nodes, parents before children; what comes after each of the last `ends` is kept."""
        for at in range(0, len(nodes), WIDTHS[-1]):
            part = nodes[at : at + WIDTHS[-1]]
            masks = self._masks(part)
            hidden = self._rows.forward(
                [node.token for node in part], [node.position for node in part], [node.row for node in part], masks
            )
            self._evaluated += len(part)
            asked = range(max(0, len(nodes) - ends - at), len(part))
            if asked:
                logits = self._model.block.logits(hidden[asked.start :])[:, : self._vocab_size]
                for row, index in enumerate(asked):
                    node = part[index]
                    after = Position(node.position + 1)
                    node.ranked = rank_choices(logits[row], self._sampling, after, node.history, BRANCHES)

    def _masks(self, part: Sequence[_Node]) -> dict[str, NDArray[np.bool_]]:
        """Which rows each may see, per kind of attention [T, R]: the text's, its ancestors' below it, and its own."""
        seen = np.zeros((len(part), self._rows.capacity), dtype=np.bool_)
        for index, node in enumerate(part):
            if node.parent is None:  # of the text, whose rows are seen in order
                self._seen[node.row] = True
            seen[index] = self._seen
            above: _Node | None = node
            while above is not None and above.parent is not None:
                seen[index, above.row] = True
                above = above.parent
        positions = np.array([node.position for node in part])[:, None]
        return {
            kind: seen & (positions - self._position_of < window) if window else seen
            for kind, window in self._model.block.windows.items()
        }
