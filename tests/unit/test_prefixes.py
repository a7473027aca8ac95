"""Digests of how texts begin, and the caches that are kept for what begins the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardp2p.coordinator.prefix import PrefixKeys, prefixes_of
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.stage.kept import KEPT_S, MAX_KEPT, Kept, KeptCaches, KeptPlace
from shardp2p.vocabulary import LayerRange, ModelId, PeerId, Token
from shardp2p.wire.prefixes import MAX_PREFIXES, Prefixes, step_tokens

PLAN = Plan(
    ModelId("fake"),
    "d1" * 32,
    "float32",
    10**6,
    tuple(Stage(PeerId(p), LayerRange.parse(r)) for p, r in [("a", "0:3"), ("b", "3:6")]),
)
KEY = PrefixKeys(bytes(32)).of(PeerId("me"))
PLACE = KeptPlace("block", "me", LayerRange(0, 3))


def text(tokens: int, *, differs_at: int | None = None) -> tuple[Token, ...]:
    return tuple(7 if at == differs_at else at % 50 + 100 for at in range(tokens))


def of(tokens: tuple[Token, ...]) -> Prefixes:
    made = prefixes_of(KEY, PLAN, "raw", tokens)
    assert made is not None
    return made


def kept(tokens: tuple[Token, ...], *, size_bytes: int = 10, place: KeptPlace = PLACE, rows: int = 10**6) -> Kept[str]:
    return Kept(place, of(tokens), tuple(range(min(rows, len(tokens)))), size_bytes, "a cache")


# digests


def test_texts_share_the_digests_of_the_beginning_that_they_share() -> None:
    one, other = of(text(300)), of(text(400, differs_at=130))
    assert (len(one.digests), len(other.digests)) == (4, 6)
    assert one.digests[:2] == other.digests[:2]
    assert not set(one.digests[2:]) & set(other.digests)
    assert one.lengths[one.digests[3]] == 256
    assert [n for n in range(400) if one.has_length(n)] == [64, 128, 192, 256]


def test_a_text_too_short_for_a_digest_has_none() -> None:
    assert prefixes_of(KEY, PLAN, "raw", text(63)) is None
    assert prefixes_of(KEY, PLAN, "raw", ()) is None


def test_digests_are_those_of_one_asker_on_one_ring_under_one_secret() -> None:
    keys = PrefixKeys(bytes(range(32)))
    other_cut = replace(
        PLAN,
        stages=tuple(replace(s, layers=LayerRange.parse(r)) for s, r in zip(PLAN.stages, ("0:2", "2:6"), strict=True)),
    )
    made = [
        prefixes_of(KEY, PLAN, "raw", text(64)),
        prefixes_of(KEY, PLAN, "int8", text(64)),
        prefixes_of(KEY, other_cut, "raw", text(64)),
        prefixes_of(KEY, replace(PLAN, dtype="bfloat16"), "raw", text(64)),
        prefixes_of(keys.of(PeerId("me")), PLAN, "raw", text(64)),
        prefixes_of(keys.of(PeerId("you")), PLAN, "raw", text(64)),
        prefixes_of(PrefixKeys(b"another").of(PeerId("me")), PLAN, "raw", text(64)),
    ]
    assert len({one.digests for one in made if one is not None}) == len(made)
    assert keys.of(PeerId("me")) == keys.of(PeerId("me"))


@pytest.mark.parametrize("tokens", [64, 32_768, 32_769 + 63, 131_072])
def test_a_long_text_has_its_digests_further_apart_and_meets_a_shorter_one(tokens: int) -> None:
    long = of(text(tokens))
    assert len(long.digests) <= MAX_PREFIXES
    assert long.step_tokens == step_tokens(tokens)
    assert kept(text(tokens)).shares(of(text(1_024))) == min(tokens, 1_024) // long.step_tokens * long.step_tokens


# kept caches


def test_the_one_that_shares_most_is_found() -> None:
    caches = KeptCaches[str]()
    longest = kept(text(300))
    for one in (kept(text(200, differs_at=150)), longest, kept(text(400, differs_at=70))):
        caches.add(one, 1_000, 0.0)
    assert caches.find(PLACE, of(text(500)), 1.0) == (longest, 256)
    assert caches.find(PLACE, of(text(500, differs_at=3)), 1.0) is None


def test_nothing_is_found_of_another_coordinator_other_layers_or_another_holder() -> None:
    caches = KeptCaches[str]()
    caches.add(kept(text(300)), 1_000, 0.0)
    for other in (
        PLACE._replace(coordinator="you"),
        PLACE._replace(layers=LayerRange(0, 2)),
        PLACE._replace(owner="b"),
    ):
        assert caches.find(other, of(text(300)), 1.0) is None


def test_only_rows_that_are_there_are_shared() -> None:
    assert kept(text(300), rows=200).shares(of(text(300))) == 192
    assert kept(text(300), rows=63).shares(of(text(300))) == 0


def test_a_digest_of_another_length_shares_nothing() -> None:
    """A coordinator that lies harms nobody but itself, and no stage either."""
    honest = of(text(128))
    assert kept(text(300)).shares(Prefixes(128, honest.digests[:1])) == 0


def test_the_oldest_make_room_and_what_was_found_is_the_newest() -> None:
    caches = KeptCaches[str]()
    first, second, third = (kept(text(100, differs_at=at)) for at in range(3))
    for one in (first, second, third):
        caches.add(one, 30, 0.0)
    assert caches.find(PLACE, first.prefixes, 1.0) == (first, 64)
    caches.fit(20)
    assert [caches.has(one) for one in (first, second, third)] == [True, False, True]
    caches.fit(9)
    assert len(caches) == caches.size_bytes == 0
    caches.add(first, 9, 2.0)
    assert not caches.has(first)


def test_a_text_that_goes_on_replaces_what_it_continues() -> None:
    caches = KeptCaches[str]()
    caches.add(kept(text(300)), 1_000, 0.0)
    longer = kept(text(500))
    caches.add(longer, 1_000, 0.0)
    assert len(caches) == 1
    assert caches.has(longer)


def test_there_is_a_limit_in_number_and_in_time() -> None:
    caches = KeptCaches[str]()
    for at in range(MAX_KEPT + 3):
        caches.add(kept(text(100, differs_at=0) if at == 0 else (at, *text(100))), 10**6, 0.0)
    assert len(caches) == MAX_KEPT
    assert caches.find(PLACE, of((9, *text(100))), KEPT_S - 1) is not None
    assert caches.find(PLACE, of((9, *text(100))), 2 * KEPT_S - 2) is not None
    assert len(caches) == 1
    assert caches.find(PLACE, of((9, *text(100))), 3 * KEPT_S) is None


def test_all_of_one_holder_are_dropped_with_it() -> None:
    caches = KeptCaches[str]()
    other = kept(text(200, differs_at=0), place=PLACE._replace(owner="other"))
    caches.add(kept(text(100)), 1_000, 0.0)
    caches.add(other, 1_000, 0.0)
    caches.drop("block")
    assert (len(caches), caches.has(other)) == (1, True)
