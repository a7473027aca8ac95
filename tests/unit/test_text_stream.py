"""Text that comes token by token: nothing half-finished is shown, and nothing after a stop string."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import ConfigError
from shardp2p.runtime.tokenizer import REPLACEMENT, TextStream, Tokenizer


class ByteTokenizer:
    """Token i stands for `pieces[i]`, any bytes; unfinished characters decode as U+FFFD, as byte-level BPE does."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def decode(self, tokens: Iterable[int]) -> str:
        return b"".join(self._pieces[token] for token in tokens).decode(errors="replace")


class SpaceStrippingTokenizer(ByteTokenizer):
    """Drops the space before the first token, as sentencepiece does: a token's text depends on what stands before."""

    def decode(self, tokens: Iterable[int]) -> str:
        return super().decode(tokens).removeprefix(" ")


def stream(pieces: list[bytes], *stops: str, strips: bool = False) -> TextStream:
    tokenizer = (SpaceStrippingTokenizer if strips else ByteTokenizer)(pieces)
    return TextStream(cast(Tokenizer, tokenizer), stops)


def fed(text: TextStream, count: int) -> list[str]:
    """What each of `count` tokens gives, and what the end gives."""
    return [*(text.feed([token]) for token in range(count)), text.finish()]


def test_a_character_is_held_back_until_it_is_whole() -> None:
    euro = "€".encode()
    assert fed(stream([b"5 ", euro[:1], euro[1:2], euro[2:], b"!"]), 5) == ["5 ", "", "", "€", "!", ""]


def test_an_unfinished_character_at_the_end_is_shown_as_such() -> None:
    assert fed(stream([b"5", "€".encode()[:2]]), 2) == ["5", "", REPLACEMENT]


def test_spaces_between_tokens_are_kept() -> None:
    assert fed(stream([b" Hello", b" big", b" world"], strips=True), 3) == ["Hello", " big", " world", ""]


def test_a_stop_string_and_what_follows_are_never_shown() -> None:
    text = stream([b"one", b" two. three"], ".")
    assert fed(text, 2) == ["one", " two", ""]
    assert (text.is_stopped, text.text) == (True, "one two")
    assert text.feed([0]) == ""


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_decided() -> None:
    assert fed(stream([b"a", b"EN", b"D", b"b"], "END"), 4) == ["a", "", "", "", ""]
    assert fed(stream([b"a", b"EN", b"T", b"b"], "END"), 4) == ["a", "", "ENT", "b", ""]
    assert fed(stream([b"aE", b"EN"], "END"), 2) == ["a", "E", "EN"]


def test_a_stop_string_may_begin_inside_one_that_failed() -> None:
    assert fed(stream([b"aa", b"ab", b"c"], "aab"), 3) == ["", "a", "", ""]


def test_of_several_stop_strings_the_one_that_ends_first_counts() -> None:
    assert "".join(fed(stream([b"x abc y"], "abc", "b"), 1)) == "x a"
    assert "".join(fed(stream([b"x a", b"b", b"c y"], "abc", "b"), 3)) == "x a"
    assert "".join(fed(stream([b"x abc y"], "bc", "abc"), 1)) == "x "


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ConfigError, match="stop string is empty"):
        stream([], "")


def test_no_tokens_give_no_text() -> None:
    text = stream([b"a"])
    assert (text.feed([]), text.finish(), text.text) == ("", "", "")


def cut(text: str, stops: list[str]) -> str:
    """`text` up to the stop string that ends first, the longest of them."""
    ends = [(end, end - len(stop)) for stop in stops for end in range(len(text) + 1) if text[:end].endswith(stop)]
    return text[: min(ends)[1]] if ends else text


ALPHABET = "ab €🙂é"
PIECES = st.lists(st.integers(1, 5), max_size=30)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3)


@given(st.text(ALPHABET, max_size=40), PIECES, PIECES, STOPS, st.booleans())
def test_any_batches_give_the_whole_text_cut_at_the_first_stop(
    text: str, token_bytes: list[int], batch_tokens: list[int], stops: list[str], strips: bool
) -> None:
    raw, pieces = text.encode(), []
    while raw:
        size = token_bytes.pop() if token_bytes else 1
        pieces.append(raw[:size])
        raw = raw[size:]
    made = stream(pieces, *stops, strips=strips)
    shown, at = "", 0
    while at < len(pieces):
        size = batch_tokens.pop() if batch_tokens else 1
        shown += made.feed(range(at, min(at + size, len(pieces))))
        assert shown == made.text
        at += size
    shown += made.finish()
    whole = text.removeprefix(" ") if strips else text
    assert shown == cut(whole, stops) == made.text
    assert made.is_stopped == any(stop in whole for stop in stops)
