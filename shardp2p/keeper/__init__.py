"""A peer that serves layers and decides by itself which: its life, driven over a `member.Member`.

What to hold says the scheduler (`seating`), when to do what says `swarm.life`. Knows nothing of commands and their
output. Start reading in `keeper.py`.
"""

from shardp2p.keeper.keeper import Keeper
from shardp2p.keeper.offer import Offer

__all__ = ["Keeper", "Offer"]
