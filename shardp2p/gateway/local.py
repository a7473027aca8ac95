"""A running peer answers its user's other commands: JSON lines over a Unix socket that only the user can open.

One request is one line, an object with `ask`; the answer is one line, `{"answer": …}` or `{"error": …}`. Sockets lie in
one directory, named after the peer; a socket that nobody answers on is what a killed peer left.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from shardp2p.errors import ConfigError, PeerUnavailableError, ShardError, first_of, write_advice
from shardp2p.vocabulary import PeerId

log = structlog.get_logger()

SUFFIX: Final = ".sock"
MAX_REQUEST_BYTES: Final = 64 * 1024
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""A view of ten thousand peers fits."""
REQUEST_S: Final = 10.0
ANSWER_S: Final = 30.0
STATUS_S: Final = 3.0
"""A peer has at hand what it says of itself: one that takes longer hangs."""
MAX_ASKED: Final = 64
"""Peers that are asked at once: a thread waits for each."""
BACKLOG: Final = 16
_SHORT_BYTES: Final = 100
"""The kernel takes a little over a hundred bytes as a socket's path."""

Answer = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Answers a request with something that JSON has. Raises: ShardError."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the running peers of this user answer, and what is wrong with those that do not."""

    answers: Mapping[PeerId, Any]
    silent: Mapping[PeerId, str]


@asynccontextmanager
async def open_local(directory: Path, peer: PeerId, answers: Mapping[str, Answer]) -> AsyncIterator[None]:
    """Answer this user's commands until the context is left. Raises: ConfigError when the socket cannot be made."""
    path = directory / f"{peer}{SUFFIX}"
    listener = _listen(path)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(_serve, listener, answers)
            yield
            nursery.cancel_scope.cancel()
    finally:
        listener.close()
        with trio.CancelScope(shield=True):  # a peer that is told to end leaves no file either
            await trio.to_thread.run_sync(path.unlink, True)


def running_peers(directory: Path) -> tuple[PeerId, ...]:
    """The peers of this user that run now, by id."""
    return tuple(
        PeerId(path.name.removesuffix(SUFFIX)) for path in sorted(directory.glob(f"*{SUFFIX}")) if _is_answered(path)
    )


def ask_running(directory: Path) -> Told:
    """The status of every peer of this user that runs. All are asked at once, so that none holds up the others."""
    running = running_peers(directory)

    def ask_one(peer: PeerId) -> Any | ShardError:
        try:
            return _ask(directory, peer, {"ask": "status"}, STATUS_S)
        except ShardError as error:
            return error

    with ThreadPoolExecutor(max_workers=max(1, min(MAX_ASKED, len(running)))) as threads:
        told = dict(zip(running, threads.map(ask_one, running), strict=True))
    return Told(
        {peer: answer for peer, answer in told.items() if not isinstance(answer, ShardError)},
        {peer: answer.message for peer, answer in told.items() if isinstance(answer, ShardError)},
    )


def ask_local(directory: Path, peer: PeerId, ask: str, **arguments: Any) -> Any:
    """What a running peer answers.

    Raises: PeerUnavailableError when it does not run or answer; ConfigError with what it says is wrong.
    """
    return _ask(directory, peer, {"ask": ask, **arguments}, ANSWER_S)


def _ask(directory: Path, peer: PeerId, request: Mapping[str, Any], within_s: float) -> Any:
    try:
        with _connected(directory / f"{peer}{SUFFIX}", within_s) as connection:
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as file:
                line = file.readline(MAX_ANSWER_BYTES)
        reply = json.loads(line)
    except TimeoutError as error:
        raise PeerUnavailableError(
            f"the peer {peer} of this machine runs, and does not answer within {within_s:.0f} s: it hangs or is "
            "stopped; end it and start it again"
        ) from error
    except (OSError, ValueError) as error:
        raise PeerUnavailableError(f"the peer {peer} of this machine does not answer; start it again") from error
    if "error" in reply:
        raise ConfigError(str(reply["error"]))
    return reply["answer"]


async def _serve(
    listener: socket.socket,
    answers: Mapping[str, Answer],
    *,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> None:
    async def serve_one(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.TooSlowError):  # the command was interrupted
            await _answer(stream, answers)

    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]
    await trio.serve_listeners(serve_one, listeners, task_status=task_status)


async def _answer(stream: trio.SocketStream, answers: Mapping[str, Answer]) -> None:
    line = b""
    with trio.fail_after(REQUEST_S):
        while not line.endswith(b"\n") and len(line) < MAX_REQUEST_BYTES and (data := await stream.receive_some()):
            line += data
    try:
        reply = json.dumps({"answer": await _answer_to(line, answers)})
    except ShardError as error:
        reply = json.dumps({"error": error.message})
    except Exception as error:  # a bug: its asker hears of it, and all others are served on
        log.exception("local_request_failed")
        reply = json.dumps({"error": f"this peer failed at what was asked, which is a bug: {type(error).__name__}"})
    with trio.fail_after(ANSWER_S):
        await stream.send_all(reply.encode() + b"\n")


async def _answer_to(line: bytes, answers: Mapping[str, Answer]) -> Any:
    """Raises: ShardError, also for what is no request."""
    try:
        request = json.loads(line)
        answer = answers[request["ask"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError("this peer does not know what was asked; it may be of another version") from None
    failure: ShardError | None = None
    try:
        return await answer(request)
    except* ShardError as group:
        failure = first_of(group)
    raise failure


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, in place of one that a killed peer left: the identity's lock lets one run."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        with _reachable(path) as short:
            listener.bind(short)
        path.chmod(0o600)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen for this machine's commands at {path}: {error.strerror}{write_advice(error)}"
        ) from error
    return listener


@contextmanager
def _connected(path: Path, within_s: float) -> Iterator[socket.socket]:
    """A connection; connecting, and each sending and receiving, may take so long."""
    with _reachable(path) as short, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # With a timeout of Python's own, connecting fails at once where as many wait already as the kernel lets.
        seconds, rest = divmod(within_s, 1.0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), int(1e6 * rest)))
        connection.setblocking(within_s > 0.0)
        try:
            connection.connect(short)
        except BlockingIOError:
            raise TimeoutError(f"{path.name} takes no more connections") from None
        connection.settimeout(within_s)
        yield connection


def _is_answered(path: Path) -> bool:
    try:
        with _connected(path, 0.0):
            return True
    except TimeoutError:  # it runs, and others wait
        return True
    except OSError:
        return False


@contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """`path` in a form that is short enough for a socket, where the kernel has one (Linux)."""
    if len(os.fsencode(path)) <= _SHORT_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
