"""A process that has imported what a peer needs, and makes peers by forking: milliseconds each instead of seconds.

`python -P -m shardp2p.lab.prefork DESCRIPTOR PADDING` is the process; forking.py starts it and asks it. A peer that it
forks is as if started by `python -m MODULE …`: a process group, an environment, a working directory, standard streams
and a command line of its own, in the namespaces that are asked for. The server ends with whoever holds the other end of
DESCRIPTOR, and its peers with it. PADDING is room in memory for the command lines, as `ps` shows them.

The socket keeps messages apart. First the server says READY, or why it cannot fork. Each request is JSON with four
descriptors: the three streams, and a socket on which the server says the process id, with a descriptor of the process,
and later how the process ended, as subprocess.Popen.returncode has it. Sound only in a process of one thread.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from shardp2p.config import prepare_compute, replace_environment

READY: Final = b"ready"
MAX_REQUEST_BYTES: Final = 128 << 10
"""A command line and an environment; less than what a socket takes at once."""
MAX_PEERS: Final = 1024
"""That run at a time: each costs a few descriptors and a page table."""
PADDING_BYTES: Final = 4096
ENDING_S: Final = 2.0
"""How long peers may take to end once nobody is left who wants them; then they are killed."""

IMPORTED: Final = (
    "shardp2p.cli.app",
    "shardp2p.cli.up_swarm",
    "shardp2p.keeper",
    "shardp2p.gateway.local",
    "shardp2p.runtime.bring_up",
    "shardp2p.runtime.load",
    "shardp2p.runtime.prepare",
    "shardp2p.runtime.speed",
    "shardp2p.stage.worker",
    "shardp2p.weights.footprint",
    "transformers.models.llama.modeling_llama",
)
"""Named, not imported above: what is forked stands above this package, as a command does that it starts."""

_PROC: Final = Path("/proc/self")
_PR_SET_PDEATHSIG: Final = 1
_STANDARD_STREAMS: Final = 3
_ARG_START, _ARG_END = 45, 46
"""Fields 48 and 49 of proc(5) stat, counted from the one after the program's name."""


def main() -> None:
    """Import, say whether peers can be forked, and fork them until nobody asks any more."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.set_inheritable(False)
    # The peers have these from us: what our own parent ignores is not to be ignored by them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGIO):
        signal.signal(number, signal.SIG_DFL)
    # Whoever started us sends nothing before READY. Should they go meanwhile, SIGIO ends us inside the imports.
    fcntl.fcntl(requests, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(requests, fcntl.F_GETFL)
    fcntl.fcntl(requests, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([requests], [], [], 0)[0]:
        return
    _import_all()
    fcntl.fcntl(requests, fcntl.F_SETFL, flags)
    obstacle = _obstacle(requests.fileno())
    with suppress(OSError):
        requests.send(obstacle.encode() or READY)
        if not obstacle:
            _Server(requests).run()


def _import_all() -> None:
    prepare_compute()
    gc.disable()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # else the collector of every peer would write to, and so copy, the pages that all share
    gc.enable()


def _obstacle(descriptor: int) -> str:
    """Why this process must not fork, or nothing: a thread or a descriptor that a peer would share unawares."""
    threads = len(list((_PROC / "task").iterdir()))
    if threads != 1:
        return f"importing has started {threads - 1} threads"
    listed = [entry for entry in (_PROC / "fd").iterdir() if entry.is_symlink()]  # without that of the listing itself
    extra = {int(entry.name) for entry in listed} - {*range(_STANDARD_STREAMS), descriptor}
    return f"importing has opened the descriptors {sorted(extra)}" if extra else ""


class _Server:
    """Forks what is asked for, and tells how each peer ended. One thread, and no signal handlers."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._poll = select.poll()
        self._peers: dict[int, tuple[int, socket.socket]] = {}
        """By a descriptor of the process: its id, and where its end is told."""

    def run(self) -> None:
        self._poll.register(self._requests, select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._requests.fileno():
                    self._tell_end(descriptor)
                elif not self._serve():
                    return self._end_all()

    def _serve(self) -> bool:
        """Fork one peer; False when nobody is there to ask for one."""
        data, descriptors, _, _ = socket.recv_fds(self._requests, MAX_REQUEST_BYTES, _STANDARD_STREAMS + 1)
        if not data:
            return False
        streams, control = descriptors[:_STANDARD_STREAMS], socket.socket(fileno=descriptors[_STANDARD_STREAMS])
        if len(self._peers) >= MAX_PEERS:
            control.close()
        else:
            self._fork(json.loads(data), streams, control)
        for stream in streams:
            os.close(stream)
        return True

    def _fork(self, request: dict[str, Any], streams: list[int], control: socket.socket) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no room for one more; whoever asks sees the socket closed
            control.close()
            return
        if not pid:
            _be_peer(request, streams, server)
        with suppress(OSError):
            os.setpgid(pid, pid)  # here too: whoever is told the id may signal the group at once
        process = os.pidfd_open(pid)
        self._peers[process] = (pid, control)
        self._poll.register(process, select.POLLIN)
        with suppress(OSError):  # whoever asked is gone already
            socket.send_fds(control, [str(pid).encode()], [process])

    def _tell_end(self, process: int) -> None:
        pid, control = self._peers.pop(process)
        self._poll.unregister(process)
        os.close(process)
        _, status = os.waitpid(pid, 0)
        with control, suppress(OSError):
            control.send(str(os.waitstatus_to_exitcode(status)).encode())

    def _end_all(self) -> None:
        """Ask the peers to end; those that do not are killed by the kernel when this process ends."""
        self._poll.unregister(self._requests)
        for process in self._peers:
            signal.pidfd_send_signal(process, signal.SIGTERM)
        deadline = time.monotonic() + ENDING_S
        while self._peers and (left_s := deadline - time.monotonic()) > 0:
            for process, _ in self._poll.poll(1000 * left_s):
                self._tell_end(process)


def _be_peer(request: dict[str, Any], streams: list[int], server: int) -> NoReturn:
    """Go on as the command that is asked for, and end as it does."""
    try:
        _take_over(request, streams, server)
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    finally:
        os._exit(_finish(sys.exception()))  # not through the interpreter's end, which belongs to the server


def _finish(error: BaseException | None) -> int:
    """What the interpreter does at the end of a program: say what it failed of, flush, and give the exit code."""
    exit_code = 0
    if isinstance(error, SystemExit):
        exit_code = int(error.code is not None)
        if isinstance(error.code, int):
            exit_code = error.code & 0xFF
        elif exit_code:
            sys.stderr.write(f"{error.code}\n")
    elif error is not None:
        exit_code = 1
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return exit_code


def _take_over(request: dict[str, Any], streams: list[int], server: int) -> None:
    """Shed what is the server's and take what the request says."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(128 + signal.SIGKILL)  # the server ended before the kernel was told
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    # The server has no other descriptors than its own (_obstacle), and its objects are never finalised here.
    os.closerange(_STANDARD_STREAMS, os.sysconf("SC_OPEN_MAX"))
    for namespace in request["namespaces"]:
        _enter(namespace)
    os.chdir(request["directory"])
    replace_environment(request["environment"])
    tempfile.tempdir = None  # a library has asked for it while it was imported: TMPDIR may be another now
    sys.argv = [request["module"], *request["arguments"]]
    sys.stdin = open(0, encoding=sys.stdin.encoding, closefd=False)  # noqa: SIM115 - stays open
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115 - stays open
    sys.stderr = open(2, "w", encoding=sys.stderr.encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    _reseed()
    _show_command_line([sys.executable, "-m", *sys.argv])


def _enter(namespace: str) -> None:
    """Move into a namespace. Raises: OSError."""
    descriptor = os.open(namespace, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), namespace)
    os.close(descriptor)


def _reseed() -> None:
    """Let no two peers draw the same: generators that were seeded from chance when they were imported."""
    random.seed()
    numpy: Any = importlib.import_module("numpy")
    numpy.random.seed()
    trio_run: Any = importlib.import_module("trio._core._run")
    trio_run._r.seed()


def _show_command_line(words: list[str]) -> None:
    """Let `ps` show what this process is now, as far as there is room for it."""
    with suppress(OSError, ValueError, IndexError):
        shown = (_PROC / "cmdline").read_bytes()
        fields = (_PROC / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        start, size = int(fields[_ARG_START]), int(fields[_ARG_END]) - int(fields[_ARG_START])
        # Only where the kernel's account of the memory and the memory itself agree may it be written.
        if size == len(shown) and ctypes.string_at(start, size) == shown:
            text = b"".join(os.fsencode(word) + b"\0" for word in words)[: size - 1]
            ctypes.memmove(start, text.ljust(size, b"\0"), size)


if __name__ == "__main__":
    main()
    os._exit(0)
