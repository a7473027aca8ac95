"""Which slots are alive, by the rules of docs/protocols/ring.md: cases, and any history against a naive model."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import RemoteProtocolError
from shardp2p.vocabulary import NO_PARENT, Slot
from shardp2p.wire.lineage import Lineage


def lineage(*parents: int, root: int = -1) -> Lineage:
    """Slots 0, 1, … below these parents, committed down to `root`."""
    made = Lineage()
    for slot, parent in enumerate(parents):
        made.add(Slot(slot), Slot(parent))
    if root >= 0:
        made.commit(Slot(root))
    return made


FORK = (-1, 0, 1, 1, 2, 3)
"""0 - 1 - 2 - 4, with 3 - 5 beside 2."""


@pytest.mark.parametrize(
    ("root", "trunk", "live"),
    [
        (-1, (), (0, 1, 2, 3, 4, 5)),
        (0, (0,), (1, 2, 3, 4, 5)),
        (1, (0, 1), (2, 3, 4, 5)),
        (2, (0, 1, 2), (4,)),
        (3, (0, 1, 3), (5,)),
        (4, (0, 1, 2, 4), ()),
    ],
)
def test_what_neither_leads_to_the_root_nor_descends_from_it_is_dead(
    root: int, trunk: tuple[int, ...], live: tuple[int, ...]
) -> None:
    made = lineage(*FORK, root=root)
    assert (made.trunk(), made.live_slots()) == (trunk, live)
    assert made.root == (trunk[-1] if trunk else NO_PARENT)
    assert [slot for slot in range(6) if made.is_dead(Slot(slot))] == sorted(set(range(6)) - {*trunk, *live})
    assert len(made) == len(trunk) + len(live)
    for slot in (*trunk, *live):
        assert made.position(Slot(slot)) == [0, 1, 2, 2, 3, 3][slot]


def test_an_older_commit_changes_nothing() -> None:
    made = lineage(*FORK, root=2)
    for root in (0, 1, 2):
        made.commit(Slot(root), NO_PARENT)
    assert made.trunk() == (0, 1, 2)


def test_a_commit_of_a_dead_slot_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="slot 3 is dead"):
        lineage(*FORK, root=2).commit(Slot(3))


def test_what_is_added_below_the_dead_is_dead() -> None:
    made = lineage(*FORK, root=2)
    assert not made.add(Slot(6), Slot(5))
    assert not made.add(Slot(7), Slot(6))
    assert not made.add(Slot(8), Slot(1))  # beside the root
    assert made.add(Slot(9), Slot(2))
    assert made.live_slots() == (4, 9)


@pytest.mark.parametrize(("slot", "parent"), [(0, 0), (1, -1), (1, 1), (1, 2), (2, 0), (1, -2)])
def test_a_slot_that_cannot_be_is_refused(slot: int, parent: int) -> None:
    made = lineage(*([-1] if slot else []))
    with pytest.raises(RemoteProtocolError):
        made.add(Slot(slot), Slot(parent))


def test_an_awaited_root_kills_all_else_until_it_comes() -> None:
    made = lineage(*FORK)
    made.commit(Slot(8), Slot(2))
    assert (made.trunk(), made.live_slots()) == ((0, 1, 2), ())
    assert not made.add(Slot(6), Slot(4))
    assert not made.add(Slot(7), Slot(2))
    assert made.add(Slot(8), Slot(2))
    assert made.add(Slot(9), Slot(8))
    assert (made.trunk(), made.live_slots()) == ((0, 1, 2, 8), (9,))


def test_an_awaited_root_may_be_announced_twice_but_not_changed() -> None:
    made = lineage(*FORK)
    made.commit(Slot(8), Slot(2))
    made.commit(Slot(8), Slot(2))
    made.commit(Slot(1))  # late, and true
    with pytest.raises(RemoteProtocolError, match="before it was sent"):
        made.commit(Slot(9), Slot(8))


def test_an_awaited_root_that_comes_below_another_slot_is_refused() -> None:
    made = lineage(*FORK)
    made.commit(Slot(6), Slot(2))
    with pytest.raises(RemoteProtocolError, match="committed below 2 and came below 3"):
        made.add(Slot(6), Slot(3))


@pytest.mark.parametrize(("root", "parent"), [(6, None), (9, 7), (6, 3), (6, 0)])
def test_a_root_that_is_not_sent_needs_a_parent_that_is_or_becomes_the_leaf(root: int, parent: int | None) -> None:
    made = lineage(*FORK, root=2)
    with pytest.raises(RemoteProtocolError):
        made.commit(Slot(root), None if parent is None else Slot(parent))


def test_a_skipped_slot_takes_its_descendants_along() -> None:
    made = lineage(-1, 0, root=0)
    made.kill(Slot(1))
    assert not made.add(Slot(2), Slot(1))
    assert made.live_slots() == ()
    made.kill(Slot(2))  # dead already
    with pytest.raises(RemoteProtocolError, match="slot 0 is committed and was skipped"):
        made.kill(Slot(0))


@pytest.mark.parametrize("position", [0, 1, 3])
def test_an_epoch_keeps_the_first_positions_renumbered(position: int) -> None:
    made = lineage(*FORK, root=3)
    made.commit(Slot(9), Slot(3))
    assert made.restart(position) == (0, 1, 3)[:position]
    assert (made.trunk(), made.live_slots(), made.next_slot) == (tuple(range(position)), (), position)
    assert made.add(Slot(position), Slot(position - 1))


@pytest.mark.parametrize("position", [-1, 4])
def test_an_epoch_cannot_keep_more_than_is_committed(position: int) -> None:
    with pytest.raises(RemoteProtocolError, match="3 positions are known"):
        lineage(*FORK, root=3).restart(position)


@dataclass
class Naive:
    """The same rules, by walking paths: slow and obvious."""

    parents: list[int] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    root: int = -1
    awaited_below: int | None = None

    def path(self, slot: int) -> list[int]:
        """From slot 0 to `slot`."""
        slots = []
        while slot >= 0:
            slots.append(slot)
            slot = self.parents[slot]
        return slots[::-1]

    @property
    def trunk(self) -> list[int]:
        return self.path(self.root if self.awaited_below is None else self.awaited_below)

    @property
    def live(self) -> list[int]:
        if self.awaited_below is not None:
            return []
        below = [s for s in range(len(self.parents)) if s != self.root and (self.root < 0 or self.root in self.path(s))]
        return [slot for slot in below if not self.killed.intersection(self.path(slot))]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "add", "kill", "commit", "await", "restart"]), st.integers(0, 999)),
    max_size=60,
)


@given(OPERATIONS)
def test_any_history_agrees_with_the_naive_model(operations: list[tuple[str, int]]) -> None:
    real, naive = Lineage(), Naive()
    for name, number in operations:
        step(real, naive, name, number)
        trunk, live = naive.trunk, naive.live
        assert (list(real.trunk()), list(real.live_slots())) == (trunk, live)
        assert real.next_slot == len(naive.parents)
        for slot in range(len(naive.parents)):
            is_dead = slot not in trunk and slot not in live
            assert real.is_dead(Slot(slot)) == is_dead
            assert real.count_from(Slot(slot)) == sum(other >= slot for other in (*trunk, *live))
            if not is_dead:
                assert real.position(Slot(slot)) == len(naive.path(slot)) - 1


def step(real: Lineage, naive: Naive, name: str, number: int) -> None:
    """Do one thing that a peer may do, to both."""
    count, live = len(naive.parents), naive.live
    if name == "add":
        parent = number % count if count else -1
        if naive.awaited_below is not None and naive.root == count:
            parent, naive.awaited_below = naive.awaited_below, None
        naive.parents.append(parent)
        is_alive = count in naive.live or count == naive.root
        assert real.add(Slot(count), Slot(parent)) == is_alive
        if not is_alive:
            naive.killed.add(count)  # what is dead once stays dead
    elif name == "kill" and live and naive.root >= 0:
        leaves = [slot for slot in live if slot not in naive.parents]
        naive.killed.add(leaves[number % len(leaves)])
        real.kill(Slot(leaves[number % len(leaves)]))
    elif name == "commit" and live:
        naive.root = live[number % len(live)]
        real.commit(Slot(naive.root))
    elif name == "await" and naive.awaited_below is None and (live or naive.root >= 0):
        candidates = [*live, *([naive.root] if naive.root >= 0 else [])]
        naive.awaited_below = candidates[number % len(candidates)]
        naive.root = count + number % 3
        real.commit(Slot(naive.root), Slot(naive.awaited_below))
    elif name == "restart":
        trunk = naive.trunk
        position = number % (len(trunk) + 1)
        assert real.restart(position) == tuple(trunk[:position])
        naive.parents = list(range(-1, position - 1))
        naive.killed, naive.root, naive.awaited_below = set(), position - 1, None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 12), st.integers(-2, 12)), max_size=40))
def test_any_misuse_is_the_peers_fault(calls: list[tuple[int, int, int]]) -> None:
    made = Lineage()
    for kind, one, other in calls:
        try:
            if kind == 0:
                made.add(Slot(one), Slot(other))
            elif kind == 1:
                made.add(made.next_slot, Slot(other))
            elif kind == 2:
                made.commit(Slot(one), Slot(other))
            else:
                made.restart(one)
        except RemoteProtocolError:
            continue
