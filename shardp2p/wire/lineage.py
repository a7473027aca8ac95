"""Which slots of a token tree are alive, by the rules of docs/protocols/ring.md.

Both ends of the ring keep one: the coordinator to know what a stage may hold, a stage to know what it need not compute.

- The *trunk* is the path from slot 0 to the *root*, the committed leaf.
- A slot is *live* when it descends from the root, and *dead* when it is neither on the trunk nor live.
- What is dead stays dead, and so is everything that is added below it.
- The root may be *awaited*: committed, but not seen yet. Then nothing but that slot can be added alive.
"""

from __future__ import annotations

from bisect import bisect_left

from shardp2p.errors import RemoteProtocolError
from shardp2p.vocabulary import NO_PARENT, Position, Slot


class Lineage:
    """The trunk and the live slots of one epoch. Every misuse raises RemoteProtocolError."""

    def __init__(self, kept: int = 0) -> None:
        """The first `kept` slots are there already, as committed text."""
        self._trunk = [Slot(i) for i in range(kept)]  # ascending; the index is the position
        self._live: dict[Slot, tuple[Slot, int]] = {}  # slot -> parent, position; ascending
        self._awaited: Slot | None = None
        self.next_slot = Slot(kept)

    @property
    def root(self) -> Slot:
        """The committed leaf as far as it is known here, NO_PARENT at the start."""
        return self._trunk[-1] if self._trunk else NO_PARENT

    @property
    def trunk_length(self) -> int:
        """How many slots the trunk has: the position after the root."""
        return len(self._trunk)

    def trunk_slot(self, position: int) -> Slot:
        """The trunk's slot at `position`."""
        return self._trunk[position]

    def live_slots(self) -> tuple[Slot, ...]:
        """The slots below the root, ascending."""
        return tuple(self._live)

    def trunk(self) -> tuple[Slot, ...]:
        """The slots from 0 to the root, ascending; the index is the position."""
        return tuple(self._trunk)

    def __len__(self) -> int:
        """How many slots are not dead."""
        return len(self._trunk) + len(self._live)

    def trunk_count_before(self, slot: Slot) -> int:
        """How many trunk slots are smaller than `slot`."""
        return bisect_left(self._trunk, slot)

    def count_from(self, slot: Slot) -> int:
        """How many slots from `slot` on are not dead."""
        return len(self._trunk) - self.trunk_count_before(slot) + sum(1 for live in self._live if live >= slot)

    def is_trunk(self, slot: Slot) -> bool:
        """Whether `slot` is the root or an ancestor of it."""
        at = bisect_left(self._trunk, slot)
        return at < len(self._trunk) and self._trunk[at] == slot

    def is_dead(self, slot: Slot) -> bool:
        """Whether a slot that was added is neither on the trunk nor live."""
        return slot not in self._live and not self.is_trunk(slot)

    def position(self, slot: Slot) -> Position:
        """The position of a slot that is not dead."""
        live = self._live.get(slot)
        return Position(live[1] if live is not None else bisect_left(self._trunk, slot))

    def add(self, slot: Slot, parent: Slot) -> bool:
        """Add the next slot below `parent`; says whether it is alive."""
        if slot != self.next_slot:
            raise RemoteProtocolError(f"slot {slot} came where slot {self.next_slot} was due")
        if not NO_PARENT <= parent < slot or (parent == NO_PARENT) != (slot == 0):
            raise RemoteProtocolError(f"slot {slot} cannot have the parent {parent}")
        self.next_slot = Slot(slot + 1)
        if self._awaited is not None:
            if slot == self._awaited and parent != self.root:
                raise RemoteProtocolError(f"slot {slot} was committed below {self.root} and came below {parent}")
            if slot != self._awaited:
                return False
            self._awaited = None
            self._trunk.append(slot)
            return True
        if parent == self.root:
            self._live[slot] = (parent, len(self._trunk))
        elif parent in self._live:
            self._live[slot] = (parent, self._live[parent][1] + 1)
        else:
            return False
        return True

    def kill(self, slot: Slot) -> None:
        """Declare a live slot dead, as one that a stage upstream has skipped. Its descendants must come later."""
        if self.is_trunk(slot):
            raise RemoteProtocolError(f"slot {slot} is committed and was skipped")
        self._live.pop(slot, None)

    def commit(self, root: Slot, parent: Slot | None = None) -> None:
        """Move the root down to `root`; an older root than the present one changes nothing.

        A root that is not seen yet needs `parent`, which must have been seen.
        """
        if root >= self.next_slot:
            self._await(root, parent)
        elif root in self._live:
            self._advance(root)
        elif not self.is_trunk(root):
            raise RemoteProtocolError(f"slot {root} is dead and was committed")

    def restart(self, position: int) -> tuple[Slot, ...]:
        """Begin an epoch that keeps the first `position` trunk slots, renumbered 0, 1, …; gives their old numbers."""
        if not 0 <= position <= len(self._trunk):
            raise RemoteProtocolError(f"an epoch cannot begin at {position}: {len(self._trunk)} positions are known")
        kept = tuple(self._trunk[:position])
        self._trunk = [Slot(i) for i in range(position)]
        self._live.clear()
        self._awaited = None
        self.next_slot = Slot(position)
        return kept

    def _advance(self, root: Slot) -> None:
        path = []
        slot = root
        while slot in self._live:
            path.append(slot)
            slot = self._live[slot][0]
        self._trunk.extend(reversed(path))
        below: dict[Slot, tuple[Slot, int]] = {}
        for slot, (parent, position) in self._live.items():
            if parent == root or parent in below:
                below[slot] = (parent, position)
        self._live = below

    def _await(self, root: Slot, parent: Slot | None) -> None:
        if self._awaited == root and parent == self.root:
            return
        if parent is None or self._awaited is not None:
            raise RemoteProtocolError(f"slot {root} was committed before it was sent")
        if parent in self._live:
            self._advance(parent)
        if parent != self.root:
            raise RemoteProtocolError(f"slot {root} was committed below {parent}, which is not the committed leaf")
        self._live.clear()
        self._awaited = root
