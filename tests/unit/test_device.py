"""The device thread: one OS thread, results and errors to the caller, no cancellation in the middle."""

from __future__ import annotations

import threading
import weakref

import pytest
import trio

from shardp2p.errors import LocalProtocolError
from shardp2p.runtime.device import DeviceThread, set_threads


async def test_every_call_runs_in_the_same_thread_that_is_not_the_loops() -> None:
    with DeviceThread() as device:
        idents = {await device.run(threading.get_ident) for _ in range(20)}
    assert len(idents) == 1
    assert threading.get_ident() not in idents


async def test_results_and_errors_reach_the_task_that_asked() -> None:
    results: dict[int, int] = {}

    async def ask(device: DeviceThread, number: int) -> None:
        results[number] = await device.run(pow, number, 2)

    with DeviceThread() as device:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, device, number)
        with pytest.raises(ZeroDivisionError):
            await device.run(divmod, 1, 0)
        assert await device.run(pow, 3, 3) == 27
    assert results == {number: number**2 for number in range(10)}


async def test_cancellation_waits_for_the_running_call_and_keeps_its_result() -> None:
    entered, release = threading.Event(), threading.Event()
    seen: list[str] = []

    def work() -> str:
        entered.set()
        assert release.wait(5)
        return "done"

    with DeviceThread() as device:

        async def ask() -> None:
            seen.append(await device.run(work))
            await trio.lowlevel.checkpoint()
            seen.append("not reached")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.to_thread.run_sync(entered.wait)
            nursery.cancel_scope.cancel()
            release.set()
    assert seen == ["done"]


async def test_call_that_nobody_needs_any_more_is_not_waited_for() -> None:
    entered, release = threading.Event(), threading.Event()

    def work() -> str:
        entered.set()
        release.wait(5)
        return "late"

    device = DeviceThread()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.run_abandonable, work)
            await trio.to_thread.run_sync(entered.wait)
            scope.cancel()
    device.close()
    assert not release.is_set()
    release.set()
    await trio.sleep(0.01)  # the late result comes to nobody
    assert scope.cancelled_caught


async def test_abandonable_call_that_is_not_abandoned_is_like_any_other() -> None:
    with DeviceThread() as device:
        assert await device.run_abandonable(pow, 3, 3) == 27
        with pytest.raises(ZeroDivisionError):
            await device.run_abandonable(divmod, 1, 0)


async def test_cancelled_task_does_not_start_a_call() -> None:
    calls: list[int] = []
    with DeviceThread() as device:
        with trio.CancelScope() as scope:
            scope.cancel()
            await device.run(calls.append, 1)
        assert await device.run(lambda: len(calls)) == 0
    assert scope.cancelled_caught


async def test_results_are_not_kept_alive_by_the_thread() -> None:
    class Result:
        pass

    with DeviceThread() as device:
        result = await device.run(Result)
        await device.run(int)
        reference = weakref.ref(result)
        del result
        assert reference() is None


async def test_closed_thread_takes_no_calls_and_leaves_no_thread() -> None:
    device = DeviceThread("device-under-test")
    await device.run(int)
    device.close()
    device.close()
    assert "device-under-test" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(LocalProtocolError, match="closed"):
        await device.run(int)


def test_one_thread_serves_one_loop_after_another() -> None:
    device = DeviceThread()
    results: list[int] = []

    async def main() -> None:
        results.append(await device.run(int, "7"))

    trio.run(main)
    trio.run(main)
    device.close()
    assert results == [7, 7]


def test_thread_count_must_be_positive() -> None:
    with pytest.raises(LocalProtocolError, match="0 threads"):
        set_threads(0)
    with pytest.raises(LocalProtocolError, match="0 threads"):
        DeviceThread(threads=0)


async def test_what_is_posted_is_done_in_its_turn_and_nobody_waits_for_it() -> None:
    release, done = threading.Event(), list[int]()
    with DeviceThread() as device:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.run, release.wait)
            await trio.testing.wait_all_tasks_blocked()
            device.post(lambda: done.append(threading.get_ident()))
            assert done == []
            release.set()
        assert [await device.run(threading.get_ident)] == done


async def test_what_is_posted_after_the_end_is_left_out() -> None:
    device = DeviceThread()
    device.close()
    device.post(lambda: pytest.fail("the thread has ended"))
