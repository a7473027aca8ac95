"""Texts from the command line: what bytes they are made of, and what is no text."""

from __future__ import annotations

import io
import os
import sys

import pytest

from shardp2p.cli.main import run
from shardp2p.cli.texts import read_prompt, to_text
from shardp2p.errors import ConfigError


def as_the_c_locale_reads(text: str) -> str:
    """What Python makes of an argument where no locale tells it of anything but ASCII."""
    return text.encode().decode("ascii", "surrogateescape")


@pytest.mark.parametrize("text", ["plain", "café", "日本", "🙂"])
def test_text_survives_any_locale(text: str) -> None:
    assert to_text(text, "it") == text
    assert to_text(as_the_c_locale_reads(text), "it") == text
    assert read_prompt(as_the_c_locale_reads(text)) == text


@pytest.mark.parametrize("raw", [b"\xff", b"a\xc3", b"\xed\xa0\x80"])
def test_bytes_that_are_no_text_are_refused_by_name(raw: bytes) -> None:
    with pytest.raises(ConfigError, match="a --stop text is not UTF-8 text"):
        to_text(os.fsdecode(raw), "a --stop text")
    with pytest.raises(ConfigError, match="the prompt is not UTF-8 text"):
        read_prompt(os.fsdecode(raw))


def test_surrogate_that_stands_for_no_byte_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        to_text("\ud800", "it")


def test_dash_reads_stdin_without_its_last_newline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é\n\n".encode()), encoding="ascii"))
    assert read_prompt("-") == "é\n"


@pytest.mark.parametrize("given", [b"", b" \n"])
def test_empty_prompt_is_refused(monkeypatch: pytest.MonkeyPatch, given: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    for argument in ("-", given.decode()):
        with pytest.raises(ConfigError, match="the prompt is empty"):
            read_prompt(argument)


def test_prompt_and_token_cannot_both_come_from_stdin(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "toy", "-", "--join", "-"]) == 2
    assert "give a file to --join" in capsys.readouterr().err
