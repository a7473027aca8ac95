"""The generation machine, step by step: what is sent, committed and asked for, and when it is over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardp2p.coordinator.commands import (
    PROMPT_CHUNKS,
    Command,
    Emit,
    Finish,
    Limits,
    NeedDraft,
    SendChunk,
    SendCommit,
)
from shardp2p.coordinator.generation import Generation
from shardp2p.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from shardp2p.vocabulary import NO_PARENT, Branch, ChunkRef, SessionId, Slot
from shardp2p.wire.messages import Chunk, Verdict

SESSION = SessionId("ab" * 16)
PROMPT = (100, 101, 102)


class Run:
    """A generation whose commands are collected as they come."""

    def __init__(
        self,
        prompt: Sequence[int] = PROMPT,
        *,
        max_tokens: int = 10,
        stop_tokens: tuple[int, ...] = (),
        waits_for_draft: bool = False,
        **limits: int,
    ) -> None:
        limits.setdefault("draft_tokens", 0)
        self.machine = Generation(
            SESSION,
            prompt,
            max_tokens=max_tokens,
            stop_tokens=frozenset(stop_tokens),
            limits=Limits(**limits),
            waits_for_draft=waits_for_draft,
        )
        self.commands: list[Command] = []
        self.chunks: list[Chunk] = []
        self.drain()

    def drain(self) -> list[Command]:
        """The commands since the last time."""
        self.commands = []
        while (command := self.machine.next_command()) is not None:
            self.commands.append(command)
            if isinstance(command, SendChunk):
                self.chunks.append(command.chunk)
        return self.commands

    def answer(self, *choices: int | None, number: int = -1) -> list[Command]:
        """The verdict on the chunk that was sent as `number`, and what follows from it."""
        chunk = self.chunks[number]
        self.machine.receive_verdict(Verdict(chunk.ref, chunk.quiet, choices))
        return self.drain()

    def draft(self, *branches: tuple[int, ...], request: int | None = None) -> list[Command]:
        """The answer to the latest request, the first branch the most probable."""
        number = self.asked.request if request is None else request
        proposed = [Branch(tokens, 0.5 ** (rank + 1)) for rank, tokens in enumerate(branches)]
        self.machine.receive_draft(number, [proposed])
        return self.drain()

    @property
    def asked(self) -> NeedDraft:
        [request] = [command for command in self.commands if isinstance(command, NeedDraft)]
        return request

    @property
    def emitted(self) -> tuple[int, ...]:
        return tuple(token for command in self.commands if isinstance(command, Emit) for token in command.tokens)


def kinds(commands: Sequence[Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


# the prompt


def test_the_prompt_goes_out_as_a_chain_of_which_only_the_end_is_asked_about() -> None:
    run = Run()
    [chunk] = run.chunks
    assert chunk == Chunk(ChunkRef(SESSION, 0, 0, Slot(0)), PROMPT, (NO_PARENT, Slot(0), Slot(1)), Slot(2), quiet=2)


def test_a_long_prompt_goes_out_in_quiet_chunks_whatever_the_depth_of_drafts() -> None:
    run = Run(range(4 * PROMPT_CHUNKS + 2), prefill_tokens=4, max_chunks=1)
    sent = [(chunk.tokens, chunk.quiet) for chunk in run.chunks]
    assert sent == [(tuple(range(at, at + 4)), 4) for at in range(0, 4 * PROMPT_CHUNKS, 4)]
    assert kinds(run.answer(number=0)) == ["SendChunk"]
    assert (run.chunks[-1].quiet, run.chunks[-1].root) == (1, 4 * PROMPT_CHUNKS + 1)
    assert run.machine.settled_tokens == 4


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "cache_rows", "text"),
    [((), 5, 100, "prompt is empty"), ((1,), 0, 100, "at least 1"), ((1, 2), 9, 10, "only 10 fit")],
)
def test_an_impossible_request_is_the_users_error(
    prompt: tuple[int, ...], max_tokens: int, cache_rows: int, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        Run(prompt, max_tokens=max_tokens, cache_rows=cache_rows)


@pytest.mark.parametrize(
    "limits",
    [{"max_chunks": 0}, {"chunk_tokens": 0}, {"prefill_tokens": 4097}, {"draft_tokens": -1}, {"cache_rows": 0}],
)
def test_impossible_limits_are_refused(limits: dict[str, int]) -> None:
    [name] = limits
    with pytest.raises(ConfigError, match=name):
        Limits(**limits)


# plain decoding


def test_each_verdict_emits_a_token_and_sends_it() -> None:
    run = Run()
    assert kinds(run.answer(7)) == ["Emit", "SendChunk"]
    assert run.emitted == (7,)
    assert (run.chunks[1].tokens, run.chunks[1].parents, run.chunks[1].root, run.chunks[1].quiet) == ((7,), (2,), 3, 0)
    assert run.machine.tokens == (7,)


def test_the_last_token_is_not_sent() -> None:
    run = Run(max_tokens=2)
    run.answer(7)
    assert run.answer(8) == [Emit((8,)), Finish("length", 2, 2)]
    assert len(run.chunks) == 2


def test_a_stop_token_is_emitted_and_ends_it() -> None:
    run = Run(stop_tokens=(8, 9))
    run.answer(7)
    assert run.answer(8) == [Emit((8,)), Finish("stop", 2, 2)]
    assert run.machine.finished == Finish("stop", 2, 2)


def test_quiet_verdicts_are_no_laps() -> None:
    run = Run(range(5), prefill_tokens=4, max_tokens=1)
    run.answer(number=0)
    assert run.answer(7)[-1] == Finish("length", 1, 1)


def test_a_cancelled_generation_says_so_and_then_nothing_more() -> None:
    run = Run()
    run.machine.cancel()
    assert run.drain() == [Finish("cancelled", 0, 0)]
    run.machine.cancel()
    assert run.answer(7) == []
    run.machine.lose_cache()
    assert run.drain() == []


# drafts


def test_drafts_are_asked_for_below_the_end_of_the_text() -> None:
    run = Run(draft_tokens=4, max_chunks=2)
    assert (run.asked.committed_tokens, run.asked.paths, run.asked.depth_tokens) == (3, ((),), 4)
    assert kinds(run.commands) == ["NeedDraft", "SendChunk"]


def test_an_instant_proposer_is_waited_for_and_its_drafts_share_the_chunk() -> None:
    run = Run(draft_tokens=4, waits_for_draft=True, max_chunks=1)
    assert kinds(run.commands) == ["NeedDraft"]
    run.draft((7, 8), (9,))
    [chunk] = run.chunks
    assert chunk.tokens == (*PROMPT, 7, 8, 9)
    assert chunk.parents == (-1, 0, 1, 2, 3, 2)
    assert (chunk.root, chunk.quiet) == (2, 2)


def test_an_empty_draft_lets_the_text_go_alone() -> None:
    run = Run(draft_tokens=4, waits_for_draft=True)
    assert kinds(run.draft()) == ["SendChunk"]
    assert run.chunks[0].tokens == PROMPT


def test_a_verdict_on_drafts_commits_as_far_as_they_are_right() -> None:
    run = Run(draft_tokens=4, waits_for_draft=True, max_chunks=1)
    run.draft((7, 8, 9))
    assert run.answer(7, 8, 1, 5) == [Emit((7, 8, 1)), run.asked]
    assert (run.asked.committed_tokens, run.machine.tokens) == (6, (7, 8, 1))
    assert kinds(run.draft()) == ["SendChunk"]
    assert (run.chunks[1].ref.first_slot, run.chunks[1].tokens, run.chunks[1].parents) == (6, (1,), (4,))


def test_whole_drafts_that_are_right_give_one_more_token() -> None:
    run = Run(draft_tokens=4, waits_for_draft=True, max_chunks=1)
    run.draft((7, 8))
    run.answer(7, 8, 9)
    assert run.emitted == (7, 8, 9)


def test_a_stop_token_among_right_drafts_ends_it_there() -> None:
    run = Run(draft_tokens=4, waits_for_draft=True, stop_tokens=(8,))
    run.draft((7, 8, 9))
    assert run.answer(7, 8, 9, 1, number=0) == [Emit((7, 8)), Finish("stop", 2, 1)]


def test_a_second_branch_that_is_right_is_taken() -> None:
    run = Run(draft_tokens=4, waits_for_draft=True, max_chunks=1)
    run.draft((7, 8), (5, 6))
    run.answer(5, 1, 1, 6, 2)
    assert run.emitted == (5, 6, 2)


def test_depth_fills_with_drafts_while_the_text_travels() -> None:
    run = Run(draft_tokens=2, chunk_tokens=2, max_chunks=3, max_tokens=50)
    assert kinds(run.commands) == ["NeedDraft", "SendChunk"]
    assert kinds(run.draft((7, 8))) == ["NeedDraft", "SendChunk"]
    assert run.asked.paths == ((7, 8),)
    assert kinds(run.draft((9, 10), (11,))) == ["NeedDraft", "SendChunk"]
    assert run.asked.paths == ((7, 8, 9, 10), (7, 8, 11))
    assert [chunk.tokens for chunk in run.chunks] == [PROMPT, (7, 8), (9, 10)]
    assert run.chunks[2].parents == (4, 5)


def test_a_commit_overtakes_what_is_in_the_ring() -> None:
    run = Run(draft_tokens=2, chunk_tokens=2, max_chunks=3)
    run.draft((7, 8))
    commands = run.answer(7, number=0)
    [commit] = [command.commit for command in commands if isinstance(command, SendCommit)]
    assert (commit.epoch, commit.root, commit.parent) == (0, 3, 2)


def test_a_correction_is_announced_under_the_slot_that_it_is_then_sent_with() -> None:
    run = Run(draft_tokens=2, chunk_tokens=3, max_chunks=3)
    run.draft((7, 8))
    commands = run.answer(1, number=0)
    [commit] = [command.commit for command in commands if isinstance(command, SendCommit)]
    correction = run.chunks[-1]
    assert (commit.root, commit.parent) == (correction.ref.first_slot, 2) == (5, 2)
    assert (correction.tokens, correction.parents, correction.root, correction.quiet) == ((1,), (2,), 5, 0)


def test_nothing_is_announced_when_nothing_is_in_the_ring() -> None:
    assert "SendCommit" not in kinds(Run().answer(7))


def test_a_correction_goes_before_drafts_and_drafts_fill_its_chunk() -> None:
    run = Run(draft_tokens=2, chunk_tokens=5, max_chunks=1, waits_for_draft=True)
    run.draft((7, 8))
    run.answer(1, 2, 3)
    run.draft((4, 5))
    assert run.chunks[-1].tokens == (1, 4, 5)
    assert run.chunks[-1].parents == (2, 5, 6)


def test_a_chunk_of_drafts_asks_for_all_its_rows() -> None:
    run = Run(draft_tokens=2, max_chunks=2)
    run.draft((7, 8))
    assert (run.chunks[1].quiet, run.chunks[1].root) == (0, 2)


def test_each_leaf_is_asked_about_once() -> None:
    run = Run(draft_tokens=2, max_chunks=4)
    assert run.draft() == []
    assert kinds(run.answer(7, number=0)) == ["Emit", "NeedDraft", "SendChunk"]
    assert run.asked.committed_tokens == 4


def test_a_draft_that_events_have_overtaken_is_dropped() -> None:
    run = Run(draft_tokens=2, max_chunks=4)
    old = run.asked.request
    run.answer(7, number=0)
    assert run.asked.request != old
    assert run.draft((1, 2), request=old) == []


def test_a_draft_below_a_draft_that_was_committed_meanwhile_still_counts() -> None:
    run = Run(draft_tokens=1, max_chunks=3)
    run.draft((7,))
    request = run.asked.request
    run.answer(7, number=0)
    run.draft((8,), request=request)
    assert run.chunks[-1].tokens == (8,)
    assert run.chunks[-1].parents == (3,)


def test_a_draft_below_a_draft_that_died_is_dropped() -> None:
    run = Run(draft_tokens=1, max_chunks=3)
    run.draft((7,))
    request = run.asked.request
    run.answer(1, number=0)
    assert run.draft((8,), request=request) == []


@pytest.mark.parametrize(("max_tokens", "depth"), [(1, 0), (2, 1), (3, 2), (9, 4)])
def test_no_draft_is_asked_for_beyond_the_end(max_tokens: int, depth: int) -> None:
    run = Run(max_tokens=max_tokens, draft_tokens=4)
    asked = [command.depth_tokens for command in run.commands if isinstance(command, NeedDraft)]
    assert asked == ([depth] if depth else [])


def test_what_a_proposer_says_beyond_the_end_is_not_sent() -> None:
    run = Run(max_tokens=3, draft_tokens=4, waits_for_draft=True)
    run.draft((1, 2, 3, 4, 5))
    assert run.chunks[0].tokens == (*PROMPT, 1, 2)


def test_drafts_leave_room_for_the_text_in_the_cache() -> None:
    run = Run(max_tokens=10, draft_tokens=9, chunk_tokens=20, waits_for_draft=True, cache_rows=13)
    run.draft(tuple(range(9)), (20, 21, 22, 23))
    assert len(run.chunks[0].tokens) == 13


def test_the_rest_of_a_long_prompt_goes_out_without_waiting_for_a_draft() -> None:
    run = Run(range(10), prefill_tokens=4, draft_tokens=2, waits_for_draft=True, max_chunks=8)
    assert [chunk.tokens for chunk in run.chunks] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert kinds(run.draft((10,))) == ["SendChunk", "NeedDraft"]
    assert run.chunks[2].tokens == (8, 9, 10)


# misuse


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seq": 1}, "not the oldest"),
        ({"first_slot": Slot(1)}, "not the oldest"),
        ({"epoch": 1}, "not the oldest"),
        ({"session": SessionId("cd" * 16)}, "not the oldest"),
    ],
)
def test_a_verdict_on_another_chunk_is_the_peers_fault(change: dict[str, object], text: str) -> None:
    run = Run()
    usual = {"session": SESSION, "epoch": 0, "seq": 0, "first_slot": Slot(0)}
    with pytest.raises(RemoteProtocolError, match=text):
        run.machine.receive_verdict(Verdict(ChunkRef(**usual | change), 2, (7,)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("quiet", "choices"), [(2, ()), (2, (7, 8)), (1, (7,)), (3, (7,)), (1, (6, 7))])
def test_a_verdict_of_another_size_is_the_peers_fault(quiet: int, choices: tuple[int, ...]) -> None:
    run = Run()
    with pytest.raises(RemoteProtocolError, match="wrong number of choices"):
        run.machine.receive_verdict(Verdict(run.chunks[0].ref, quiet, choices))


def test_a_verdict_outside_the_vocabulary_is_the_peers_fault() -> None:
    machine = Generation(SESSION, PROMPT, max_tokens=3, vocab_size=320, limits=Limits(draft_tokens=0))
    command = machine.next_command()
    assert isinstance(command, SendChunk)
    with pytest.raises(RemoteProtocolError, match="a token that the model does not have"):
        machine.receive_verdict(Verdict(command.chunk.ref, command.chunk.quiet, (320,)))


def test_a_verdict_that_skips_the_committed_leaf_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="slot 2 was skipped although it is alive"):
        Run().answer(None)


def test_a_verdict_that_skips_a_live_draft_is_the_peers_fault() -> None:
    run = Run(draft_tokens=2, waits_for_draft=True)
    run.draft((7, 8))
    with pytest.raises(RemoteProtocolError, match="slot 3 was skipped although it is alive"):
        run.answer(7, None, 1, number=0)


def test_a_verdict_may_skip_what_is_dead() -> None:
    run = Run(draft_tokens=2, max_chunks=3)
    run.draft((7, 8))
    run.answer(1, number=0)
    assert run.answer(None, None, number=1) == []
    assert run.machine.tokens == (1,)


def test_what_a_verdict_says_about_the_dead_is_ignored() -> None:
    run = Run(draft_tokens=2, max_chunks=3)
    run.draft((7, 8))
    run.answer(1, number=0)
    run.answer(8, 9, number=1)
    assert run.machine.tokens == (1,)


# a lost cache


def test_a_lost_cache_is_a_new_epoch_with_the_whole_text() -> None:
    run = Run(draft_tokens=2, max_chunks=2)
    run.draft((7, 8))
    run.answer(7, number=0)
    run.machine.lose_cache()
    run.drain()
    chunk = run.chunks[-1]
    assert (chunk.ref.epoch, chunk.ref.first_slot, chunk.tokens, chunk.quiet) == (1, 0, (*PROMPT, 7), 3)
    assert chunk.ref.seq == len(run.chunks) - 1
    assert run.machine.tokens == (7,)
    assert run.machine.epoch == 1


def test_a_new_epoch_may_keep_what_is_settled() -> None:
    run = Run()
    run.answer(7)
    assert run.machine.settled_tokens == 3
    run.machine.lose_cache(2)
    run.drain()
    assert (run.chunks[-1].ref.first_slot, run.chunks[-1].tokens, run.chunks[-1].parents) == (2, (102, 7), (1, 2))
    with pytest.raises(LocalProtocolError, match="2 tokens are settled"):
        run.machine.lose_cache(3)


def test_verdicts_and_drafts_of_an_earlier_epoch_change_nothing() -> None:
    run = Run(draft_tokens=2, max_chunks=2)
    old = run.asked.request
    run.machine.lose_cache()
    assert kinds(run.drain()) == ["NeedDraft", "SendChunk"]
    assert run.answer(7, number=0) == []
    assert run.draft((7,), request=old) == []
    assert run.machine.tokens == ()
    run.answer(5, number=1)
    assert run.machine.tokens == (5,)


def test_what_was_committed_but_not_drained_is_still_emitted_after_a_loss() -> None:
    run = Run()
    run.machine.receive_verdict(Verdict(run.chunks[0].ref, 2, (7,)))
    run.machine.lose_cache()
    assert kinds(run.drain()) == ["Emit", "SendChunk"]
    assert run.emitted == (7,)
