"""Whom a view does not believe, and until when. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from shardp2p.wire.news import ShortId

DISBELIEF_S: Final = 600.0
"""How long a peer is not believed that said two things under one sequence, or what its role does not let it."""

REFUSED_S: Final = 5.0
"""How long we ask nobody about a peer that was told of and is not admitted."""


class Disbelief:
    """At most `most` peers; of more, those that were refused first are believed again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._until: OrderedDict[ShortId, float] = OrderedDict()

    def refuse(self, short: ShortId, until: float = math.inf) -> None:
        """Do not believe this peer before `until`; by default until it is let in."""
        self._until[short] = max(until, self._until.get(short, 0.0))
        while len(self._until) > self._most:
            self._until.popitem(last=False)

    def let_in(self, short: ShortId) -> None:
        """Believe a peer again that was refused without an end."""
        if self._until.get(short) == math.inf:
            del self._until[short]

    def holds(self, short: ShortId, now: float) -> bool:
        """Whether this peer is not believed."""
        return bool(self._until) and now < self._until.get(short, 0.0)
