"""TCP over loopback with a delay in each direction, in a process of its own: `python -m shardp2p.lab.emulation.delays`.

It reads one line, a JSON list of [port to lead to, seconds there, seconds back], says the ports at which it listens in
the same order, and ends with its standard input. It has no loss and no rates, and TCP does not notice the long way.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from shardp2p.lab.emulation.waiting import Lateness, wait_s

PIECE_BYTES: Final = 1 << 16
PIECES: Final = 1024
"""On their way in one direction of a connection: 64 MiB at most."""


def _serve(listener: socket.socket, port: int, there_s: float, back_s: float) -> None:
    while True:
        accepted, _ = listener.accept()
        dialled = socket.create_connection(("127.0.0.1", port))
        for end in (accepted, dialled):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink, delay_s in ((accepted, dialled, there_s), (dialled, accepted, back_s)):
            pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(PIECES)
            _start(_take, source, pieces, delay_s)
            _start(_give, sink, pieces)


def _take(source: socket.socket, pieces: queue.Queue[tuple[float, bytes]], delay_s: float) -> None:
    data = b"all"
    while data:
        try:
            data = source.recv(PIECE_BYTES)
        except OSError:
            data = b""
        pieces.put((time.monotonic() + delay_s, data))


def _give(sink: socket.socket, pieces: queue.Queue[tuple[float, bytes]]) -> None:
    lateness = Lateness()
    while True:
        due, data = pieces.get()
        if (left_s := due - time.monotonic()) > 0:
            wait_s(left_s - lateness.seconds)
            lateness.note(time.monotonic() - due)
        with suppress(OSError):  # whoever went away needs nothing more
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)


def _start(target: object, *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]


def _main() -> None:
    ports = []
    for port, there_s, back_s in json.loads(sys.stdin.readline()):
        listener = socket.create_server(("127.0.0.1", 0))
        ports.append(listener.getsockname()[1])
        _start(_serve, listener, port, there_s, back_s)
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # threads that wait for anything end with the process


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _main()
