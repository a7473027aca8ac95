"""The owner's side of the process that is the Internet (wan.py): start it, give it orders, let it end."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import IO, Any, Final

import trio

from shardp2p.errors import ConfigError, LocalProtocolError
from shardp2p.lab.network.description import Description, Host
from shardp2p.lab.network.leftovers import end_marked, end_orphans, new_mark
from shardp2p.lab.network.writing import description_to_json

ANSWER_S: Final = 30.0
"""For an order, on a machine that does much else; building the largest network takes a few seconds."""
ENDING_S: Final = 5.0

_MAX_ANSWER_BYTES: Final = 1 << 16
"""Of the first answer: the descriptors of at most MAX_NODES namespaces."""


class Holder:
    """A running Internet. Orders are carried out one after the other."""

    def __init__(self, process: trio.Process, control: socket.socket, log: IO[bytes], mark: str) -> None:
        self.pid = process.pid
        self.mark = mark
        self.namespaces: Mapping[str, int] = {}
        self.has_user_namespace = False
        self._process = process
        self._control = control
        self._log = log
        self._is_asking = trio.Lock()

    async def wait_built(self) -> None:
        """Wait until the network is there. Raises: ConfigError, why it cannot be built here."""
        answer, _ = await self._ask(None)
        if "error" in answer:
            raise ConfigError(answer["error"])
        self.namespaces = answer["namespaces"]
        self.has_user_namespace = answer["has_user_namespace"]

    async def order(self, name: str, *arguments: object) -> Any:
        """Have the Internet do something; gives what it answers."""
        answer, _ = await self._ask({"do": name, "with": arguments})
        return answer["result"]

    async def open_socket(self, host: str, kind: int) -> socket.socket:
        """An IPv4 socket in the namespace of a host."""
        _, descriptors = await self._ask({"do": "socket", "with": [host, kind]})
        return socket.socket(fileno=descriptors[0])

    async def _ask(self, order: Mapping[str, object] | None) -> tuple[dict[str, Any], list[int]]:
        # An answer that nobody waited for would be taken for that to the next order: hence the shield.
        async with self._is_asking:
            with trio.CancelScope(shield=True), trio.move_on_after(ANSWER_S) as scope:
                try:
                    if order is not None:
                        self._control.send(json.dumps(order).encode())
                    await trio.lowlevel.wait_readable(self._control)
                    said, descriptors, _, _ = socket.recv_fds(self._control, _MAX_ANSWER_BYTES, 1)
                except ConnectionError:
                    said, descriptors = b"", []
                if said:
                    return json.loads(said), descriptors
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        reason = "does not answer" if scope.cancelled_caught else f"has ended: {lines[-1] if lines else 'killed'}"
        raise LocalProtocolError(f"the lab's Internet, process {self.pid}, {reason}")

    async def end(self) -> None:
        """End it, and whatever runs in its namespaces. Not to be cancelled."""
        self._control.close()
        with trio.move_on_after(ENDING_S):
            await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
            end_marked(self.mark)


async def why_impossible() -> str | None:
    """Why this machine can have no network of the lab; None if it can."""
    try:
        async with open_holder(Description({"a": Host("a")}), seed=0):
            return None
    except ConfigError as error:
        return error.message


@asynccontextmanager
async def open_holder(description: Description, seed: int) -> AsyncIterator[Holder]:
    """A process that is this network. Raises: ConfigError, why there can be none here."""
    if sys.platform != "linux":
        raise ConfigError("the lab needs Linux, whose network namespaces it is made of")
    await trio.to_thread.run_sync(end_orphans)
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.setblocking(False)
    mark = new_mark()
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as text:
        text.write(description_to_json(description).encode())
        text.seek(0)
        with theirs, trio.CancelScope(shield=True):  # a moment; a process that nobody knows of would stay
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", "shardp2p.lab.network.wan", str(theirs.fileno()), str(seed), mark],
                stdin=text,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        holder = Holder(process, control, log, mark)
        try:
            await holder.wait_built()
            yield holder
        finally:
            with trio.CancelScope(shield=True):  # bounded by ENDING_S
                await holder.end()
