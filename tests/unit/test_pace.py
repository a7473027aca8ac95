"""When chunks of drafts may go, and which drafts are worth a row."""

from __future__ import annotations

import pytest

from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.pace import LEAST_DOUBT, MOST_PROBABILITY, Pace
from shardp2p.coordinator.tree import TokenTree
from shardp2p.runtime.row_cost import RowCost
from shardp2p.vocabulary import Branch, ChunkRef, SessionId, Slot
from shardp2p.wire.messages import Chunk, Verdict

SESSION = SessionId("ab" * 16)


class Ring:
    """A pace that sees a ring of three equal stages: each takes 10 ms and 1 ms a row, the way 70 ms."""

    def __init__(self, *, is_paced: bool = True) -> None:
        self.pace = Pace(Limits(is_paced=is_paced))
        self.now, self.seq = 100.0, 0

    def lap(
        self,
        rows: int,
        *,
        skipped: int = 0,
        is_right: bool = True,
        extra_us: int = 0,
        are_drafts: bool = True,
        wait_s: float = 0.0,
    ) -> None:
        root = Slot(0 if are_drafts else rows - 1)
        chunk = Chunk(ChunkRef(SESSION, 0, self.seq, Slot(0)), (1,) * rows, (Slot(0),) * rows, root)
        self.seq += 1
        stage_us = 10_000 + 1_000 * (rows - skipped) + extra_us
        self.pace.note_sent(chunk, self.now)
        self.now += 0.070 + wait_s + 3 * stage_us / 1e6
        choices = (*(7,) * (rows - skipped), *(None,) * skipped)
        self.pace.note_verdict(Verdict(chunk.ref, 0, choices, 3 * stage_us, stage_us), chunk, self.now)
        if is_right:
            self.pace.note_right()


def test_the_first_chunks_go_at_once() -> None:
    pace = Pace(Limits())
    assert pace.next_at < 0
    assert pace.least_probability == 0.0


def test_the_next_chunk_waits_until_the_slowest_stage_is_through() -> None:
    ring = Ring()
    for rows in (1, 8, 4):
        ring.lap(rows)
    sent_at = ring.now
    ring.lap(6)
    assert ring.pace.next_at == pytest.approx(sent_at + 0.016)


def test_chunks_that_go_at_once_all_take_their_time() -> None:
    ring = Ring()
    for rows in (1, 8, 4):
        ring.lap(rows)
    for seq in (7, 8):
        chunk = Chunk(ChunkRef(SESSION, 0, seq, Slot(0)), (1, 2), (Slot(0), Slot(1)), Slot(0))
        ring.pace.note_sent(chunk, ring.now)
    assert ring.pace.next_at == pytest.approx(ring.now + 0.024)


def test_rows_that_were_skipped_cost_nothing() -> None:
    ring = Ring()
    for rows in (1, 8, 4):
        ring.lap(rows + 20, skipped=20)
    sent_at = ring.now
    ring.lap(6)
    assert ring.pace.next_at == pytest.approx(sent_at + 0.016)


def test_a_draft_must_be_worth_its_row_in_every_stage() -> None:
    ring = Ring()
    for rows in (1, 8, 4):
        ring.lap(rows, is_right=False, are_drafts=False)
    least = ring.pace.least_probability
    assert least == pytest.approx(0.003 / 0.11, rel=0.2)  # three stages, a millisecond each, of a lap
    tree = TokenTree((1,))
    tree.graft(tree.root, [Branch((2,), 0.5), Branch((3,), least * 1.1), Branch((4,), least * 0.9)])
    assert [node.token for node in tree.take_unsent(9, least)] == [2, 3]


def test_a_wait_behind_other_chunks_makes_no_draft_worth_more() -> None:
    usual, behind_prompt, behind_drafts = Ring(), Ring(), Ring()
    behind_prompt.lap(2, is_right=False, are_drafts=False, wait_s=20.0)
    for rows in (1, 8, 4):
        usual.lap(rows, is_right=False, are_drafts=False)
        behind_prompt.lap(rows, is_right=False, are_drafts=False)
        behind_drafts.lap(rows, is_right=False, are_drafts=False, wait_s=0.3 if rows > 1 else 0.0)
    least = usual.pace.least_probability
    assert behind_prompt.pace.least_probability == pytest.approx(least, rel=0.1)
    assert behind_drafts.pace.least_probability > 0.5 * least


def test_a_longer_way_is_believed_in_the_end() -> None:
    ring = Ring()
    for rows in (1, 8, 4):
        ring.lap(rows, is_right=False, are_drafts=False)
    usual = ring.pace.least_probability
    for _ in range(10):
        for rows in (1, 8, 4):
            ring.lap(rows, is_right=False, are_drafts=False, wait_s=0.1)  # no chunk is without it any more
    assert ring.pace.least_probability == pytest.approx(usual * 0.103 / 0.203, rel=0.1)


def test_while_drafts_cost_more_than_they_save_only_better_ones_go() -> None:
    ring = Ring()
    for rows in (1, 8, 4):
        ring.lap(rows)
    usual = ring.pace.least_probability
    for _ in range(40):
        ring.lap(8, is_right=False)
    doubted = ring.pace.least_probability
    assert 2 * usual < doubted <= MOST_PROBABILITY
    for _ in range(20):
        ring.lap(2)
    assert ring.pace.least_probability < doubted / 2


def test_where_drafts_save_far_more_than_they_cost_lesser_ones_go_too() -> None:
    ring = Ring()
    for rows in (1, 8, 4):
        ring.lap(rows, is_right=False, are_drafts=False)
    usual = ring.pace.least_probability
    ring.lap(2)
    assert usual * 0.85 < ring.pace.least_probability < usual  # one right draft says little
    for _ in range(40):
        ring.lap(2)
    assert ring.pace.least_probability == pytest.approx(usual * LEAST_DOUBT, rel=0.05)


def test_drafts_together_must_be_worth_what_the_second_row_costs() -> None:
    even, steep = Ring(), Ring()
    for ring, extra_us in ((even, 0), (steep, 10_000)):  # where a row alone is half as dear, and others are not
        assert ring.pace.are_worth(0.0, 16)  # as long as nothing is known
        for rows in (1, 8, 2, 1, 3) * 4:
            ring.lap(rows, is_right=False, are_drafts=False, extra_us=extra_us if rows > 1 else 0)
    # Three stages take 30 ms longer for a chunk with drafts, and 3 ms for each of them, of a lap of 106 to 160 ms.
    assert even.pace.are_worth(0.05, 2)
    assert not even.pace.are_worth(0.01, 2)
    assert steep.pace.are_worth(0.35, 2)
    assert not steep.pace.are_worth(0.15, 2)
    assert even.pace.are_worth(MOST_PROBABILITY, 10**6)


def test_the_first_draft_is_charged_what_it_costs() -> None:
    kind, dear = Ring(), Ring()
    for ring, extra_us in ((kind, 0), (dear, 20_000)):  # where a second row alone doubles the time, and others do not
        for rows in (1, 8, 2, 1, 3) * 4:
            ring.lap(rows, is_right=rows == 8, extra_us=extra_us if rows > 1 else 0)
    assert dear.pace.least_probability > kind.pace.least_probability


def test_rows_that_are_no_drafts_make_nobody_doubt() -> None:
    ring = Ring()
    for rows in (1, 8, 4):
        ring.lap(rows, is_right=False, are_drafts=False)
    usual = ring.pace.least_probability
    for _ in range(40):
        ring.lap(1, is_right=False)
        ring.lap(8, skipped=7, is_right=False)
    assert ring.pace.least_probability == pytest.approx(usual, rel=0.1)


def test_no_ring_keeps_back_what_is_likely() -> None:
    ring = Ring()
    for rows in (1, 2, 4):
        chunk = Chunk(ChunkRef(SESSION, 0, ring.seq, Slot(0)), (1,) * rows, (Slot(0),) * rows, Slot(0))
        ring.seq += 1
        ring.pace.note_sent(chunk, ring.now)
        ring.pace.note_verdict(Verdict(chunk.ref, 0, (7,) * rows, rows * 10**6, rows * 10**6), chunk, ring.now + 0.001)
    assert ring.pace.least_probability == MOST_PROBABILITY


def test_without_a_pace_everything_goes_at_once() -> None:
    ring = Ring(is_paced=False)
    for rows in (1, 8, 4):
        ring.lap(rows)
    assert ring.pace.next_at < 0
    assert ring.pace.least_probability == 0.0


def test_after_a_loss_nothing_holds_the_next_chunk_up() -> None:
    ring = Ring()
    for rows in (1, 8, 4):
        ring.lap(rows)
    ring.pace.drop()
    assert ring.pace.next_at < 0


def test_one_chunk_that_was_held_up_says_little_of_the_next() -> None:
    for extra_us in (10**7, 2**63):  # a machine that stood still; and one that lies
        ring = Ring()
        for _ in range(5):
            for rows in (1, 8, 4):
                ring.lap(rows)
        usual = ring.pace.least_probability
        chunk = Chunk(ChunkRef(SESSION, 0, ring.seq, Slot(0)), (1, 2), (Slot(0), Slot(1)), Slot(0))
        ring.pace.note_sent(chunk, ring.now)
        ring.seq += 1
        ring.now += 0.1
        ring.pace.note_verdict(Verdict(chunk.ref, 0, (7, 7), extra_us, extra_us), chunk, ring.now)
        assert ring.pace.next_at <= ring.now
        ring.pace.note_sent(chunk, ring.now)
        assert ring.pace.next_at < ring.now + 0.04
        assert ring.pace.least_probability < 4 * usual


def test_a_clock_that_stands_still_or_goes_back_divides_nothing() -> None:
    for way_s in (0.0, -1.0):
        pace = Pace(Limits())
        for seq, rows in enumerate((1, 8, 2, 1, 3)):
            chunk = Chunk(ChunkRef(SESSION, 0, seq, Slot(0)), (1,) * rows, (Slot(0),) * rows, Slot(rows - 1))
            pace.note_sent(chunk, 5.0)
            pace.note_verdict(Verdict(chunk.ref, 0, (7,) * rows, 10_000, 10_000), chunk, 5.0 + way_s)
            assert pace.are_worth(0.0, 8)
            assert pace.least_probability == 0.0


def test_the_cost_of_a_row_is_the_slope() -> None:
    cost = RowCost()
    for rows in (1, 2, 5, 9, 3):
        cost.note(rows, 0.02 + 0.003 * rows)
    assert (cost.base_s, cost.row_s) == (pytest.approx(0.02), pytest.approx(0.003))
    assert cost.seconds(4) == pytest.approx(0.032)


@pytest.mark.parametrize("seen", [[(4, 0.05)] * 5, [(1, 0.05), (8, 0.01)], [(2, 0.05), (4, 0.05)]])
def test_rows_that_seem_to_cost_nothing_or_save_time_cost_nothing(seen: list[tuple[int, float]]) -> None:
    cost = RowCost()
    for rows, seconds in seen:
        cost.note(rows, seconds)
    assert cost.row_s == pytest.approx(0.0)
    assert 0.0 < cost.base_s <= 0.05


def test_a_row_never_costs_more_than_its_share_of_a_chunk() -> None:
    cost = RowCost()
    for rows, seconds in ((1, 0.0), (9, 0.09)):
        cost.note(rows, seconds)
    assert cost.base_s == pytest.approx(0.0)
