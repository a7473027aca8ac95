"""A peer that moves: what runs on the layers that it gives up may go on for a while, in virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from shardp2p.errors import ConfigError, PeerUnavailableError
from shardp2p.keeper.kept import FINISH_S, RELEASE_S, Kept, KeptSeats
from shardp2p.swarm.life import Seat
from shardp2p.swarm.speed import SpeedEstimate
from shardp2p.vocabulary import LayerRange, LayerSpeed, ModelId
from tests.support.fake_block import fake_reference
from tests.support.sim_nodes import SimNodes, plan_of, prompt, read_all, request

WHOLE = plan_of(("one", "0:6"))
BEFORE, AFTER, BROKEN = (Seat(ModelId("a-model"), "ab" * 32, LayerRange(*at)) for at in ((0, 6), (3, 6), (0, 3)))


def kept_of(sim: SimNodes) -> KeptSeats:
    """The seats of peer "one", which cannot load BROKEN."""

    async def take(seat: Seat) -> Kept:
        if seat == BROKEN:
            raise ConfigError("these layers are not in the store")
        held = sim.hold("one", str(seat.layers))
        return Kept(seat, held, SpeedEstimate(LayerSpeed(0.1, 0.1)), 512)

    return KeptSeats(take, sim.node("one").release)


async def moved_after_s(sim: SimNodes, tokens: int, *, is_urgent: bool) -> tuple[float, str]:
    """How long a move takes during a request for so many tokens, of a second each, and how that ended: "exact", or
    whom it blames.
    """
    kept, end = kept_of(sim), ""
    await kept.move((BEFORE,), is_urgent=False)

    async def ask() -> None:
        nonlocal end
        try:
            async with sim.node("client").generate(WHOLE, request(tokens)) as stream:
                end = "exact" if await read_all(stream) == fake_reference(prompt(), tokens) else "wrong"
        except PeerUnavailableError as error:
            end = str(error.peer)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(2.0)
        started = trio.current_time()
        await kept.move((AFTER,), is_urgent=is_urgent)
        took_s = trio.current_time() - started
    assert kept.seats == (AFTER,)
    assert [held.served.layers for held in sim.node("one").held] == [LayerRange(3, 6)]
    await sim.assert_settled()
    return took_s, end


@pytest.mark.parametrize(
    ("tokens", "is_urgent", "patience_s"), [(100, True, RELEASE_S), (400, False, FINISH_S), (400, True, RELEASE_S)]
)
async def test_request_that_outlasts_the_patience_of_a_move_is_ended(
    autojump_clock: MockClock, tokens: int, is_urgent: bool, patience_s: float
) -> None:
    async with trio.open_nursery() as nursery:
        took_s, end = await moved_after_s(SimNodes(nursery, compute_s=1.0), tokens, is_urgent=is_urgent)
    assert end == "one"
    assert patience_s <= took_s < patience_s + 5.0


async def test_request_notices_nothing_of_a_move_for_which_nobody_waits(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        took_s, end = await moved_after_s(SimNodes(nursery, compute_s=1.0), 100, is_urgent=False)
    assert end == "exact"
    assert RELEASE_S < took_s < FINISH_S


async def test_load_that_fails_leaves_what_was_kept_and_what_was_taken(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        kept = kept_of(SimNodes(nursery))
        await kept.move((BEFORE,), is_urgent=False)
        with pytest.raises(ConfigError, match="not in the store"):
            await kept.move((BEFORE, AFTER, BROKEN), is_urgent=False)
        assert kept.seats == (BEFORE, AFTER)
        await kept.release_all()
        assert all(one.held.served.is_draining for one in kept.all())
        nursery.cancel_scope.cancel()
