"""A peer looks for a better seat for a while after who holds what has changed, and does not circle."""

from __future__ import annotations

from shardp2p.scheduler.holders import Holder, HolderState
from shardp2p.scheduler.occasion import FRESH_S, MOST_MOVES, Occasion
from shardp2p.vocabulary import LayerRange, PeerId


def holder(name: str, layers: str, state: HolderState = "serving", layer_s: float = 0.01) -> Holder:
    return Holder(PeerId(name), LayerRange.parse(layers), layer_s, state)


HELD = [holder("a", "0:3"), holder("b", "3:6")]


def test_it_closes_a_while_after_somebody_came_and_measuring_anew_does_not_open_it() -> None:
    occasion = Occasion()
    assert not occasion.is_open(0.0)
    occasion.note(HELD, 10.0)
    assert occasion.is_open(9.0 + FRESH_S)
    assert not occasion.is_open(10.0 + FRESH_S)
    occasion.note([holder("a", "0:3", layer_s=0.5), HELD[1]], 20.0 + FRESH_S)
    assert not occasion.is_open(20.0 + FRESH_S)


def test_a_move_keeps_it_open_for_the_next_however_long_it_loads() -> None:
    occasion, now = Occasion(), 0.0
    occasion.note(HELD, now)
    for state in ("placing", "loading", "serving"):
        now += 10 * FRESH_S
        occasion.note([*HELD, holder("a", "3:6", state)], now)
        assert occasion.is_open(now)


def test_a_peer_that_moved_a_few_times_waits_until_somebody_comes_or_goes() -> None:
    occasion = Occasion()
    occasion.note(HELD, 0.0)
    for at in range(MOST_MOVES):
        assert occasion.is_open(float(at))
        occasion.moved()
        occasion.note([*HELD, holder("a", f"{at}:{at + 1}")], float(at))
    assert not occasion.is_open(float(MOST_MOVES))
    occasion.note(HELD[:1], 5.0)
    assert occasion.is_open(5.0)
