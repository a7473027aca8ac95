"""A proposer that takes its time: what is overtaken is left out, and its thread ends with the answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import trio

from shardp2p.coordinator.commands import NeedDraft
from shardp2p.coordinator.draft_thread import Answer, DraftThread
from shardp2p.coordinator.driver import open_generation
from shardp2p.vocabulary import Branch, Token
from tests.support.fake_block import fake_reference
from tests.support.proposers import OracleMix
from tests.support.sim_ring import SimRing, prompt, request

TOKENS = 16
LONG_TOKENS = 400  # seconds of answering
ENDS_S = 10.0


class Held:
    """Answers with what it was asked, each time that it is let."""

    is_instant = False

    def __init__(self) -> None:
        self.may_answer = threading.Semaphore(0)
        self.is_busy = threading.Event()

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> list[tuple[Branch, ...]]:
        self.is_busy.set()
        self.may_answer.acquire()
        return [(Branch((*text, *path, depth_tokens), 0.5),) for path in paths]

    def finish(self, text: Sequence[Token]) -> None:
        pass


class Slow(OracleMix):
    """Right now and then, and asked in a thread."""

    @property
    def is_instant(self) -> bool:
        return False


class Broken(Held):
    """Has no answer."""

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> list[tuple[Branch, ...]]:
        raise ZeroDivisionError("a draft that cannot be")


class Late(Held):
    """Fails once it is let."""

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> list[tuple[Branch, ...]]:
        super().propose(text, paths, depth_tokens)
        raise ZeroDivisionError("a draft that cannot be")


def question(number: int) -> NeedDraft:
    return NeedDraft(number, 1, ((Token(number),),), 4)


async def test_the_latest_question_is_answered_and_those_before_it_are_left_out() -> None:
    proposer, answers = Held(), list[Answer]()
    thread = DraftThread(proposer, answers.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(thread.run)
        thread.ask(question(1), (7,))
        await trio.to_thread.run_sync(proposer.is_busy.wait)
        for number in (2, 3, 4):
            thread.ask(question(number), (7, number))
        proposer.may_answer.release(2)
        while len(answers) < 2:
            await trio.lowlevel.checkpoint()
        thread.close()
    assert answers == [(1, [(Branch((7, 1, 4), 0.5),)]), (4, [(Branch((7, 4, 4, 4), 0.5),)])]


async def test_closing_leaves_out_what_waits_and_waits_for_no_answer() -> None:
    proposer, answers = Held(), list[Answer]()
    thread = DraftThread(proposer, answers.append)
    with trio.fail_after(ENDS_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.run)
            thread.ask(question(1), ())
            await trio.to_thread.run_sync(proposer.is_busy.wait)
            thread.ask(question(2), ())
            thread.close()
            nursery.cancel_scope.cancel()
    proposer.may_answer.release(2)
    await trio.sleep(0.05)
    assert answers == []
    assert proposer.may_answer.acquire(blocking=False)  # the second was not asked


@pytest.mark.parametrize("is_closed", [True, False])
async def test_a_failure_matters_only_while_somebody_asks(is_closed: bool) -> None:
    proposer = Late()
    thread = DraftThread(proposer, list[Answer]().append)
    expected = nullcontext() if is_closed else pytest.RaisesGroup(ZeroDivisionError)
    with expected:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.run)
            thread.ask(question(1), ())
            await trio.to_thread.run_sync(proposer.is_busy.wait)
            if is_closed:
                thread.close()
            proposer.may_answer.release()


@pytest.mark.parametrize("stages", [1, 3])
async def test_drafts_of_a_thread_change_nothing_about_the_answer(stages: int) -> None:
    expected = fake_reference(prompt(), TOKENS)
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, stages)
        proposer = Slow(prompt() + expected, 0.8, 2)
        tokens, result = await ring.generate(request(TOKENS), proposer=proposer)
        assert tokens == expected
        assert result.finish is not None
        assert result.finish.laps <= TOKENS


async def test_a_proposer_that_fails_ends_the_generation_with_its_error() -> None:
    with trio.fail_after(ENDS_S), pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await SimRing(nursery, 2).generate(request(LONG_TOKENS), proposer=Broken())


@pytest.mark.parametrize("is_busy", [True, False])
async def test_leaving_early_waits_for_no_draft(is_busy: bool) -> None:
    proposer = Held()
    with trio.fail_after(ENDS_S):
        async with trio.open_nursery() as nursery:
            ring = SimRing(nursery, 2)
            asked = request(LONG_TOKENS)
            async with open_generation(ring.network, ring.verdicts, ring.plan, asked, proposer=proposer) as stream:
                await trio.to_thread.run_sync(proposer.is_busy.wait)
                if not is_busy:
                    proposer.may_answer.release(LONG_TOKENS)
                    await anext(aiter(stream))
            assert stream.result.finish is None
    proposer.may_answer.release(LONG_TOKENS)


async def test_an_answer_is_complete_without_the_draft_that_is_under_way() -> None:
    proposer = Held()
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, 2)
        tokens, _ = await ring.generate(request(TOKENS), proposer=proposer)  # which fails if it hangs
    assert tokens == fake_reference(prompt(), TOKENS)
    proposer.may_answer.release()
