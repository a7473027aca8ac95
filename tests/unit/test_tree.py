"""The coordinator's tree: committing, grafting, and the order in which drafts are sent."""

from __future__ import annotations

import pytest

from shardp2p.coordinator.tree import Node, TokenTree
from shardp2p.errors import LocalProtocolError
from shardp2p.vocabulary import Branch, Slot


def tree(*branches: tuple[float, tuple[int, ...]], prompt: tuple[int, ...] = (100, 101)) -> TokenTree:
    made = TokenTree(prompt)
    made.graft(None, [Branch(tokens, probability) for probability, tokens in branches], limit_position=1000)
    return made


def unsent(made: TokenTree) -> list[int]:
    return [node.token for node in made.unsent()]


def send_all(made: TokenTree, first: int = 2) -> dict[int, Node]:
    sent = {}
    for slot, node in enumerate(list(made.unsent()), first):
        made.record_sent(node, Slot(slot))
        sent[node.token] = node
    return sent


def test_branches_share_their_common_beginning() -> None:
    made = tree((0.6, (1, 2, 3)), (0.3, (1, 2, 4)), (0.1, (5,)))
    assert sorted(unsent(made)) == [1, 2, 3, 4, 5]
    assert made.graft(None, [Branch((1, 2, 3, 6), 0.5)], limit_position=1000) == 1


def test_the_more_probable_path_is_sent_first_and_parents_before_children() -> None:
    assert unsent(tree((0.2, (1, 2)), (0.7, (3, 4)), (0.1, (5,)))) == [3, 4, 1, 2, 5]


def test_equal_probabilities_keep_the_order_of_proposal() -> None:
    assert unsent(tree((0.5, (1, 2)), (0.5, (3,)), (0.5, (4,)))) == [1, 3, 4, 2]


def test_no_draft_reaches_the_limit() -> None:
    made = TokenTree((100, 101))
    assert made.graft(None, [Branch((1, 2, 3, 4), 0.5)], limit_position=4) == 2
    assert made.graft(made.best_leaf(), [Branch((5,), 0.5)], limit_position=4) == 0
    assert [node.position for node in made.unsent()] == [2, 3]


def test_the_best_leaf_ends_the_most_probable_path() -> None:
    made = tree((0.3, (1, 2)), (0.6, (3, 4)))
    leaf = made.best_leaf()
    assert leaf is not None
    assert (made.path_tokens(leaf), leaf.position) == ([3, 4], 3)
    assert TokenTree((1,)).best_leaf() is None
    assert made.path_tokens(None) == []


def test_a_graft_below_a_draft_continues_it() -> None:
    made = tree((0.5, (1,)))
    made.graft(made.best_leaf(), [Branch((2, 3), 0.5)], limit_position=1000)
    leaf = made.best_leaf()
    assert leaf is not None
    assert (made.path_tokens(leaf), leaf.position, leaf.probability) == ([1, 2, 3], 4, 0.25)


def test_a_draft_that_proves_right_hands_on_its_children_and_its_verdict() -> None:
    made = tree((0.6, (1, 2)), (0.3, (4, 5)))
    sent = send_all(made)
    sent[1].choice = 2
    made.choice = 1
    assert made.advance() is sent[1]
    assert (made.committed, made.choice) == ([100, 101, 1], 2)
    assert list(made.children) == [2]
    assert (sent[4].is_alive, sent[5].is_alive, sent[2].is_alive) == (False, False, True)
    assert [made.find(node.slot or Slot(0)) for node in (sent[1], sent[4], sent[5])] == [None, None, None]
    assert made.find(sent[2].slot or Slot(0)) is sent[2]


def test_a_correction_kills_every_draft() -> None:
    made = tree((0.6, (1, 2)), (0.3, (4, 5)))
    sent = send_all(made)
    made.is_asked = True
    made.choice = 9
    assert made.advance() is None
    assert (made.committed, made.choice, made.children, made.is_asked) == ([100, 101, 9], None, {}, False)
    assert not any(node.is_alive for node in sent.values())
    assert unsent(made) == []


def test_what_was_asked_moves_along_with_the_leaf() -> None:
    made = tree((0.6, (1,)))
    made.is_asked = True
    made.children[1].is_asked = False
    made.choice = 1
    made.advance()
    assert not made.is_asked


def test_a_draft_that_was_not_sent_can_prove_right() -> None:
    made = tree((0.6, (1, 2)))
    made.choice = 1
    node = made.advance()
    assert node is not None
    assert node.slot is None
    assert unsent(made) == [2]


def test_nothing_is_committed_without_a_verdict() -> None:
    with pytest.raises(LocalProtocolError, match="not known yet"):
        tree((0.5, (1,))).advance()


def test_dropping_the_drafts_keeps_the_text() -> None:
    made = tree((0.6, (1, 2)))
    sent = send_all(made)
    made.choice = 1
    made.drop_drafts()
    assert (made.committed, made.choice, unsent(made)) == ([100, 101], None, [])
    assert made.find(sent[1].slot or Slot(0)) is None
