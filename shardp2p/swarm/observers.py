"""Whom to ask for a dial-back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardp2p.vocabulary import PeerId


def choose_observers(
    candidates: Sequence[tuple[PeerId, str, bool]], asked_before: Iterable[PeerId], at_most: int
) -> tuple[PeerId, ...]:
    """Whom to ask next, of (peer, home, is connected directly): one of each home first, connected ones before others,
    and who was asked longest ago before who was asked just now. `asked_before` is in the order of asking.
    """
    asked = {peer: place for place, peer in enumerate(asked_before, 1)}
    ordered = sorted(candidates, key=lambda one: (asked.get(one[0], 0) > 0, not one[2], asked.get(one[0], 0), one[0]))
    homes: dict[str, int] = {}
    ranked: list[tuple[int, PeerId]] = []
    for peer, home, _ in ordered:
        ranked.append((homes.get(home, 0), peer))
        homes[home] = homes.get(home, 0) + 1
    return tuple(peer for _, peer in sorted(ranked, key=lambda one: one[0])[:at_most])
