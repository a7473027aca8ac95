"""What `bench departures` says of what it measured."""

from __future__ import annotations

from shardp2p.cli.bench_departures import describe
from shardp2p.lab.departures import Departures


def test_each_thing_that_happens_has_its_seconds_by_round() -> None:
    report = Departures((7.24, 8.0), (0.6, 1.0), (0.21, 0.2), (1.0, 2.0)).report()
    assert report["killed_s"] == [7.2, 8.0]
    assert describe({"peers": 8, "rounds": 2} | report).splitlines() == [
        "a swarm of 8 processes; seconds in 2 rounds",
        "  killed, until nobody sees it: 7.2, 8.0",
        "  started again, until all see it: 0.6, 1.0",
        "  told to leave, until nobody sees it: 0.2, 0.2",
        "  killed and started at once, until all see the new run: 1.0, 2.0",
    ]
