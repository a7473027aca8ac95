"""What `bench idle` makes of what it measured."""

from __future__ import annotations

from shardp2p.cli.bench_idle import describe
from shardp2p.lab.idle import IdleCost, Spent, cost_of

BEFORE = (Spent(10.0, 100), Spent(20.0, 5000))
AFTER = (Spent(10.3, 160), Spent(20.9, 5030))


def test_cost_is_what_was_spent_meanwhile_for_each_second() -> None:
    assert cost_of(BEFORE, AFTER, 60.0, (7, 6)).report() == {
        "core_percent_mean": 1.0,
        "core_percent_max": 1.5,
        "core_percent": [0.5, 1.5],
        "wakes_s": [1.0, 0.5],
        "neighbours": [7, 6],
    }


def test_every_peer_has_a_line_between_the_title_and_the_mean() -> None:
    measured = {"model": "a-model", "peers": 2} | IdleCost((0.5, 1.5), (1.0, 0.5), (7, 6)).report()
    assert describe(measured).splitlines() == [
        "2 peers of a-model that serve nobody",
        "   0.50 % of a core,  1.0 wakes a second, 7 neighbours",
        "   1.50 % of a core,  0.5 wakes a second, 6 neighbours",
        "mean 1.00 %, most 1.50 %",
    ]
