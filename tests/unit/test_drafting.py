"""About how many leaves a proposer is asked at once."""

from __future__ import annotations

from shardp2p.coordinator.drafting import CREDIT_TOKENS, LEAVES_A_TOKEN, MAX_ASKED, PATHS_AT_ONCE, Drafting
from shardp2p.coordinator.tree import TokenTree
from shardp2p.vocabulary import Branch

LAP_LEVELS = 6
"""So many levels below the text are drafted before the target is heard."""


def widths(row_s: float, *, base_s: float = 0.005, rounds: int = 40) -> list[int]:
    """About how many leaves each request asks, when an answer takes `base_s` and `row_s` for each of them.

    The first guess is right with 0.8, and always is; each further one is a fifth as likely as the one before it.
    """
    tree = TokenTree((1,))
    drafting, now, asked = Drafting(tree, draft_tokens=1, is_eager=True), 0.0, []
    guesses = [Branch((token,), 0.8 * 0.2**token) for token in range(40)]
    for number in range(rounds):
        request = drafting.ask(0.0, now)
        assert request is not None
        asked.append(len(request.paths))
        now += base_s + row_s * len(request.paths)
        assert drafting.answer(request.request, [guesses] * len(request.paths), 0.0, now)
        if number >= LAP_LEVELS:
            tree.root.choice = 0
            assert tree.advance() is not None
    return asked


def test_the_first_request_is_about_the_text_itself() -> None:
    assert widths(0.001)[0] == 1


def test_where_leaves_cost_nothing_all_that_may_be_asked_are() -> None:
    assert widths(0.0)[-1] == PATHS_AT_ONCE


def test_where_a_leaf_costs_far_more_than_the_asking_one_is_asked() -> None:
    assert widths(0.02)[-1] == 1


def test_dearer_leaves_are_asked_about_less() -> None:
    asked = [widths(row_s)[-1] for row_s in (0.0001, 0.0002, 0.0005, 0.002, 0.004)]
    assert asked == sorted(set(asked), reverse=True)


def test_what_is_not_worth_a_row_is_not_asked_about() -> None:
    tree = TokenTree((1,))
    drafting = Drafting(tree, draft_tokens=1, is_eager=True)
    first = drafting.ask(0.0)
    assert first is not None
    drafting.answer(first.request, [[Branch((2,), 0.6), Branch((3,), 0.3), Branch((4,), 0.1)]])
    second = drafting.ask(0.2)
    assert second is not None
    assert second.paths == ((2,), (3,))


def test_while_the_target_is_not_heard_drafts_come_to_an_end() -> None:
    tree = TokenTree((1,))
    drafting, asked = Drafting(tree, draft_tokens=1, is_eager=True), 0
    while (request := drafting.ask(0.0)) is not None:
        asked += len(request.paths)
        drafting.answer(request.request, [[Branch((2,), 0.6), Branch((3,), 0.4)]] * len(request.paths))
    assert MAX_ASKED <= asked < MAX_ASKED + PATHS_AT_ONCE
    tree.root.choice = 9
    tree.advance()
    assert drafting.ask(0.0) is not None


def test_paths_too_unlikely_for_a_number_are_drafted_on() -> None:
    tree = TokenTree((1,))
    tree.graft(tree.root, [Branch((2,) * 60, 0.0, continues=0.0)])
    drafting = Drafting(tree, draft_tokens=1, is_eager=True)
    request = drafting.ask(0.0)
    assert request is not None
    assert drafting.answer(request.request, [[Branch((3,), 0.5)]])
    request = drafting.ask(0.0)
    assert request is not None
    assert request.paths == ((*(2,) * 60, 3),)


# the budget of leaves

BUDGET = LEAVES_A_TOKEN * CREDIT_TOKENS
"""How many leaves may be asked about before the first token, whatever the probability of their drafts."""


def drafting_after(leaves: int, *, is_eager: bool = True, tree: TokenTree | None = None) -> Drafting:
    """One that has asked about at least so many leaves of an answer in which nothing is committed yet."""
    tree = tree or TokenTree((1,))
    drafting, asked = Drafting(tree, draft_tokens=1, is_eager=is_eager), 0
    while asked < leaves:
        request = drafting.ask(0.0)
        assert request is not None
        asked += len(request.paths)
        drafting.answer(request.request, [[Branch((2,), 0.8), Branch((3,), 0.2)]] * len(request.paths))
        tree.take_unsent(MAX_ASKED)
    return drafting


def test_within_the_budget_leaves_are_asked_about_whose_drafts_have_no_room_yet() -> None:
    assert drafting_after(BUDGET // 2).ask(0.0, least_sent=1.0) is not None


def test_beyond_the_budget_only_leaves_are_asked_about_whose_drafts_would_have_room() -> None:
    drafting = drafting_after(BUDGET + 1)
    assert drafting.ask(0.0, least_sent=1.0) is None
    assert drafting.ask(0.0, least_sent=1e-9) is not None


def test_the_text_itself_is_asked_about_whatever_was_asked_before() -> None:
    tree = TokenTree((1,))
    drafting = drafting_after(BUDGET + 1, tree=tree)
    tree.root.choice = 9
    tree.advance()
    request = drafting.ask(0.0, least_sent=1.0)
    assert request is not None
    assert request.paths == ((),)


def test_each_committed_token_allows_more_leaves() -> None:
    tree = TokenTree((1,))
    drafting = Drafting(tree, draft_tokens=1, is_eager=True)
    for told in range(BUDGET // 2 + LEAVES_A_TOKEN):
        for below in ([Branch((2,), 0.4)], []):
            request = drafting.ask(0.0, least_sent=0.9)
            assert request is not None, told
            drafting.answer(request.request, [below])
        tree.root.choice = 5
        tree.advance()
        drafting.follow(is_correction=True)


def test_a_lookup_that_takes_no_time_has_no_budget() -> None:
    assert drafting_after(BUDGET + 1, is_eager=False).ask(0.0, least_sent=1.0) is not None
