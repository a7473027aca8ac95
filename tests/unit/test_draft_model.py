"""A draft model proposes what it would choose itself, whatever the way to a text was; static forwards are exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from shardp2p.errors import ConfigError
from shardp2p.runtime import draft_model
from shardp2p.runtime.blend import Blend
from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import RowBatch
from shardp2p.runtime.choose import choose
from shardp2p.runtime.draft import PromptLookup
from shardp2p.runtime.draft_model import DraftModel, ModelDrafts, check_same_tokens, load_draft_model
from shardp2p.runtime.load import load_block
from shardp2p.runtime.penalties import TokenCounts
from shardp2p.runtime.static_rows import StaticRows
from shardp2p.runtime.tokenizer import Tokenizer
from shardp2p.vocabulary import LayerRange, Position, SamplingParams
from tests.support.checkpoints import make_checkpoint
from tests.support.models import tiny_llama

TOLERANCE = 1e-4
"""Of logits of about 10: more than another order of adding makes."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("draft"), layers=2)


@pytest.fixture(scope="module")
def block(directory: Path) -> Block:
    return load_block(directory, LayerRange(0, 2), dtype="float32")


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Block:
    """Attention of two kinds, one with a window that the texts exceed."""
    return load_block(make_checkpoint("gemma3_text", tmp_path_factory.mktemp("windowed"), layers=2), LayerRange(0, 2),
                      dtype="float32")  # fmt: skip


def plain_logits(block: Block, text: Sequence[int]) -> Tensor:
    """The logits after `text`, as a fresh cache gives them."""
    cache = block.new_cache(len(text))
    hidden = block.forward(block.token_inputs(text), cache, RowBatch.chain(0, len(text)))
    return block.logits(hidden[-1:])


def first_tokens(drafts: ModelDrafts, text: Sequence[int], paths: Sequence[Sequence[int]]) -> list[int]:
    return [branches[0].tokens[0] for branches in drafts.propose(text, paths, 4)]


def test_a_static_forward_equals_the_one_that_is_not_padded_in_every_bit(block: Block) -> None:
    rng, capacity, count = Random(1), 64, 20
    tokens = [rng.randrange(259) for _ in range(count)]
    outputs = []
    for width in (1, 7, 16, 64):
        rows = StaticRows(block, capacity, captures=False)
        hidden = []
        for at in range(0, count, min(width, 7)):
            part = range(at, min(count, at + min(width, 7)))
            seen = np.tri(capacity, dtype=np.bool_)[part.start : part.stop]
            seen = np.roll(seen, 1, axis=1) & (np.arange(capacity) > 0)  # row 0 is for padding
            mask = dict.fromkeys(block.windows, seen)
            hidden.append(
                rows.forward([tokens[i] for i in part], list(part), [i + 1 for i in part], mask, width=width).clone()
            )
        outputs.append(torch.cat(hidden))
    for output in outputs[2:]:
        assert torch.equal(output, outputs[1])
    torch.testing.assert_close(outputs[0], outputs[1], atol=TOLERANCE, rtol=0)
    cache = block.new_cache(count)
    eager = block.forward(block.token_inputs(tokens), cache, RowBatch.chain(0, count))
    torch.testing.assert_close(outputs[1], eager, atol=TOLERANCE, rtol=0)


def test_a_tree_over_static_rows_gives_what_the_stages_own_cache_does(block: Block) -> None:
    tokens, tree = [5, 6, 7, 8, 9, 10], RowBatch((5, 5, 6, 7, 8), (6, 6, 7, 7, 8))
    cache = block.new_cache(11)
    block.forward(block.token_inputs(tokens), cache, RowBatch.chain(0, 6))
    eager = block.forward(block.token_inputs([1, 2, 3, 4, 5]), cache, tree)
    rows = StaticRows(block, 11, captures=False)
    seen = np.zeros((5, 11), dtype=np.bool_)
    seen[:, :6] = True
    for row, above in enumerate(((0,), (1,), (0, 2), (1, 3), (0, 2, 4))):
        seen[row, [6 + one for one in above]] = True
    chain = np.tri(6, 11, dtype=np.bool_)
    rows.forward(tokens, range(6), range(6), dict.fromkeys(block.windows, chain), width=6)
    static = rows.forward([1, 2, 3, 4, 5], tree.positions, range(6, 11), dict.fromkeys(block.windows, seen), width=5)
    torch.testing.assert_close(static, eager, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["block", "windowed"])
def test_whatever_was_drafted_before_the_best_token_is_the_models_own(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that follow drafts, leave them, and start anew; rows are doubled twice."""
    monkeypatch.setattr(draft_model, "FIRST_ROWS", 24)
    block: Block = request.getfixturevalue(kind)
    rng, model = Random(7), DraftModel(block)
    drafts = model.drafts(SamplingParams())
    text = [rng.randrange(3, 250) for _ in range(9)]
    for step in range(25):
        paths: list[list[int]] = [[]]
        for _ in range(rng.randrange(4)):
            paths.append([*rng.choice(paths), rng.randrange(3, 250)])
        proposed = drafts.propose(text, paths, 4)
        for path, branches in zip(paths, proposed, strict=True):
            logits = plain_logits(block, [*text, *path])[0]
            best = torch.topk(logits, 8)
            assert [branch.tokens[0] for branch in branches] == best.indices.tolist()
            shares = torch.softmax(logits, -1)[best.indices].tolist()
            assert [branch.probability for branch in branches] == pytest.approx(shares, abs=1e-3)
        text = [*text, *rng.choice(paths), *([rng.randrange(3, 250)] if rng.random() < 0.7 else [])]
        if step == 12:
            text = text[:5]


def test_what_was_drafted_and_is_committed_is_not_computed_again(block: Block) -> None:
    drafts = DraftModel(block).drafts(SamplingParams())
    drafts.propose([5, 6, 7], [(), (1,), (1, 2), (3,)], 1)
    assert drafts.evaluated == 3 + 3
    drafts.propose([5, 6, 7, 1, 2], [()], 1)
    assert drafts.evaluated == 6
    drafts.propose([5, 6, 7, 1, 2, 9], [(), (4,)], 1)
    assert drafts.evaluated == 8


def test_rows_of_dead_drafts_are_used_again(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "FIRST_ROWS", 64)
    drafts, text = DraftModel(block).drafts(SamplingParams()), [5]
    for step in range(40):
        drafts.propose(text, [(token,) for token in range(10, 22)], 1)
        text.append(step + 30)
    assert drafts._rows.capacity == 64


SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, seed=11)
PENALISED = SamplingParams(temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.5, seed=5)


@pytest.mark.parametrize("params", [SAMPLED, PENALISED, SamplingParams(repetition_penalty=1.5),
                                    SamplingParams(logit_bias=((7, 50.0),))])  # fmt: skip
def test_drafts_are_chosen_under_the_same_noise_and_filters(block: Block, params: SamplingParams) -> None:
    drafts, text = DraftModel(block).drafts(params), [5, 6, 7, 5]
    prompt_length = len(text)
    for _ in range(12):
        history = TokenCounts.of_prompt(text[:prompt_length])
        for token in text[prompt_length:]:
            history = history.after(token)
        (chosen,) = choose(plain_logits(block, text), params, [Position(len(text))], [history])
        assert first_tokens(drafts, text, [()]) == [chosen]
        text.append(chosen)


def test_a_draft_that_fails_ends_the_drafts_and_not_the_answer(
    block: Block, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drafts = DraftModel(block).drafts(SamplingParams())
    assert drafts.propose([5, 6], [()], 1) != ((),)

    def fail(*_: object, **__: object) -> Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(StaticRows, "forward", fail)
    assert drafts.propose([5, 6, 7], [(), (8,)], 1) == ((), ())
    monkeypatch.undo()
    assert drafts.propose([5, 6, 7], [(), (8,)], 1) == ((), ())
    everything = SamplingParams(logit_bias=tuple((token, -1000.0) for token in range(259)), temperature=0.5)
    assert DraftModel(block).drafts(everything).propose([5, 6], [()], 1) != ((),)
    misplaced = SamplingParams(logit_bias=((5000, 1.0),))
    assert DraftModel(block).drafts(misplaced).propose([5, 6], [()], 1) == ((),)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED, PENALISED, SamplingParams(logit_bias=((7, 50.0),))])
def test_logits_that_are_no_numbers_say_nothing_and_the_answer_goes_on(
    block: Block, monkeypatch: pytest.MonkeyPatch, params: SamplingParams, value: float
) -> None:
    """As those of a draft model in float16 that overflows."""
    blend = Blend([PromptLookup(), DraftModel(block).drafts(params)])
    alone = PromptLookup()
    text = [5, 6, 7, 8, 5, 6]
    (told,) = alone.propose(text, [()], 1)
    monkeypatch.setattr(Block, "logits", lambda _, hidden: torch.full((len(hidden), 259), value))
    (blended,) = blend.propose(text, [()], 1)
    assert [one.tokens for one in blended] == [one.tokens for one in told]
    monkeypatch.undo()
    assert len(blend.propose([*text, 9], [()], 1)[0]) > 1


@pytest.mark.parametrize("beyond", [0, 2**30])
def test_a_token_that_only_the_target_has_ends_the_drafts_and_not_the_answer(block: Block, beyond: int) -> None:
    token = block.vocab_size + beyond
    for text, path in (([5, token], ()), ([5], (token,))):
        drafts = DraftModel(block).drafts(SamplingParams(), vocab_size=2**31)
        assert drafts.propose(text, [path], 1) == ((),)
        assert drafts.propose([*text, *path, 6], [()], 1) == ((),)


def test_nothing_is_proposed_beyond_the_context_or_outside_the_targets_vocabulary(block: Block) -> None:
    drafts = DraftModel(block).drafts(SamplingParams(), vocab_size=40)
    assert all(branch.tokens[0] < 40 for branch in drafts.propose([5, 6], [()], 1)[0])
    too_long = [5] * (block.context_tokens + 1)
    assert drafts.propose(too_long, [()], 1) == ((),)
    assert not drafts.is_instant


def test_a_model_with_another_tokenizer_is_refused_before_its_weights_are_read(directory: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other", layers=1, seed=4)
    load_draft_model(other, target=directory, dtype="float32")
    file = other / "tokenizer.json"
    file.write_text(file.read_text().replace("<|im_start|>", "<|begin|>"))
    for path in other.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ConfigError, match="another vocabulary"):
        load_draft_model(other, target=directory, dtype="float32")
    check_same_tokens(Tokenizer(directory), Tokenizer(directory), directory)


def test_a_directory_that_is_not_there_is_named(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no directory .*nowhere.*`shardp2p model list --json`"):
        load_draft_model(tmp_path / "nowhere", target=directory, dtype="float32")
