"""Recorded answers replayed against a proposer: what a round of verifying would have given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardp2p.lab.replay_drafts import DRAFT_ROWS, DRAFT_TOKENS, Recorded, read_answers, replay, replay_all
from shardp2p.runtime.answer_memory import Shelf
from shardp2p.runtime.draft import NoDraft, PromptLookup
from tests.support.proposers import OracleMix

NOVEL = Recorded("novel", (1, 2, 3), tuple(range(100, 140)))
REPEAT = Recorded("repeat", tuple(range(200, 230)), tuple(range(200, 230)))


def test_without_drafts_a_round_gives_a_token() -> None:
    tally = replay(NOVEL, NoDraft())
    assert (tally.tokens, tally.rounds, tally.rows) == (40, 40, 40)


def test_drafts_that_are_all_right_fill_every_round() -> None:
    tally = replay(NOVEL, OracleMix((*NOVEL.prompt, *NOVEL.answer), 1.0, seed=1, branches=1))
    assert tally.tokens == 40
    assert tally.rounds == pytest.approx(1 + 39 / (DRAFT_ROWS + 1), abs=1)
    assert tally.rounds > 39 / (2 * DRAFT_TOKENS + 1)


def test_what_was_in_the_prompt_is_cheap_and_what_is_new_costs_as_much_as_ever() -> None:
    tallies = replay_all([NOVEL, REPEAT], PromptLookup)
    assert tallies["novel"].tokens_per_round == 1.0
    assert tallies["repeat"].tokens_per_round > 5
    assert tallies["all"].tokens == 70


def test_a_question_that_was_answered_before_is_answered_from_memory() -> None:
    shelf = Shelf()
    first, second = [replay(NOVEL, PromptLookup(shelf)) for _ in range(2)]
    assert first.rounds == 40
    assert second.rounds < 8


def test_recorded_answers_are_read(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text(json.dumps([{"kind": "list", "prompt": [1], "answer": [2, 3]}]))
    assert read_answers(file) == [Recorded("list", (1,), (2, 3))]
