"""Forwards of few rows that are captured and replayed give what they gave; operators stand in for a GPU's kernels."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shardp2p.runtime import stage_graphs
from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import RowBatch, RowCache
from shardp2p.runtime.load import load_block
from shardp2p.runtime.stage_graphs import WIDTHS
from shardp2p.runtime.value_watch import ValueWatch
from shardp2p.vocabulary import LayerRange
from tests.support.checkpoints import VOCABULARY, WINDOW, make_checkpoint
from tests.support.replayed_ops import ReplayedOps

TOLERANCE = 4e-5
"""Of the largest value; more than rounding in another order makes, and far less than any mix-up."""

ALL = LayerRange(0, 3)

RECORDED = ("llama", "qwen3_moe", "gemma3_text", "gpt_oss", "mistral", "smollm3")
"""Plain attention, experts, two kinds of attention, sinks and eager attention, a window, layers without positions."""

TREE = ((10, 10, 11, 12, 12), (11, 11, 12, 12, 12))
"""Parents and positions below a chain of eleven rows."""


def batch(parents: Sequence[int], positions: Sequence[int]) -> RowBatch:
    return RowBatch(tuple(parents), tuple(positions))


class Pair:
    """The same layers twice, plain and replayed, and sessions that go through both alike."""

    def __init__(self, directory: Path, layers: LayerRange = ALL) -> None:
        self.plain = load_block(directory, layers, dtype="float32")
        self.block = load_block(directory, layers, dtype="float32")
        self.graphs = ReplayedOps()
        self.block.replay_few_rows(self.graphs)
        self._rng = random.Random(3)

    def session(self, rows: int = 80) -> tuple[RowCache, RowCache]:
        return self.plain.new_cache(rows), self.block.new_cache(rows)

    def run(self, session: tuple[RowCache, RowCache], rows: RowBatch) -> tuple[Tensor, Tensor]:
        """The logits of both."""
        tokens = [self._rng.randrange(3, VOCABULARY) for _ in rows.parents]
        inputs = self.plain.token_inputs(tokens)
        hidden = [block.forward(inputs, cache, rows) for block, cache in zip(self.blocks, session, strict=True)]
        return self.plain.logits(hidden[0]), self.plain.logits(hidden[1])

    def chain(self, session: tuple[RowCache, RowCache], count: int) -> tuple[Tensor, Tensor]:
        return self.run(session, RowBatch.chain(session[0].rows, count))

    @property
    def blocks(self) -> tuple[Block, Block]:
        return self.plain, self.block


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_checkpoint(name, tmp_path_factory.mktemp(name), layers=3) for name in (*RECORDED, "deepseek_v3")}


@pytest.fixture
def pair(directories: dict[str, Path]) -> Pair:
    return Pair(directories["llama"])


def assert_same(both: tuple[Tensor, Tensor]) -> None:
    plain, replayed = both
    assert (plain - replayed).abs().max() <= TOLERANCE * plain.abs().max()
    assert torch.equal(plain.argmax(-1), replayed.argmax(-1))


@pytest.mark.parametrize("architecture", RECORDED)
def test_replays_that_need_no_padding_equal_plain_forwards_in_every_bit(
    architecture: str, directories: dict[str, Path]
) -> None:
    pair = Pair(directories[architecture])
    session = pair.session()
    for count in (8, 1, 2, 4, 1, 16, 1):
        plain, replayed = pair.chain(session, count)
        assert torch.equal(plain, replayed)
    plain, replayed = pair.run(session, batch((32, 32, 33, 2), (33, 33, 34, 3)))
    assert torch.equal(plain, replayed)
    assert pair.graphs.replays


@pytest.mark.parametrize("architecture", RECORDED)
def test_padded_replays_equal_plain_forwards(architecture: str, directories: dict[str, Path]) -> None:
    """Chains across a window's edge, trees, compaction, a text that begins with another's rows, and wide chunks."""
    pair = Pair(directories[architecture])
    session = pair.session()
    assert_same(pair.chain(session, 11))
    assert_same(pair.run(session, batch(*TREE)))
    for cache in session:
        cache.keep([12, 14, 15], first=11)
    assert_same(pair.run(session, batch((12, 12, 13), (13, 13, 13))))
    assert_same(pair.chain(shared := begun_with(pair, session), 3))
    assert_same(pair.chain(shared, WIDTHS[-1] + 1))
    assert_same(pair.chain(shared, 7))
    for cache in shared:
        cache.truncate(WINDOW + 3)
    assert_same(pair.chain(shared, 5))


def begun_with(pair: Pair, other: tuple[RowCache, RowCache]) -> tuple[RowCache, RowCache]:
    session = pair.session()
    for cache, source in zip(session, other, strict=True):
        cache.copy_from(source, range(11))
    return session


def test_sessions_are_replayed_together(pair: Pair) -> None:
    first, second = pair.session(), pair.session(24)
    assert_same(pair.chain(first, 13))
    assert_same(pair.chain(second, 11))
    rows = RowBatch.chain(13, 1), batch(*TREE)
    tokens = [pair.plain.token_inputs(ids) for ids in ([7], [8, 9, 10, 11, 12])]
    replays = pair.graphs.replays
    hidden = [
        block.forward_many([block.prepare(tokens[at], caches[at], rows[at]) for at in range(2)])
        for block, caches in zip(pair.blocks, zip(first, second, strict=True), strict=True)
    ]
    assert pair.graphs.replays > replays
    for plain, replayed in zip(*hidden, strict=True):
        assert_same((plain, replayed))


def test_sessions_come_go_and_move_without_another_capture(pair: Pair) -> None:
    pair.block.reserve(pair.block.row_bytes * 100)
    pair.block.warm_up()
    made = pair.graphs.made
    assert made == len(WIDTHS) * (len(ALL) + 1)
    early, late = pair.session(20), pair.session(30)
    assert_same(pair.chain(early, 9))
    assert_same(pair.chain(late, 5))
    early[1].close()
    large = pair.session(60)  # for which `late` moves
    for session in (late, large, late, large):
        assert_same(pair.chain(session, 5))
    assert pair.graphs.made == made


def test_what_a_replay_gave_stays_when_the_next_comes(pair: Pair) -> None:
    cache = pair.block.new_cache(8)
    first = pair.block.forward(pair.block.token_inputs([5]), cache, RowBatch.chain(0, 1))
    before = first.clone()
    pair.block.forward(pair.block.token_inputs([6]), cache, RowBatch.chain(1, 1))
    assert torch.equal(first, before)


def test_parts_of_a_block_are_recorded_for_themselves(directories: dict[str, Path]) -> None:
    pair = Pair(directories["gemma3_text"])
    pair.block.warm_up()
    whole = pair.session()
    parts = [pair.block.part(LayerRange(0, 1)), pair.block.part(LayerRange(1, 3))]
    caches = [part.new_cache(40) for part in parts]
    for count in (9, 3, 1):
        tokens = pair.plain.token_inputs(range(5, 5 + count))
        rows = RowBatch.chain(whole[0].rows, count)
        plain = pair.plain.forward(tokens, whole[0], rows)
        hidden = tokens
        for part, cache in zip(parts, caches, strict=True):
            hidden = part.forward(hidden, cache, rows)
        assert_same((plain, hidden))


def test_ranges_of_layers_are_bounded_and_the_longest_unused_goes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_graphs, "MOST_RANGES", 2)
    monkeypatch.setattr(stage_graphs, "IDLE_FORWARDS", 3)
    parts = [pair.block.part(LayerRange.parse(text)) for text in ("0:1", "0:2", "0:3")]
    caches = [part.new_cache(20) for part in parts]

    def made_by(number: int) -> int:
        before = pair.graphs.made
        cache = caches[number]
        parts[number].forward(pair.block.token_inputs([5]), cache, RowBatch.chain(cache.rows, 1))
        return pair.graphs.made - before

    assert [made_by(0), made_by(1), made_by(2), made_by(0), made_by(1)] == [2, 3, 0, 0, 0]
    assert [made_by(1), made_by(1), made_by(2), made_by(2)] == [0, 0, 4, 0]


def test_models_whose_attention_does_not_fit_run_as_ever(directories: dict[str, Path]) -> None:
    pair = Pair(directories["deepseek_v3"])
    pair.block.warm_up()
    session = pair.session()
    for count in (5, 1):
        plain, other = pair.chain(session, count)
        assert torch.equal(plain, other)
    assert pair.graphs.made == 0


def test_what_cannot_be_captured_runs_as_ever(directories: dict[str, Path]) -> None:
    pair = Pair(directories["llama"])
    pair.graphs = ReplayedOps(fails_at=3)
    pair.block.replay_few_rows(pair.graphs)
    session = pair.session()
    for _ in range(3):
        plain, other = pair.chain(session, 1)
        assert torch.equal(plain, other)
    assert (pair.graphs.made, pair.graphs.replays) == (3, 0)
    assert_same(pair.chain(session, 4))
    assert pair.graphs.replays


def test_a_replay_that_gives_something_else_is_not_used(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tests.support.replayed_ops._Graph.replay", lambda _: None)
        session = pair.session()
        plain, other = pair.chain(session, 4)
    assert torch.equal(plain, other)
    plain, other = pair.chain(session, 4)
    assert torch.equal(plain, other)
    assert pair.graphs.replays == 0


def test_layers_whose_work_depends_on_values_run_as_ever(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_value(hidden: Tensor) -> Tensor:
        out = torch.zeros_like(hidden)
        for row in (hidden[0, :, 0] > 0).nonzero().flatten().tolist():
            out[0, row] = hidden[0, row]
        return out

    for block in pair.blocks:
        monkeypatch.setattr(block._inner.layers[1].mlp, "forward", by_value)
    session = pair.session()
    for count in (3, 1):
        plain, other = pair.chain(session, count)
        assert torch.equal(plain, other)
    assert pair.graphs.made == 0


def test_a_failing_gap_changes_no_cache(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    session = pair.session()
    assert_same(pair.chain(session, 4))

    def breaks(*_: object, **__: object) -> Tensor:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("shardp2p.runtime.packing.Pack.attend", breaks)
        with pytest.raises(RuntimeError, match="out of memory"):
            pair.block.forward(pair.block.token_inputs([5, 6, 7]), session[1], RowBatch.chain(4, 3))
    assert session[1].rows == 4
    assert_same(pair.chain(session, 3))


@pytest.mark.parametrize(
    ("work", "reads"),
    [
        (lambda x: torch.nn.functional.silu(x) @ x.T, None),
        (lambda x: x[torch.tensor([0, 1])].topk(1, -1).indices, None),
        (lambda x: x[x > 0], "aten.index.Tensor"),
        (lambda x: (x > 0).nonzero(), "aten.nonzero.default"),
        (lambda x: x.sum().item(), "aten.item.default"),
        (lambda x: torch.zeros_like(x).index_put_((x > 0,), torch.ones(())), "aten.index_put_.default"),
    ],
    ids=["products", "numbers as an index", "mask as an index", "nonzero", "item", "mask to write"],
)
def test_work_that_depends_on_values_is_seen(work: Any, reads: str | None) -> None:
    with torch.inference_mode(), ValueWatch() as watch:
        work(torch.randn(3, 4))
    assert watch.reads == reads
