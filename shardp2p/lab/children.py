"""Processes that we start and end: each lives no longer than the context that started it, nor than we do.

A child has a pipe as its standard input and is to leave when that ends, so that a killed parent leaves none behind.
Peers are forked from a process that has imported what they need, where that can be (docs/decisions/0011).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import trio

from shardp2p.errors import (
    ConfigError,
    IntegrityError,
    LocalProtocolError,
    PeerUnavailableError,
    RemoteProtocolError,
    ShardError,
)
from shardp2p.lab.forking import Forked, fork_with_pipes, prepare_forking

STOP_S = 1.0
"""How long a child may take to end after SIGINT, before it is killed: less than a command has that is interrupted."""

MAX_LINE_BYTES = 1 << 20
"""What a child may say in one line: token ids of a long text fit."""

_ERROR_PREFIX = "shardp2p: error: "
_KINDS: Mapping[int, type[ShardError]] = {
    LocalProtocolError.exit_code: RemoteProtocolError,  # a bug there is none here
    **{kind.exit_code: kind for kind in (ConfigError, PeerUnavailableError, IntegrityError)},
}


class _Process(Protocol):
    """What we need of a process: trio.Process has it, and so has a forked one."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> trio.abc.SendStream | None: ...
    @property
    def stdout(self) -> trio.abc.ReceiveStream | None: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def send_signal(self, sig: signal.Signals | int, /) -> None: ...
    def kill(self) -> None: ...
    async def wait(self) -> int: ...


class _ForkedProcess:
    """A forked process as trio.Process shows one that it started."""

    def __init__(self, forked: Forked, stdin: int, stdout: int) -> None:
        self._forked = forked
        self._is_awaited = trio.Lock()
        self.pid = forked.pid
        self.stdin = trio.lowlevel.FdStream(stdin)
        self.stdout = trio.lowlevel.FdStream(stdout)
        self.poll = forked.poll
        self.send_signal = forked.send_signal
        self.kill = forked.kill

    @property
    def returncode(self) -> int | None:
        return self._forked.returncode

    async def wait(self) -> int:
        async with self._is_awaited:  # trio lets one task wait for a descriptor
            while (exit_code := self._forked.poll()) is None:
                await trio.lowlevel.wait_readable(self._forked.control)
        return exit_code


class Child:
    """A running process that we talk to in lines. Made by `Children.start` and `start_peer`."""

    def __init__(self, name: str, process: _Process, log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log
        self._received = bytearray()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def log_text(self) -> str:
        """What the process has written to its standard error."""
        return self._log.read_text(errors="replace")

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process, if it runs."""
        if self.is_running:
            self._process.send_signal(number)

    async def wait(self) -> int:
        """The exit code, once the process has ended."""
        return await self._process.wait()

    async def read_line(self) -> bytes:
        """The next line of the child's standard output.

        Raises: what the child said it died of, as the kind of error that its exit code stands for.
        """
        while b"\n" not in self._received:
            piece = await self._receive()
            if not piece:
                raise self._failure(await self._process.wait())
            self._received += piece
            if len(self._received) > MAX_LINE_BYTES:
                raise LocalProtocolError(f"{self._name} wrote a line of more than {MAX_LINE_BYTES} bytes")
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received[:] = rest
        return line

    async def read_some(self) -> bytes:
        """What the child says next on its standard output, as soon as it does; empty once it has ended well.

        Raises: as read_line.
        """
        if self._received:
            piece = bytes(self._received)
            self._received.clear()
            return piece
        piece = await self._receive()
        if not piece and (exit_code := await self._process.wait()):
            raise self._failure(exit_code)
        return piece

    async def _receive(self) -> bytes:
        assert self._process.stdout is not None
        return bytes(await self._process.stdout.receive_some())

    async def write_line(self, line: bytes) -> None:
        """Give the child a line on its standard input. Raises: as read_line, if it is gone."""
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(line + b"\n")
        except trio.BrokenResourceError:
            raise self._failure(await self._process.wait()) from None

    async def stop(self) -> None:
        """End the process: SIGINT, and SIGKILL for one that does not listen. Not to be cancelled."""
        with trio.move_on_after(STOP_S):
            if self._process.returncode is None:
                self._process.send_signal(signal.SIGINT)
            await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                await stream.aclose()

    def _failure(self, exit_code: int) -> ShardError:
        """The error behind an exit code, in the child's own words where it has left some."""
        lines = self.log_text().splitlines()
        said = [line.removeprefix(_ERROR_PREFIX) for line in lines if line.startswith(_ERROR_PREFIX)]
        reason = said[-1] if said else f"it ended with exit code {exit_code}" + (f": {lines[-1]}" if lines else "")
        return _KINDS.get(exit_code, PeerUnavailableError)(f"{self._name}: {reason}")


class Children:
    """The processes of one context, and a directory that goes when they are gone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._all: list[Child] = []
        self._logs = 0

    async def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
        """Start `command`; errors call it `name`. Without an `environment` it has ours.

        It is in a process group of its own: a Ctrl-C reaches us, and we end the children in order.
        """
        log = self._new_log()
        with log.open("wb") as stderr:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                process_group=0,
                env=environment,
            )
        return self._add(name, process, log)

    async def start_peer(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        namespaces: Sequence[str] = (),
    ) -> Child:
        """Start `shardp2p` with these arguments, as `start` would, in a small part of the time.

        It is forked where that can be, and else started like any command. The first one takes seconds. `namespaces`
        are files, as in /proc/PID/ns, that it enters in that order.
        """
        if await trio.to_thread.run_sync(prepare_forking, abandon_on_cancel=True):
            log = self._new_log()
            forked = await trio.to_thread.run_sync(_fork_peer, arguments, log, environment, namespaces)
            if forked is not None:
                return self._add(name, _ForkedProcess(*forked), log)
        return await self.start(name, [*entering(namespaces), *peer_command(arguments)], environment)

    def _new_log(self) -> Path:
        self._logs += 1
        return self.directory / f"{self._logs}.log"

    def _add(self, name: str, process: _Process, log: Path) -> Child:
        child = Child(name, process, log)
        self._all.append(child)
        return child

    async def stop(self) -> None:
        """End all of them, at once."""
        async with trio.open_nursery() as nursery:
            for child in self._all:
                nursery.start_soon(child.stop)


def peer_command(arguments: Sequence[str]) -> list[str]:
    """What starts `shardp2p` with these arguments as a user would, with this installation."""
    return [sys.executable, "-P", "-m", "shardp2p", *arguments]


def entering(namespaces: Sequence[str]) -> list[str]:
    """What goes before a command that is to run in `namespaces`, as util-linux has it."""
    # The kernel shows a namespace as a link to kind:[number].
    found = [f"--{str(Path(namespace).readlink()).partition(':')[0]}={namespace}" for namespace in namespaces]
    return ["nsenter", "--preserve-credentials", *found, "--"] if found else []


def _fork_peer(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None, namespaces: Sequence[str]
) -> tuple[Forked, int, int] | None:
    with log.open("wb") as stderr:
        return fork_with_pipes("shardp2p", arguments, stderr.fileno(), environment, namespaces)


@asynccontextmanager
async def open_children() -> AsyncIterator[Children]:
    """Room for processes, all of which have ended when the context is left, however that comes."""
    with TemporaryDirectory(prefix="shardp2p-") as directory:
        children = Children(Path(directory))
        try:
            yield children
        finally:
            with trio.CancelScope(shield=True):  # bounded by STOP_S
                await children.stop()
