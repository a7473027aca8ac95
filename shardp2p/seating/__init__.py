"""Which layers of which models one peer should hold: the scheduler's answers, within the peer's memory. Pure.

When it asks says `swarm.life`; who loads the layers is `keeper`. Knows no network and no device. Start reading in
`seating.py`; what is asked of a newcomer stands in `choosing.py`.
"""

from shardp2p.seating.offered import Offered
from shardp2p.seating.seating import Seating

__all__ = ["Offered", "Seating"]
