"""The `shardp2p` command in processes of its own, each of which ends with the test that started it.

Only processes that were started here are signalled, by their process id. Waiting polls what the kernel tells about a
process; HANG_S ends a test that would hang, and is no statement about speed.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
import trio

from shardp2p.lab.forking import Forked, fork, fork_with_pipes

HANG_S = 60.0
POLL_S = 0.01


class Shardp2p:
    """A running `shardp2p …`. Its stdin is a pipe, and stdout is read as bytes come.

    One that is forked costs a tenth of the time and is in a process group of its own; it is a peer like any other, for
    tests that are not about how a command starts.
    """

    def __init__(self, *arguments: object, is_forked: bool = False) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._read = b""
        words = [str(argument) for argument in arguments]
        self._process = (is_forked and _fork(words, self._errors.fileno())) or subprocess.Popen(
            [sys.executable, "-m", "shardp2p", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def stderr(self) -> str:
        """All that was written to stderr so far."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode()

    @property
    def error_line(self) -> str:
        """The line that says why the command failed; log lines may stand before it, and nothing after it."""
        lines = self.stderr.splitlines()
        assert lines, "nothing was written to stderr"
        assert "Traceback" not in self.stderr, self.stderr
        assert [line for line in lines if line.startswith("shardp2p: error: ")] == lines[-1:], self.stderr
        return lines[-1].removeprefix("shardp2p: error: ")

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def close_stdin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close_stdout(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()

    def write(self, data: bytes) -> None:
        """Give it `data` as the whole of its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.close()

    def read_bytes(self, count: int) -> bytes:
        """At least `count` bytes of stdout, and all that is there."""
        while len(self._read) < count:
            self._must_read_more()
        data, self._read = self._read, b""
        return data

    def read_line(self) -> str:
        """The next line of stdout."""
        while b"\n" not in self._read:
            self._must_read_more()
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def wait(self) -> tuple[int, str]:
        """The exit code and the rest of stdout, once the process has ended."""
        assert self._process.stdout is not None
        while not self._process.stdout.closed and self._read_more():
            pass
        data, self._read = self._read, b""
        return self._process.wait(HANG_S), data.decode()

    def wait_until(self, is_reached: Callable[[int], bool]) -> None:
        """Wait until something holds for the process id of the process, which must not end before that."""
        deadline = time.monotonic() + HANG_S
        while not is_reached(self.pid):
            assert self.is_running, f"ended early: {self.stderr}"
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(POLL_S)

    def end(self) -> None:
        """Kill the process if it still runs, stopped or not."""
        self._process.kill()
        self._process.wait(HANG_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._errors.close()

    def _read_more(self) -> bool:
        """Take what comes next on stdout; False at its end."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], HANG_S)
        assert readable, f"nothing comes: {self.stderr}"
        piece = os.read(self._process.stdout.fileno(), 65536)
        self._read += piece
        return bool(piece)

    def _must_read_more(self) -> None:
        assert self._read_more(), f"it ended with {self._process.wait(HANG_S)}: {self.stderr}"


class _Forked:
    """A forked process with pipes, of which subprocess.Popen has all and more."""

    def __init__(self, forked: Forked, stdin: int, stdout: int) -> None:
        self.pid = forked.pid
        self.stdin = os.fdopen(stdin, "wb", buffering=0)
        self.stdout = os.fdopen(stdout, "rb", buffering=0)
        self.poll = forked.poll
        self.wait = forked.wait
        self.send_signal = forked.send_signal
        self.kill = forked.kill


def _fork(arguments: list[str], stderr: int) -> _Forked | None:
    """None where it cannot be forked."""
    forked = fork_with_pipes("shardp2p", arguments, stderr)
    return _Forked(*forked) if forked is not None else None


@contextmanager
def running(*arguments: object, is_forked: bool = False) -> Iterator[Shardp2p]:
    """`shardp2p` with these arguments, killed at the end if it still runs."""
    process = Shardp2p(*arguments, is_forked=is_forked)
    try:
        yield process
    finally:
        process.end()


async def finished(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    """`shardp2p` with these arguments and nothing on stdin, once it has ended; forked where that can be."""
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryFile() as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        streams = (nothing.fileno(), out.fileno(), errors.fileno())
        forked = await trio.to_thread.run_sync(fork, "shardp2p", words, streams)
        if forked is None:
            command = [sys.executable, "-m", "shardp2p", *words]
            return await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False, stdin=b"")
        try:
            while (exit_code := forked.poll()) is None:
                await trio.lowlevel.wait_readable(forked.control)
        finally:
            forked.kill()
            forked.wait(HANG_S)
        said = [os.pread(stream, os.fstat(stream).st_size, 0) for stream in streams[1:]]
    return subprocess.CompletedProcess(words, exit_code, *said)


class StageProcess:
    """A `shardp2p up` and what it said when it was ready."""

    def __init__(self, process: Shardp2p) -> None:
        self.process = process
        self.ready: dict[str, Any] = json.loads(process.read_line())

    @property
    def peer_id(self) -> str:
        return str(self.ready["peer_id"])

    @property
    def address(self) -> str:
        return str(self.ready["addresses"][0])


@contextmanager
def running_stages(data_dir: Path, *wanted: tuple[Path, str, str]) -> Iterator[list[StageProcess]]:
    """A ready stage for each (model directory, layers, dtype), all started at once, which ends with us in any case."""
    processes: list[Shardp2p] = []
    try:
        for model, layers, dtype in wanted:
            key = Path(tempfile.mkdtemp(dir=data_dir)) / "identity.key"
            options = ("--model", model, "--layers", layers, "--dtype", dtype, "--threads", 1, "--identity", key)
            flags = ("--data-dir", data_dir, "--json", "--exit-on-stdin-close")
            processes.append(Shardp2p("up", *options, *flags, is_forked=True))
        yield [StageProcess(process) for process in processes]
    finally:
        for process in processes:
            process.end()


@contextmanager
def restored_logging() -> Iterator[None]:
    """For commands that run in the tests' own process: their log setup ends with the context."""
    root = logging.getLogger()
    handlers, level, last = root.handlers[:], root.level, logging.lastResort
    try:
        yield
    finally:
        root.handlers[:], logging.lastResort = handlers, last
        root.setLevel(level)
        logging.captureWarnings(False)
        structlog.reset_defaults()


def handles_signals(pid: int) -> bool:
    """Whether the process handles SIGTERM itself, which `shardp2p` does from its first moment on."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def imports_torch(pid: int) -> bool:
    """Whether the process has begun to import torch."""
    return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()


def has_ended(pid: int) -> bool:
    """Whether no process has this id any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
