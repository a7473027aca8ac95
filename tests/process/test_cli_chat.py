"""`shardp2p chat` against real stages: it remembers what was said, and an answer that is stopped is no end."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shardp2p.identity.keys import Identity
from shardp2p.runtime.reference import Reference
from shardp2p.runtime.tokenizer import Tokenizer
from tests.support.cli_ring import endless, slow_talker
from tests.support.models import tiny_llama
from tests.support.processes import HANG_S, StageProcess, running, running_stages


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slow_talker(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def stages(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[StageProcess]]:
    wanted = ((tiny, "0:2", "float32"), (tiny, "2:4", "float32"))
    with running_stages(tmp_path_factory.mktemp("data"), *wanted) as ready:
        yield ready


def peers(stages: list[StageProcess]) -> tuple[str, ...]:
    return tuple(f"--peer={stage.address}" for stage in stages)


def expected_talk(tiny: Path, *said: str, max_tokens: int) -> str:
    """What the whole model answers, one line after the other."""
    tokenizer, reference = Tokenizer(tiny), Reference(tiny)
    messages: list[dict[str, str]] = []
    lines = []
    for text in said:
        messages.append({"role": "user", "content": text})
        answer = reference.generate(tokenizer.encode_chat(messages), max_tokens, tokenizer.stop_tokens)
        messages.append({"role": "assistant", "content": tokenizer.decode(answer.tokens)})
        lines.append(messages[-1]["content"])
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines if line)


@pytest.mark.parametrize("options", [(), ("--local-driver", "--draft=none"), ("--local-layers=1",)])
def test_each_answer_follows_all_that_was_said(
    stages: list[StageProcess], tiny: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    said = ("Hello", "And then?", "Why?")
    arguments = ("chat", tiny, "--data-dir", tmp_path, *peers(stages), "--max-tokens", 8, *options)
    with running(*arguments, is_forked=True) as process:
        process.write("".join(f"{text}\n" for text in said).encode())
        code, out = process.wait()
    assert (code, process_text(out)) == (0, expected_talk(tiny, *said, max_tokens=8))


def process_text(out: str | bytes) -> str:
    return out if isinstance(out, str) else out.decode()


def test_a_peer_that_is_gone_is_told_in_one_line(stages: list[StageProcess], tiny: Path, tmp_path: Path) -> None:
    nobody = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}"
    with running("chat", tiny, "--data-dir", tmp_path, "--peer", nobody, is_forked=True) as process:
        code, _ = process.wait()
        assert code == 3
        assert process.error_line.startswith("cannot reach peer")


def test_a_model_without_a_chat_template_is_refused(stages: list[StageProcess], tmp_path: Path) -> None:
    plain = tiny_llama(tmp_path / "plain")
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (plain / name).unlink(missing_ok=True)
    with running("chat", plain, "--data-dir", tmp_path, *peers(stages), is_forked=True) as process:
        code, _ = process.wait()
        assert code == 2
        assert "has no chat template" in process.error_line


def test_ctrl_c_stops_the_answer_and_a_second_one_leaves(
    stages: list[StageProcess], tiny: Path, tmp_path: Path
) -> None:
    options = [option for option in endless(tiny) if option != "--raw"]
    with Terminal("chat", str(tiny), "--data-dir", str(tmp_path), *peers(stages), *options) as terminal:
        terminal.wait_text("> ")
        terminal.write(b"Talk\n")
        terminal.wait_letters(20)
        terminal.interrupt()
        terminal.wait_text("> ")
        terminal.write(b"Go on\n")
        terminal.wait_letters(20)
        terminal.interrupt()
        terminal.wait_text("> ")
        terminal.interrupt()
        assert terminal.wait() == 0


def test_ctrl_d_leaves(stages: list[StageProcess], tiny: Path, tmp_path: Path) -> None:
    with Terminal("chat", str(tiny), "--data-dir", str(tmp_path), *peers(stages)) as terminal:
        terminal.wait_text("Ctrl-D leaves")
        terminal.wait_text("> ")
        terminal.write(b"\x04")
        assert terminal.wait() == 0


class Terminal:
    """A `shardp2p …` on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self._unread = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shardp2p", *arguments],
            stdin=slave, stdout=slave, stderr=slave,
        )  # fmt: skip
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(HANG_S)
        os.close(self._master)

    def write(self, data: bytes) -> None:
        """Type."""
        self._unread = ""
        os.write(self._master, data)

    def interrupt(self) -> None:
        """What Ctrl-C does to the process."""
        self._unread = ""
        self._process.send_signal(signal.SIGINT)

    def wait_text(self, text: str) -> None:
        """Wait until the terminal shows `text`."""
        self._wait(re.compile(re.escape(text)).search)

    def wait_letters(self, count: int) -> None:
        """Wait for an answer of the endless kind to be so long; no word of ours looks like one."""
        self._wait(re.compile(rf"[a-h\n]{{{count},}}").search)

    def wait(self) -> int:
        """The exit code."""
        return self._process.wait(HANG_S)

    def _wait(self, find: Callable[[str], re.Match[str] | None]) -> None:
        deadline = time.monotonic() + HANG_S
        while not find(self._unread):
            is_over = self._process.poll() is not None
            has_more = bool(select.select([self._master], [], [], 0.1)[0])
            if has_more:
                with suppress(OSError):  # nobody has the terminal open any more
                    self._unread += os.read(self._master, 65536).decode(errors="replace").replace("\r\n", "\n")
            assert not is_over, f"ended; the terminal shows {self._unread[-500:]!r}"
            assert time.monotonic() < deadline, f"the terminal shows {self._unread[-500:]!r}"
