"""Which drafts a chunk takes, and what it tells of those that had no room."""

from __future__ import annotations

import pytest

from shardp2p.coordinator.chunking import Chunking
from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.pace import Pace
from shardp2p.coordinator.tree import TokenTree
from shardp2p.vocabulary import Branch, SessionId
from shardp2p.wire.lineage import Lineage


class Sender:
    """A tree below a text of one token, of which chunks of three tokens are made."""

    def __init__(self) -> None:
        self.tree = TokenTree((1,))
        limits = Limits(chunk_tokens=3, is_paced=False)
        self.chunking = Chunking(SessionId("ab" * 16), self.tree, Lineage(), Pace(limits), limits)

    def drafts(self, *probabilities: float) -> None:
        self.tree.graft(self.tree.root, [Branch((10 + at,), one) for at, one in enumerate(probabilities)])

    def send(self) -> tuple[int, ...]:
        chunk = self.chunking.next_chunk(0, 0.0)
        return () if chunk is None else chunk.tokens


def test_a_full_chunk_tells_how_probable_its_last_draft_is() -> None:
    sender = Sender()
    sender.drafts(0.5, 0.25, 0.125)
    assert sender.send() == (1, 10, 11)
    assert sender.chunking.least_sent == pytest.approx(0.25)


def test_where_there_is_room_left_every_draft_had_some() -> None:
    sender = Sender()
    sender.drafts(0.5, 0.25, 0.125)
    sender.send()
    assert sender.send() == (12,)
    assert sender.chunking.least_sent == 0.0


def test_where_no_draft_waits_every_one_had_room() -> None:
    sender = Sender()
    sender.drafts(0.5, 0.25)
    sender.send()
    assert sender.chunking.least_sent == pytest.approx(0.25)
    assert sender.send() == ()
    assert sender.chunking.least_sent == 0.0


def test_drafts_that_are_not_worth_a_chunk_do_not_lack_room(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender()
    sender.drafts(0.5, 0.25)
    sender.send()
    sender.drafts(0.5, 0.25, 0.125)
    assert sender.chunking.least_sent == pytest.approx(0.25)
    monkeypatch.setattr(Pace, "are_worth", lambda *_: False)
    assert sender.send() == ()
    assert sender.chunking.least_sent == 0.0
    monkeypatch.undo()
    assert sender.send() == (12,)
