"""Every architecture: what sessions get packed into one forward is what each gets alone, and failures stay alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from shardp2p.errors import LocalProtocolError
from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import RowBatch, RowCache
from shardp2p.runtime.load import load_block
from shardp2p.vocabulary import LayerRange
from tests.support.checkpoints import ARCHITECTURES, VOCABULARY, WINDOW, make_checkpoint

UNPACKED = {"deepseek_v32"}
"""Its index narrows attention by code of its own."""

TOLERANCE = 4e-5
"""Of the largest value; more than rounding in another order makes, and far less than any mix-up."""

SPLIT = ("0:2", "2:3", "3:6")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def blocks(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> list[Block]:
    directory = make_checkpoint(architecture, tmp_path_factory.mktemp(architecture))
    return [load_block(directory, LayerRange.parse(text), dtype="float32") for text in SPLIT]


class Session:
    """The caches of one session in all blocks, and the chunks that it goes through."""

    def __init__(self, blocks: Sequence[Block], chunks: Sequence[tuple[Sequence[int], RowBatch]]) -> None:
        self.caches: list[RowCache] = [block.new_cache(64) for block in blocks]
        self.chunks = chunks


def chunks_of(kind: str, seed: int) -> list[tuple[list[int], RowBatch]]:
    """Three chunks of a session: a long prompt, single tokens, or a tree, after texts of different lengths."""
    rng = random.Random(seed)

    def chunk(parents: Sequence[int], positions: Sequence[int]) -> tuple[list[int], RowBatch]:
        tokens = [rng.randrange(3, VOCABULARY) for _ in parents]
        return tokens, RowBatch(tuple(parents), tuple(positions))

    def chain(first: int, count: int) -> tuple[list[int], RowBatch]:
        return chunk(range(first - 1, first + count - 1), range(first, first + count))

    if kind == "prefill":
        return [chain(0, 5), chain(5, WINDOW + 3), chain(WINDOW + 8, 6)]
    if kind == "decode":
        return [chain(0, WINDOW - 1), chain(WINDOW - 1, 1), chain(WINDOW, 1)]
    tree = chunk([10, 10, 11, 12, 12], [11, 11, 12, 12, 12])
    return [chain(0, 11), tree, chunk([13, 14, 16, 2], [13, 13, 14, 3])]


def sessions(blocks: Sequence[Block]) -> list[Session]:
    return [Session(blocks, chunks_of(kind, seed)) for seed, kind in enumerate(("prefill", "decode", "tree"))]


def run(blocks: Sequence[Block], some: Sequence[Session], step: int) -> list[Tensor]:
    """The logits of the chunk of number `step` of each session, all packed in each block."""
    hidden = [blocks[0].token_inputs(session.chunks[step][0]) for session in some]
    for number, block in enumerate(blocks):
        given = zip(hidden, some, strict=True)
        hidden = block.forward_many(
            [block.prepare(inputs, one.caches[number], one.chunks[step][1]) for inputs, one in given]
        )
    return [blocks[-1].logits(each) for each in hidden]


def assert_same(packed: Tensor, alone: Tensor) -> None:
    assert (packed - alone).abs().max() <= TOLERANCE * alone.abs().max()
    assert torch.equal(packed.argmax(-1), alone.argmax(-1))


def test_packed_sessions_get_what_each_gets_alone(architecture: str, blocks: list[Block]) -> None:
    assert [block.can_pack for block in blocks] == [architecture not in UNPACKED] * len(blocks)
    together, apart = sessions(blocks), sessions(blocks)
    for step in range(3):
        packed = run(blocks, together, step)
        for one, logits in zip(apart, packed, strict=True):
            assert_same(logits, run(blocks, [one], step)[0])


def test_a_pack_leaves_no_trace_in_the_forward_of_one(blocks: list[Block]) -> None:
    first, second = (Session(blocks, chunks_of("tree", 7)) for _ in range(2))
    before = run(blocks, [first], 0)[0]
    run(blocks, sessions(blocks), 0)
    assert torch.equal(run(blocks, [second], 0)[0], before)


def test_parts_of_a_block_pack_as_it_does(architecture: str, blocks: list[Block]) -> None:
    cuts = [blocks[0], blocks[1], blocks[2].part(LayerRange(3, 4)), blocks[2].part(LayerRange(4, 6))]
    together, apart = sessions(cuts), sessions(cuts)
    assert [block.can_pack for block in cuts] == [architecture not in UNPACKED] * len(cuts)
    for logits, one in zip(run(cuts, together, 0), apart, strict=True):
        assert_same(logits, run(cuts, [one], 0)[0])


def test_a_failing_pack_changes_no_cache(blocks: list[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    together, apart = sessions(blocks), sessions(blocks)
    run(blocks, together, 0)
    run(blocks, apart, 0)
    last = blocks[2]

    def breaks(*_: object, **__: object) -> Tensor:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(last._inner.norm, "forward", breaks)
        before = [one.caches[2].rows for one in together]
        parts = [
            last.prepare(torch.zeros(len(one.chunks[1][0]), 64), one.caches[2], one.chunks[1][1]) for one in together
        ]
        with pytest.raises(RuntimeError, match="out of memory"):
            last.forward_many(parts)
        assert [one.caches[2].rows for one in together] == before
    for logits, one in zip(run(blocks, together, 1), apart, strict=True):
        assert_same(logits, run(blocks, [one], 1)[0])


def test_a_session_is_in_a_pack_once(blocks: list[Block]) -> None:
    cache = blocks[1].new_cache(8)
    part = blocks[1].prepare(torch.zeros(2, 64), cache, RowBatch.chain(0, 2))
    with pytest.raises(LocalProtocolError, match="two parts of one session"):
        blocks[1].forward_many([part, part])
    assert cache.rows == 0


def test_frequencies_that_follow_the_furthest_position_are_not_shared(tmp_path: Path) -> None:
    """A long session would turn the rows of a short one."""
    import json

    directory = make_checkpoint("llama", tmp_path)
    file = directory / "config.json"
    config = json.loads(file.read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    file.write_text(json.dumps(config))
    assert not load_block(directory, LayerRange(0, 6), dtype="float32").can_pack
