"""The coordinator's tree: committing, grafting, and the order in which drafts are sent and asked about."""

from __future__ import annotations

import random
from math import inf, nan

import pytest

from shardp2p.coordinator.nodes import Node
from shardp2p.coordinator.tree import TokenTree
from shardp2p.errors import LocalProtocolError
from shardp2p.vocabulary import Branch, Slot


def tree(*branches: tuple[float, tuple[int, ...]], limit_position: int = 1000) -> TokenTree:
    made = TokenTree((100, 101), limit_position)
    made.graft(made.root, [Branch(tokens, probability) for probability, tokens in branches])
    return made


def tokens(nodes: list[Node]) -> list[int]:
    return [node.token for node in nodes]


def send_all(made: TokenTree, first: int = 2) -> dict[int, Node]:
    sent = {}
    for slot, node in enumerate(made.take_unsent(1000), first):
        made.record_sent(node, Slot(slot))
        sent[node.token] = node
    return sent


def commit(made: TokenTree, choice: int) -> Node | None:
    made.root.choice = choice
    return made.advance()


def test_a_draft_whose_probability_is_no_number_is_the_last_to_go() -> None:
    made = tree((nan, (1,)), (1e-6, (2,)), (inf, (3,)), (-1.0, (4,)))
    made.graft(made.root, [Branch((5, 6), 0.5, nan)])
    assert tokens(made.take_unsent(9)) == [3, 5, 2, 1, 4, 6]


def test_branches_share_their_common_beginning() -> None:
    made = tree((0.6, (1, 2, 3)), (0.3, (1, 2, 4)), (0.1, (5,)))
    made.graft(made.root, [Branch((1, 2, 3, 6), 0.5)])
    assert sorted(tokens(made.take_unsent(1000))) == [1, 2, 3, 4, 5, 6]


def test_the_more_probable_path_is_sent_first_and_parents_before_children() -> None:
    assert tokens(tree((0.2, (1, 2)), (0.7, (3, 4)), (0.1, (5,))).take_unsent(9)) == [3, 4, 1, 2, 5]


def test_equal_probabilities_keep_the_order_of_proposal() -> None:
    assert tokens(tree((0.5, (1, 2)), (0.5, (3,)), (0.5, (4,))).take_unsent(9)) == [1, 2, 3, 4]


def test_a_long_branch_is_less_and_less_sure() -> None:
    made = TokenTree((100,))
    made.graft(made.root, [Branch((1, 2, 3), 0.8, continues=0.5), Branch((4,), 0.15)])
    taken = made.take_unsent(9)
    assert tokens(taken) == [1, 2, 3, 4]
    assert [made.probability(node) for node in taken] == pytest.approx([0.8, 0.4, 0.2, 0.15])


def test_what_is_taken_is_bounded_by_number_and_probability() -> None:
    made = tree((0.6, (1,)), (0.3, (2,)), (0.1, (3,)))
    assert tokens(made.take_unsent(1)) == [1]
    assert tokens(made.take_unsent(9, least_probability=0.2)) == [2]
    assert made.best_unsent() is made.root.children[3]
    assert tokens(made.take_unsent(9)) == [3]
    assert made.best_unsent() is None


def test_no_draft_reaches_the_limit() -> None:
    made = tree((0.5, (1, 2, 3, 4)), limit_position=4)
    [one, two] = made.take_unsent(9)
    assert (one.position, two.position) == (2, 3)
    made.graft(two, [Branch((5,), 0.5)])
    assert two.children == {}
    assert (made.depth_below(1), made.depth_below(3), made.depth_below(9)) == (2, 0, 0)
    assert made.take_leaves(9, 0.0) == []


def test_leaves_are_asked_about_once_the_more_probable_first() -> None:
    made = tree((0.3, (1, 2)), (0.6, (3, 4)))
    leaves = made.take_leaves(1, 0.0)
    assert [made.path_tokens(leaf) for leaf in leaves] == [[3, 4]]
    assert made.take_leaves(9, least_probability=0.5) == []
    assert [made.path_tokens(leaf) for leaf in made.take_leaves(9, 0.0)] == [[1, 2]]
    assert made.take_leaves(9, 0.0) == []


def test_a_guess_becomes_a_draft_when_the_one_before_it_is_taken() -> None:
    made = tree((0.6, (1,)), (0.3, (2,)), (0.1, (3,)))
    assert list(made.root.children) == [1]
    assert tokens(made.take_unsent(1)) == [1]
    assert list(made.root.children) == [1, 2]
    assert tokens(made.take_leaves(9, 0.2)) == [1, 2]
    assert list(made.root.children) == [1, 2, 3]
    assert tokens(made.take_unsent(9)) == [2, 3]
    assert tokens(made.take_leaves(9, 0.0)) == [3]


def test_drafts_that_are_put_back_come_again_in_their_order() -> None:
    made = tree((0.6, (1,)), (0.3, (2,)), (0.1, (3,)))
    taken = made.take_unsent(2)
    made.put_back(taken)
    assert tokens(made.take_unsent(9)) == [1, 2, 3]


def test_what_is_put_back_comes_before_what_hangs_below_it_and_is_as_probable() -> None:
    made = tree((0.1, (1, 2, 3)), (0.1, (4,)))
    for most in (1, 2, 1):
        made.put_back(made.take_unsent(most))
    assert tokens(made.take_unsent(9)) == [1, 2, 3, 4]


def test_live_leaves_that_were_asked_about_are_counted() -> None:
    made = tree((0.6, (1, 2)), (0.3, (4, 5)))
    assert (len(made.take_leaves(9, 0.0)), made.asked_leaves) == (2, 2)
    commit(made, 4)
    assert made.asked_leaves == 1
    commit(made, 5)
    assert made.asked_leaves == 1
    commit(made, 9)
    assert (len(made.take_leaves(9, 0.0)), made.asked_leaves) == (1, 1)
    made.drop_drafts()
    assert made.asked_leaves == 0


def test_a_guess_that_is_there_already_gives_its_turn_to_the_next() -> None:
    made = tree((0.5, (1,)))
    made.graft(made.root, [Branch((1,), 0.5), Branch((2,), 0.4), Branch((1,), 0.05), Branch((3,), 0.05)])
    assert tokens(made.take_unsent(9)) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_drafts_are_taken_in_the_order_of_their_probability(seed: int) -> None:
    rng = random.Random(seed)
    made, expected = TokenTree((0,)), dict[tuple[int, ...], float]()
    for _ in range(20):
        for node in made.take_leaves(3, 0.0):
            shares = sorted((rng.random() for _ in range(5)), reverse=True)
            branches = [Branch((token,), share / 5) for token, share in enumerate(shares)]
            made.graft(node, branches)
            path, probability = made.path_tokens(node), made.probability(node)
            expected |= {(*path, *branch.tokens): probability * branch.probability for branch in branches}
        for node in made.take_unsent(rng.randrange(4)):
            best = max(expected, key=lambda path: expected[path])
            assert tuple(made.path_tokens(node)) == best
            assert made.probability(node) == pytest.approx(expected.pop(best))
            made.record_sent(node, Slot(1))


def test_the_text_itself_is_the_first_leaf() -> None:
    made = TokenTree((1,))
    assert made.take_leaves(9, 0.0) == [made.root]
    assert made.path_tokens(made.root) == []


def test_a_graft_below_a_draft_continues_it() -> None:
    made = tree((0.5, (1,)))
    one = made.root.children[1]
    made.graft(one, [Branch((2, 3), 0.5)])
    [leaf] = made.take_leaves(9, 0.0)
    assert (made.path_tokens(leaf), leaf.position) == ([1, 2, 3], 4)
    assert made.probability(leaf) == pytest.approx(0.25)


def test_a_draft_that_proves_right_hands_on_its_children_and_its_verdict() -> None:
    made = tree((0.6, (1, 2)), (0.3, (4, 5)))
    sent = send_all(made)
    sent[1].choice = 2
    assert commit(made, 1) is sent[1]
    assert (made.committed, made.root.choice, made.root) == ([100, 101, 1], 2, sent[1])
    assert list(made.root.children) == [2]
    assert (sent[4].is_alive, sent[5].is_alive, sent[2].is_alive) == (False, False, True)
    assert [made.find(node.slot or Slot(0)) for node in (sent[1], sent[4], sent[5])] == [None, None, None]
    assert made.find(sent[2].slot or Slot(0)) is sent[2]
    assert made.probability(sent[2]) == pytest.approx(1.0)


def test_a_correction_kills_every_draft() -> None:
    made = tree((0.6, (1, 2)), (0.3, (4, 5)))
    sent, old = send_all(made), made.root
    assert commit(made, 9) is None
    assert (made.committed, made.root.choice, made.root.children) == ([100, 101, 9], None, {})
    assert not any(node.is_alive for node in (*sent.values(), old))
    assert made.take_unsent(9) == []
    assert made.take_leaves(9, 0.0) == [made.root]


def test_the_dead_are_neither_sent_nor_asked_about() -> None:
    made = tree((0.6, (1, 2)), (0.3, (4, 5)))
    commit(made, 4)
    assert tokens(made.take_unsent(9)) == [5]
    assert tokens(made.take_leaves(9, 0.0)) == [5]


def test_a_draft_that_was_not_sent_can_prove_right() -> None:
    made = tree((0.6, (1, 2)))
    node = commit(made, 1)
    assert node is not None
    assert node.slot is None
    assert tokens(made.take_unsent(9)) == [2]


def test_nothing_is_committed_without_a_verdict() -> None:
    with pytest.raises(LocalProtocolError, match="not known yet"):
        tree((0.5, (1,))).advance()


def test_dropping_the_drafts_keeps_the_text() -> None:
    made = tree((0.6, (1, 2)))
    sent = send_all(made)
    made.root.choice = 1
    made.drop_drafts()
    assert (made.committed, made.root.choice, made.take_unsent(9)) == ([100, 101], None, [])
    assert made.find(sent[1].slot or Slot(0)) is None
    assert made.take_leaves(9, 0.0) == [made.root]
