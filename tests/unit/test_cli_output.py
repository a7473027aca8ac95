from __future__ import annotations

import threading
from typing import cast

import pytest

from shardp2p.cli.output import one_line, printable, report
from shardp2p.cli.progress import Waiting
from shardp2p.errors import ConfigError, IntegrityError, LocalProtocolError, OverloadedError, PeerUnavailableError


def test_error_becomes_one_safe_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(PeerUnavailableError("it is\ngone \x1b[2J\x9b1m\r\n")) == 3
    shown = "it is gone \N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}1m"
    assert capsys.readouterr().err == f"shardp2p: error: {shown}\n"


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("a"), 2), (OverloadedError("a"), 3), (IntegrityError("a"), 4), (SystemExit(7), 7)]
)
def test_exit_code_tells_the_kind(error: BaseException, code: int) -> None:
    assert report(error) == code


def test_first_of_grouped_errors_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    inner = ExceptionGroup("inner", [IntegrityError("altered"), ConfigError("wrong")])
    assert report(ExceptionGroup("outer", [inner, PeerUnavailableError("gone")])) == 4
    assert capsys.readouterr().err == "shardp2p: error: altered\n"


def test_group_with_a_bug_in_it_is_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(ExceptionGroup("both", [PeerUnavailableError("gone"), KeyError("x")])) == 1
    assert "this is a bug" in capsys.readouterr().err


def test_breach_of_our_own_rules_is_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(LocalProtocolError("impossible")) == 1
    assert "this is a bug" in capsys.readouterr().err


def test_broken_pipe_is_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(ExceptionGroup("nursery", [BrokenPipeError()])) == 141
    assert capsys.readouterr() == ("", "")


def test_text_keeps_its_lines_and_loses_what_a_terminal_obeys() -> None:
    assert printable("a\tb\nc") == "a\tb\nc"
    assert (
        printable("\x1b]0;x\x07é日\x9b")
        == "\N{REPLACEMENT CHARACTER}]0;x\N{REPLACEMENT CHARACTER}é日\N{REPLACEMENT CHARACTER}"
    )
    assert one_line(" a\tb\nc ") == "a b c"


def test_what_is_waited_for_is_said_without_a_terminal_too(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = Waiting()
    waiting.tell()
    assert capsys.readouterr().err == ""
    waiting.report("looking for peers", 0, 0)
    waiting.report("waiting for\nthe first token", 0, 0)
    waiting.tell()
    assert capsys.readouterr().err == "(after 8 s: waiting for the first token)\n"
    waiting.tell(68.0)
    assert capsys.readouterr().err == ""
    waiting.report("round 2", 1, 3)
    waiting.tell(128.4)
    assert capsys.readouterr().err == "(after 128 s: round 2)\n"


class Minutes:
    """An Event that nobody sets for a while, and the clock: each wait takes as long as it may, then a step begins."""

    def __init__(self, waiting: Waiting, *steps: str) -> None:
        self.now = 100.0
        self._waiting = waiting
        self._steps = list(steps)

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        if not self._steps:
            return True
        if step := self._steps.pop(0):
            self._waiting.report(step, 0, 3)
        return False


def test_what_is_reported_late_is_told_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting()
    minutes = Minutes(waiting, "", "round 1", "", "round 2")
    monkeypatch.setattr("shardp2p.cli.progress.time.monotonic", lambda: minutes.now)
    waiting.watch(cast(threading.Event, minutes))
    assert capsys.readouterr().err == "(after 16 s: round 1)\n(after 136 s: round 2)\n"
