"""A stage's session: order, epochs, dead rows, the cache's rows, and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import OverloadedError, RemoteProtocolError
from shardp2p.stage.session import COMPACT_DEAD_ROWS, Keep, Session, Work
from shardp2p.vocabulary import ChunkRef, SessionId, Slot
from shardp2p.wire.messages import Activations, Chunk, Commit, Tokens
from shardp2p.wire.tensor_frame import TensorFrame

SESSION = SessionId("ab" * 16)


def session(cache_rows: int = 100, max_chunks: int = 8, *, needs_tokens: bool = False) -> Session:
    return Session(cache_rows=cache_rows, max_chunks=max_chunks, needs_tokens=needs_tokens)


def chunk(first: int, parents: Sequence[int], root: int, *, seq: int, epoch: int = 0, quiet: int = 0) -> Chunk:
    return Chunk(
        ref=ChunkRef(SESSION, epoch, seq, Slot(first)),
        tokens=tuple(range(first, first + len(parents))),
        parents=tuple(map(Slot, parents)),
        root=Slot(root),
        quiet=quiet,
    )


def activations(of: Chunk, skipped: Sequence[int] = ()) -> Activations:
    rows = len(of.parents) - len(skipped)
    frame = TensorFrame("raw", "float32", (rows, 1), bytes(4 * rows)) if rows else None
    return Activations(of.ref, of.parents, of.root, of.quiet, tuple(skipped), frame)


def line(first: int, count: int, *, seq: int, epoch: int = 0) -> Chunk:
    """Committed text: each slot below the one before it."""
    return chunk(first, range(first - 1, first + count - 1), first + count - 1, seq=seq, epoch=epoch)


def kept(work: Work) -> tuple[int, ...] | None:
    """The cache rows that stay."""
    return None if work.keep is None else (*range(work.keep.first), *work.keep.rows)


def work_of(made: Session) -> Work:
    work = made.next_work()
    assert work is not None
    return work


# order


def test_chunks_are_worked_on_in_the_order_of_arrival() -> None:
    made = session()
    for seq in range(3):
        made.receive(line(2 * seq, 2, seq=seq))
    assert made.queued == 3
    works = [work_of(made) for _ in range(3)]
    assert [work.ref.seq for work in works] == [0, 1, 2]
    assert [work.cache_parents for work in works] == [(-1, 0), (1, 2), (3, 4)]
    assert [work.positions for work in works] == [(0, 1), (2, 3), (4, 5)]
    assert made.next_work() is None


@pytest.mark.parametrize("seq", [0, 2, 7])
def test_a_gap_or_a_repeat_in_the_order_is_refused(seq: int) -> None:
    made = session()
    made.receive(line(0, 2, seq=0))
    with pytest.raises(RemoteProtocolError, match="number 1 was due"):
        made.receive(line(2, 2, seq=seq))


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_gap_or_an_overlap_of_slots_is_refused(first: int) -> None:
    made = session()
    made.receive(line(0, 2, seq=0))
    with pytest.raises(RemoteProtocolError, match="slot 2 was due"):
        made.receive(line(first, 2, seq=1))


@pytest.mark.parametrize("begins_at", [0, 3, 8])
def test_a_session_with_shared_rows_begins_at_any_of_them(begins_at: int) -> None:
    made = Session(cache_rows=100, max_chunks=8, shared_rows=8)
    made.receive(line(begins_at, 4, seq=0))
    work = work_of(made)
    assert kept(work) == (None if begins_at == 8 else tuple(range(begins_at)))
    assert work.cache_parents == tuple(range(begins_at - 1, begins_at + 3))
    assert work.positions == tuple(range(begins_at, begins_at + 4))
    assert made.text_rows() == tuple(range(begins_at + 4))


def test_the_leading_rows_end_where_a_dead_one_was_and_where_none_is_computed() -> None:
    made = session()
    made.receive(line(0, 6, seq=0))
    assert made.leading_rows() == 0
    work_of(made)
    assert made.leading_rows() == 6
    made.receive(chunk(6, [5, 5], 7, seq=1))
    work_of(made)
    assert made.text_rows() == (0, 1, 2, 3, 4, 5, 6)
    assert made.leading_rows() == 6
    made.receive(line(4, 1, seq=2, epoch=1))
    assert made.leading_rows() == 0


def test_a_session_begins_at_no_row_that_it_does_not_share() -> None:
    made = Session(cache_rows=100, max_chunks=8, shared_rows=8)
    with pytest.raises(RemoteProtocolError, match="cannot begin at 9"):
        made.receive(line(9, 4, seq=0))


def test_the_rows_of_the_text_are_known_though_dead_ones_lie_between_and_the_last_are_not_there() -> None:
    made = session()
    made.receive(chunk(0, [-1, 0, 0, 2], 0, seq=0))
    assert work_of(made).rows == (0, 1, 2, 3)
    made.receive(chunk(4, [2], 4, seq=1))
    assert made.text_rows() == (0, 2)
    assert work_of(made).cache_parents == (2,)
    assert made.text_rows() == (0, 2, 4)


def test_more_chunks_than_agreed_are_refused() -> None:
    made = session(max_chunks=2)
    made.receive(line(0, 1, seq=0))
    made.receive(line(1, 1, seq=1))
    with pytest.raises(RemoteProtocolError, match="more than 2 chunks"):
        made.receive(line(2, 1, seq=2))


def test_the_first_chunk_begins_at_slot_0_with_any_number() -> None:
    made = session()
    made.receive(line(0, 2, seq=17, epoch=3))
    assert (made.epoch, work_of(made).positions) == (3, (0, 1))
    with pytest.raises(RemoteProtocolError, match="0 positions are known"):
        session().receive(line(2, 1, seq=0))


# dead rows


def test_the_children_of_another_leaf_are_skipped() -> None:
    made = session()
    made.receive(chunk(0, (-1, 0, 0, 1, 2), 0, seq=0))
    made.receive(chunk(5, (3, 4), 2, seq=1))
    works = [work_of(made), work_of(made)]
    assert [(work.rows, work.skipped) for work in works] == [((0, 2, 4), (1, 3)), ((1,), (0,))]
    assert works[0].inputs == (0, 2, 4)
    assert works[0].cache_parents == (-1, 0, 1)
    assert works[1].cache_parents == (2,)
    assert works[1].positions == (3,)


def test_a_commit_overtakes_queued_chunks() -> None:
    made = session()
    made.receive(line(0, 2, seq=0))
    work_of(made)
    made.receive(chunk(2, (1, 2), 1, seq=1))
    made.receive(chunk(4, (3,), 1, seq=2))
    made.commit(Commit(0, Slot(5), Slot(1)))  # a correction that is still on its way
    assert [work_of(made).skipped for _ in range(2)] == [(0, 1), (0,)]
    made.receive(chunk(5, (1,), 5, seq=3))
    work = work_of(made)
    assert (work.rows, work.cache_parents, work.positions) == ((0,), (1,), (2,))


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_commit_of_another_epoch_changes_nothing(epoch: int) -> None:
    made = session()
    made.receive(line(0, 2, seq=0, epoch=1))
    made.receive(chunk(2, (1,), 1, seq=1, epoch=1))
    made.commit(Commit(epoch, Slot(9), Slot(8)))
    assert [work_of(made).skipped for _ in range(2)] == [(), ()]


def test_rows_that_were_skipped_upstream_are_dead_here_and_have_no_input() -> None:
    made = session()
    made.receive(activations(line(0, 1, seq=0)))
    made.receive(activations(chunk(1, (0, 0, 1, 2), 0, seq=1), skipped=(0,)))
    assert work_of(made).inputs == (0,)
    work = work_of(made)
    assert (work.rows, work.skipped) == ((1, 3), (0, 2))
    assert work.inputs == (0, 2)  # of the three that arrived


def test_a_committed_row_must_not_be_skipped_upstream() -> None:
    made = session()
    made.receive(activations(line(0, 1, seq=0)))
    made.commit(Commit(0, Slot(1), Slot(0)))
    with pytest.raises(RemoteProtocolError, match="slot 1 is committed and was skipped"):
        made.receive(activations(line(1, 2, seq=1), skipped=(0,)))


def test_verdict_rows_are_the_computed_ones_that_are_not_quiet() -> None:
    made = session()
    made.receive(chunk(0, (-1, 0, 1, 1, 2), 1, seq=0, quiet=1))
    made.commit(Commit(0, Slot(3), Slot(1)))
    assert work_of(made).verdict_rows == (1, 3)


# the cache


def test_a_full_cache_is_declined() -> None:
    made = session(cache_rows=5)
    made.receive(line(0, 5, seq=0))
    work_of(made)
    made.receive(line(5, 1, seq=1))
    with pytest.raises(OverloadedError, match=r"5 cache rows are full \(5 used, 1 more needed\)"):
        made.next_work()


def test_dead_rows_make_room_when_the_cache_is_full() -> None:
    made = session(cache_rows=5)
    made.receive(chunk(0, (-1, 0, 0, 0, 0), 0, seq=0))
    assert kept(work_of(made)) is None
    made.receive(chunk(5, (3, 5), 3, seq=1))
    work = work_of(made)
    assert kept(work) == (0, 3)
    assert (work.cache_parents, work.positions) == ((1, 2), (2, 3))


def test_many_dead_rows_are_compacted_though_there_is_room() -> None:
    made = session(cache_rows=10_000)
    branches = COMPACT_DEAD_ROWS + 1
    made.receive(chunk(0, (-1, *(0,) * branches), 0, seq=0))
    assert kept(work_of(made)) is None
    made.receive(chunk(branches + 1, (branches,), branches, seq=1))
    work = work_of(made)
    assert kept(work) == (0, branches)
    assert work.cache_parents == (1,)


def test_rows_that_are_not_computed_yet_are_not_counted_as_dead() -> None:
    made = session(cache_rows=10_000)
    made.receive(line(0, 200, seq=0))
    made.receive(line(200, 200, seq=1))
    assert [kept(work_of(made)) for _ in range(2)] == [None, None]


def test_a_compaction_costs_what_lies_behind_the_text() -> None:
    made = session(cache_rows=10_000)
    made.receive(line(0, 4_000, seq=0))
    work_of(made)
    made.receive(chunk(4_000, (3_999,) * 2_000, 3_999, seq=1))
    work_of(made)
    made.receive(chunk(6_000, (4_001, 6_000), 6_000, seq=2))
    assert work_of(made).keep == Keep(4_000, (4_001,))
    made.receive(chunk(6_002, (6_000,) * 2_000, 6_000, seq=3))
    work_of(made)
    made.receive(chunk(8_002, (6_002,), 8_002, seq=4))
    assert work_of(made).keep == Keep(4_002, (4_003,))


# epochs


def test_a_new_epoch_drops_what_waits_and_keeps_the_rows_of_the_text() -> None:
    made = session()
    made.receive(chunk(0, (-1, 0, 0, 2), 2, seq=0))  # the text is 0, 2
    work_of(made)
    made.receive(chunk(4, (3,), 2, seq=1))
    made.receive(chunk(2, (1, 2), 3, seq=5, epoch=1))
    assert (made.epoch, made.queued) == (1, 1)
    work = work_of(made)
    assert kept(work) == (0, 1)  # slot 1 was skipped: the text's rows are the first two
    assert (work.cache_parents, work.positions) == ((1, 2), (2, 3))
    made.receive(line(4, 1, seq=2))  # of the old epoch, late
    assert made.next_work() is None
    with pytest.raises(RemoteProtocolError, match="number 6 was due"):
        made.receive(line(4, 1, seq=7, epoch=1))


def test_two_epochs_in_a_row_compose_what_they_keep() -> None:
    made = session()
    made.receive(chunk(0, (-1, 0, 0, 0, 3, 4), 0, seq=0))
    work_of(made)
    made.commit(Commit(0, Slot(5), Slot(4)))  # the text is 0, 3, 4, 5
    made.receive(line(3, 1, seq=1, epoch=1))
    made.receive(line(2, 2, seq=2, epoch=2))
    work = work_of(made)
    assert kept(work) == (0, 3)
    assert (work.cache_parents, work.positions) == ((1, 2), (2, 3))


def test_an_epoch_keeps_rows_that_lie_apart_and_later_work_builds_on_them() -> None:
    made = session(cache_rows=8)
    made.receive(chunk(0, (-1, 0, 0, 0, 3, 4), 0, seq=0))  # six rows; the text will be 0, 3, 4
    work_of(made)
    made.commit(Commit(0, Slot(4), Slot(3)))
    made.receive(chunk(3, (2, 2, 2, 2, 2), 3, seq=1, epoch=1))  # keeps the text's three rows, and fills the cache
    made.receive(chunk(8, (3,), 8, seq=2, epoch=1))
    made.commit(Commit(1, Slot(8), Slot(3)))
    works = [work_of(made), work_of(made)]
    assert (kept(works[0]), works[0].cache_parents) == ((0, 3, 4), (2,))
    assert (kept(works[1]), works[1].cache_parents) == (None, (3,))


def test_rows_that_die_between_an_epoch_and_its_first_work_are_dropped_with_it() -> None:
    made = session(cache_rows=4)
    made.receive(line(0, 4, seq=0))
    work_of(made)
    made.receive(chunk(2, (1, 1), 2, seq=1, epoch=1))
    work = work_of(made)
    assert (kept(work), work.rows, work.cache_parents) == ((0, 1), (0,), (1,))


def test_an_epoch_cannot_keep_what_was_never_computed_here() -> None:
    made = session()
    made.receive(line(0, 3, seq=0))
    with pytest.raises(RemoteProtocolError, match="never computed"):
        made.receive(line(2, 1, seq=1, epoch=1))


def test_an_epoch_cannot_keep_more_than_is_committed() -> None:
    made = session()
    made.receive(chunk(0, (-1, 0, 1), 1, seq=0))
    work_of(made)
    with pytest.raises(RemoteProtocolError, match="2 positions are known"):
        made.receive(line(3, 1, seq=1, epoch=1))


# token ids


@pytest.mark.parametrize("is_chunk_first", [True, False])
def test_work_waits_for_its_token_ids(is_chunk_first: bool) -> None:
    made = session(needs_tokens=True)
    if is_chunk_first:
        made.receive(line(0, 3, seq=0))
        assert made.next_work() is None
    made.receive_tokens(Tokens(0, Slot(0), (7, 8)))
    if not is_chunk_first:
        made.receive(line(0, 3, seq=0))
    assert made.next_work() is None
    made.receive_tokens(Tokens(0, Slot(2), (9,)))
    assert work_of(made).rows == (0, 1, 2)
    assert [made.token(Slot(slot)) for slot in range(3)] == [7, 8, 9]


def test_the_token_ids_of_a_new_epoch_begin_at_slot_0_and_may_come_before_it() -> None:
    made = session(needs_tokens=True)
    made.receive_tokens(Tokens(0, Slot(0), (7, 8, 9)))
    made.receive(line(0, 3, seq=0))
    work_of(made)
    made.receive_tokens(Tokens(1, Slot(0), (7, 8)))
    made.receive_tokens(Tokens(0, Slot(3), (1,)))  # late
    made.receive(line(2, 1, seq=1, epoch=1))
    assert made.next_work() is None
    made.receive_tokens(Tokens(1, Slot(2), (5,)))
    assert work_of(made).cache_parents == (1,)
    assert made.token(Slot(2)) == 5


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_gap_or_an_overlap_of_token_ids_is_refused(first: int) -> None:
    made = session(needs_tokens=True)
    made.receive_tokens(Tokens(0, Slot(0), (7, 8)))
    with pytest.raises(RemoteProtocolError, match="2 was due"):
        made.receive_tokens(Tokens(0, Slot(first), (9,)))


def test_token_ids_that_nothing_depends_on_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="do not depend on them"):
        session().receive_tokens(Tokens(0, Slot(0), (7,)))


# anything


@given(st.integers(0, 2**32))
def test_whatever_peers_send_is_work_or_their_fault(seed: int) -> None:
    rng = random.Random(seed)
    made = Session(cache_rows=rng.choice((3, 10, 50)), max_chunks=rng.choice((1, 4)), needs_tokens=rng.random() < 0.5)
    rows = 0
    for seq in range(40):
        try:
            rows = hostile_step(made, rng, seq, rows)
        except OverloadedError:
            return
        except RemoteProtocolError:
            if rng.random() < 0.7:
                return  # as the service does; but nothing worse happens to one that goes on


def hostile_step(made: Session, rng: random.Random, seq: int, rows: int) -> int:
    """Something that a codec lets through. Gives how many rows the cache has now."""
    kind = rng.randrange(4)
    if kind == 0:
        made.commit(Commit(rng.randrange(2), Slot(rng.randrange(1, 20)), Slot(rng.randrange(20))))
    elif kind == 1:
        made.receive_tokens(Tokens(rng.randrange(2), Slot(rng.randrange(3)), (1,) * rng.randint(1, 9)))
    elif kind == 2:
        first = made._lineage.next_slot if rng.random() < 0.8 else rng.randrange(20)
        parents = [rng.randrange(s) if s else -1 for s in range(first, first + rng.randint(1, 6))]
        sent = chunk(
            first,
            parents,
            rng.randrange(first + len(parents)),
            seq=made._next_seq if rng.random() < 0.9 else seq,
            epoch=made.epoch + (rng.random() < 0.1),
        )
        made.receive(activations(sent, sorted(rng.sample(range(len(parents)), rng.randint(0, 1)))))
    elif (work := made.next_work()) is not None:
        stay = range(rows) if work.keep is None else kept(work) or ()
        assert list(stay) == sorted(set(stay))
        assert all(row < rows for row in stay)
        for at, parent in enumerate(work.cache_parents):
            assert -1 <= parent < len(stay) + at
        assert sorted((*work.rows, *work.skipped)) == list(range(len(work.arrival.parents)))
        assert all(0 <= at < len(work.arrival.parents) for at in work.inputs)
        return len(stay) + len(work.rows)
    return rows
