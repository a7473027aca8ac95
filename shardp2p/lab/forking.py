"""Processes that a server forks for us, which has imported all they need: see prefork.py.

One server for this process, started when it is first asked for a peer; it ends when we do, however that comes. Where
there can be none, `fork` gives None, and the caller starts the command as any other.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from shardp2p.config import COMPUTE_DEFAULTS, environment_now
from shardp2p.lab.prefork import ENDING_S, MAX_REQUEST_BYTES, PADDING_BYTES, READY

IMPORT_S: Final = 120.0
"""How long a server may import, on a machine that does much else."""
ANSWER_S: Final = 20.0
"""How long forking may take there."""
MAX_ANSWER_BYTES: Final = 4096

IMPORT_TIME_VARIABLES: Final = (
    "CUDA", "GLIBC_TUNABLES", "GOMP_", "HF_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NVIDIA_", "OMP_",
    "OPENBLAS_", "PYTHON", "PYTORCH_", "SSL", "TOKENIZERS_", "TORCH_", "TRANSFORMERS_",
)  # fmt: skip
"""How names of variables begin that libraries read once: a peer that wants another value of one cannot be forked."""

_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy's and scipy's algebra else starts threads when it is imported; torch has its own."""


class Forked:
    """A process that was forked for us: what subprocess.Popen has of it, and the same exit codes."""

    def __init__(self, pid: int, process: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control
        """Becomes readable when the process has ended."""
        self._process = process
        self._returncode: int | None = None

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None while it runs."""
        return self.poll()

    def poll(self) -> int | None:
        """As returncode."""
        return self._take_end(0)

    def wait(self, timeout: float) -> int:
        """The exit code, once the process has ended. Raises: subprocess.TimeoutExpired."""
        exit_code = self._take_end(1000 * timeout)
        if exit_code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return exit_code

    def send_signal(self, number: int) -> None:
        """Signal the process, if it runs."""
        # By its descriptor: the server has taken note of its end, and the id may be another's by now.
        if self.poll() is None:
            try:
                signal.pidfd_send_signal(self._process, number)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        """End it at once, if it runs."""
        self.send_signal(signal.SIGKILL)

    def _take_end(self, wait_ms: float) -> int | None:
        if self._returncode is None and _is_readable(self.control, wait_ms):
            said = self.control.recv(MAX_ANSWER_BYTES)
            # A server that was killed takes its peers with it, by the kernel's hand.
            self._returncode = int(said) if said else -signal.SIGKILL
            self.control.close()
            os.close(self._process)
        return self._returncode

    def __del__(self) -> None:
        if self._returncode is None:
            self.control.close()
            os.close(self._process)


class _Server:
    """The running server, and the socket on which it is asked."""

    def __init__(self) -> None:
        self.environment = environment_now()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", "shardp2p.lab.prefork", str(theirs.fileno()), " " * PADDING_BYTES]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
                pass_fds=[theirs.fileno()],
                env=self.environment | _ONE_THREAD,
            )
        self._is_ready = False

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def is_ready(self) -> bool:
        """Whether it can fork, once it has imported everything."""
        if not self._is_ready and _is_readable(self._ours, 1000 * IMPORT_S):
            self._is_ready = self._ours.recv(MAX_ANSWER_BYTES) == READY
        return self._is_ready

    def fork(
        self,
        module: str,
        arguments: Sequence[str],
        streams: Sequence[int],
        environment: Mapping[str, str],
        namespaces: Sequence[str],
    ) -> Forked | None:
        """None when it cannot, or does not answer."""
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "directory": str(Path.cwd()),
            "namespaces": list(namespaces),
        }
        data = json.dumps(request).encode()
        if len(data) > MAX_REQUEST_BYTES:
            return None
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self._ours, [data], [*streams, theirs.fileno()])
            if _is_readable(control, 1000 * ANSWER_S):
                said, descriptors, _, _ = socket.recv_fds(control, MAX_ANSWER_BYTES, 1)
                if said:
                    return Forked(int(said), descriptors[0], control)
            else:
                self.close()  # it may fork later what we start otherwise
        except OSError:
            pass
        control.close()
        return None

    def close(self) -> None:
        """End it, and all that it has forked."""
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)  # closing is not enough while a thread of ours waits for it
        self._ours.close()
        try:
            self._process.wait(2 * ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Servers:
    """The one server, if there is one; threads may ask at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._is_possible = sys.platform == "linux"

    def running(self) -> _Server | None:
        """The server, ready; started anew where the last one has ended. None where there can be none."""
        with self._lock:
            if self._server is not None and not self._server.is_running:
                self._server.close()
                self._server = None
            if self._server is None and self._is_possible:
                try:
                    self._server = _Server()
                except OSError:
                    self._is_possible = False
            if self._server is not None and not self._server.is_ready():
                self._is_possible = False
                self.close()
            return self._server

    def fork(
        self,
        module: str,
        arguments: Sequence[str],
        streams: Sequence[int],
        environment: Mapping[str, str],
        namespaces: Sequence[str],
    ) -> Forked | None:
        server = self.running()
        if server is None or _fixed(server.environment) != _fixed(environment):
            return None
        with self._lock:
            return server.fork(module, arguments, streams, environment, namespaces)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server = None


_servers = _Servers()
atexit.register(_servers.close)


def prepare_forking() -> bool:
    """Start the server if there is none, and wait until it can fork: seconds. Whether `fork` may give something."""
    return _servers.running() is not None


def fork(
    module: str,
    arguments: Sequence[str],
    streams: Sequence[int],
    environment: Mapping[str, str] | None = None,
    namespaces: Sequence[str] = (),
) -> Forked | None:
    """`python -m module arguments` with those three standard streams, here in our working directory, at once.

    In a process group of its own, and in the `namespaces`, files as in /proc/PID/ns, entered in that order; without an
    `environment` it has ours. None where that cannot be: on another system
    than Linux, in an environment that libraries had to be imported in, or when the server fails.
    """
    environment = environment_now() if environment is None else environment
    return _servers.fork(module, arguments, streams, environment, namespaces)


def fork_with_pipes(
    module: str,
    arguments: Sequence[str],
    stderr: int,
    environment: Mapping[str, str] | None = None,
    namespaces: Sequence[str] = (),
) -> tuple[Forked, int, int] | None:
    """As `fork`, with our ends of the pipes that are its stdin and stdout; the caller closes them."""
    its_stdin, stdin = os.pipe()
    stdout, its_stdout = os.pipe()
    forked = None
    try:
        forked = fork(module, arguments, (its_stdin, its_stdout, stderr), environment, namespaces)
    finally:
        unused = [] if forked is not None else [stdin, stdout]
        for descriptor in (its_stdin, its_stdout, *unused):
            os.close(descriptor)
    return None if forked is None else (forked, stdin, stdout)


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """What libraries read when they are imported by a command that was given `environment`."""
    whole = {**COMPUTE_DEFAULTS, **environment}
    return {name: value for name, value in whole.items() if name.startswith(IMPORT_TIME_VARIABLES)}


def _is_readable(connection: socket.socket, wait_ms: float) -> bool:
    """Whether there is something to read, or its end, at the latest then. Not select: descriptors may be large."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(wait_ms))
