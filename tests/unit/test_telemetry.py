"""The log: its form, and what never gets into it."""

from __future__ import annotations

import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator

import pytest
import structlog

from shardp2p.errors import ConfigError
from shardp2p.telemetry import WITHHELD, configure_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root, libp2p = logging.getLogger(), logging.getLogger("libp2p")
    handlers, level, last_resort = root.handlers[:], root.level, logging.lastResort
    libp2p_level, libp2p_propagates, libp2p_handlers = libp2p.level, libp2p.propagate, libp2p.handlers[:]
    # As before libp2p was imported: pytest listens to a logger that does not propagate.
    libp2p.handlers.clear()
    libp2p.setLevel(logging.NOTSET)
    libp2p.propagate = True
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    libp2p.setLevel(libp2p_level)
    libp2p.propagate = libp2p_propagates
    libp2p.handlers[:] = libp2p_handlers
    logging.lastResort = last_resort
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_event_is_one_line_of_json_away_from_a_terminal() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    structlog.get_logger().info("chunk_sent", session="ab", seq=3, note="two\nlines")
    (line,) = lines(stream)
    assert line.pop("timestamp")
    assert line == {"event": "chunk_sent", "level": "info", "session": "ab", "seq": 3, "note": "two\nlines"}


def test_event_is_readable_text_on_a_terminal() -> None:
    stream = Terminal()
    configure_logging(stream=stream)
    structlog.get_logger().info("chunk_sent", seq=3)
    assert "chunk_sent" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_events_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    configure_logging("warning", stream)
    log = structlog.get_logger()
    log.info("ready")
    log.warning("peer_lost")
    assert [line["event"] for line in lines(stream)] == ["peer_lost"]


def test_logger_made_before_the_setup_follows_it() -> None:
    log = structlog.get_logger()
    first, second = io.StringIO(), io.StringIO()
    configure_logging(stream=first)
    log.info("one")
    configure_logging(stream=second)
    log.info("two")
    assert [line["event"] for line in lines(first) + lines(second)] == ["one", "two"]


def test_log_goes_to_what_stderr_is_at_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # A progress bar stands in for stderr while it is drawn, so that lines go above it.
    before, during = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", before)
    configure_logging()
    structlog.get_logger().info("joining")
    monkeypatch.setattr(sys, "stderr", during)
    structlog.get_logger().info("loading")
    assert [line["event"] for line in lines(before) + lines(during)] == ["joining", "loading"]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["json", "terminal"])
def test_what_people_say_and_what_opens_doors_is_withheld(stream: io.StringIO) -> None:
    configure_logging("debug", stream)
    structlog.get_logger().debug("opened", **dict.fromkeys(WITHHELD, "classified"), generated_tokens=64)
    assert "classified" not in stream.getvalue()
    assert "64" in stream.getvalue()


def test_addresses_are_logged_at_debug_alone() -> None:
    stream = io.StringIO()
    configure_logging("debug", stream)
    log = structlog.get_logger()
    log.debug("dialling", address="/ip4/203.0.113.5/tcp/1")
    log.info("connected", address="/ip4/203.0.113.5/tcp/1")
    assert [line["address"] for line in lines(stream)] == ["/ip4/203.0.113.5/tcp/1", "[withheld]"]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["json", "terminal"])
def test_traceback_shows_no_local_variables(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    prompt = "CLASSIFIED".lower()
    try:
        len(prompt) / 0  # type: ignore[operator]
    except ZeroDivisionError:
        structlog.get_logger().exception("stage_failed")
    assert "ZeroDivisionError" in stream.getvalue()
    assert "classified" not in stream.getvalue()


def test_libraries_speak_in_the_same_form() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    logging.getLogger("some.library").warning("disk is %s", "full")
    (line,) = lines(stream)
    assert (line["event"], line["level"]) == ("disk is full", "warning")


def test_noise_of_libraries_is_heard_at_debug_alone() -> None:
    quiet, debug = io.StringIO(), io.StringIO()
    for level, stream in (("info", quiet), ("debug", debug)):
        configure_logging(level, stream)
        logging.getLogger("libp2p.kad_dht").info("bucket refreshed")
        logging.getLogger("libp2p.kad_dht").error("Failed to read DHT message from stream")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old call", stacklevel=1)
    assert quiet.getvalue() == ""
    assert [line["level"] for line in lines(debug)] == ["error", "warning"]


def test_library_that_cuts_itself_off_speaks_in_the_same_form(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    configure_logging("debug", stream)
    monkeypatch.setattr(logging.getLogger("libp2p"), "propagate", False)
    logging.getLogger("libp2p.swarm").warning("dial failed")
    assert [line["event"] for line in lines(stream)] == ["dial failed"]


def test_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="'loud'"):
        configure_logging("loud")
