from __future__ import annotations

import random

from shardp2p.host.punch.pace import MAX_ALL_ROUNDS, MAX_ROUNDS, WINDOW_S, Pace
from shardp2p.vocabulary import PeerId

ONE = PeerId("one")


def test_a_peer_has_so_many_rounds_in_a_window_and_then_again() -> None:
    pace = Pace()
    assert [pace.take(ONE, float(number)) for number in range(MAX_ROUNDS + 2)] == [True] * MAX_ROUNDS + [False] * 2
    assert pace.take(PeerId("other"), 20.0)
    assert not pace.take(ONE, WINDOW_S - 0.1)
    assert pace.take(ONE, WINDOW_S)
    assert not pace.take(ONE, WINDOW_S + 0.5)


def test_any_peers_together_have_so_many() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        pace = Pace()
        taken: list[tuple[float, int]] = []
        now = 0.0
        for _ in range(600):
            now += chance.random()
            number = chance.randrange(20)
            if pace.take(PeerId(str(number)), now):
                taken.append((now, number))
            lately = [by for at, by in taken if now - at < WINDOW_S]
            assert len(lately) <= MAX_ALL_ROUNDS
            assert lately.count(number) <= MAX_ROUNDS
