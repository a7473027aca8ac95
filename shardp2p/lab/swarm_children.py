"""A private swarm on this machine: `shardp2p up --join` processes, as many users would start them, each with its own
data directory and memory, all by one token. They can be killed, told to leave, started again and added to.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from shardp2p.config import Paths, default_paths
from shardp2p.errors import LocalProtocolError, PeerUnavailableError, ShardError, first_of
from shardp2p.gateway.local import ask_local
from shardp2p.identity.join import write_join
from shardp2p.identity.keys import load_or_create
from shardp2p.identity.owned import OwnedSwarm, OwnedSwarms
from shardp2p.lab.children import Child, Children, open_children
from shardp2p.vocabulary import DType, PeerId, SwarmId

TOKEN_LIFETIME_S: Final = 86_400.0
LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
LOOK_S: Final = 0.1
"""How often a peer is asked for what is waited for."""
PORTS: Final = range(20_000, 32_000)
"""Below those from which the kernel takes one for whoever dials."""


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """How every peer of a swarm is started. `model` None: whichever of `models_dir` the swarm needs."""

    models_dir: Path
    model: str | None = None
    dtype: DType = "float32"
    threads: int = 1
    cache_rows: int = 2048
    environment: Mapping[str, str] | None = None


class JoinedPeer:
    """One peer: a data directory and the process that runs in it, if one does. Made by `SwarmChildren.add`."""

    def __init__(
        self,
        index: int,
        memory: str,
        command: Sequence[str],
        paths: Paths,
        children: Children,
        environment: Mapping[str, str] | None,
        namespaces: Sequence[str] = (),
    ) -> None:
        self.memory = memory
        self.paths = paths
        self.peer_id: PeerId = load_or_create(paths.identity_file).peer_id
        self.started_at = 0.0
        """When its process was started last, in trio's time."""
        self.ready: dict[str, Any] | None = None
        """What it said when it was ready; None before."""
        self._name = f"peer {index} ({memory})"
        self._command = tuple(command)
        self._children = children
        self._environment = environment
        self._namespaces = tuple(namespaces)
        self._child: Child | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._child is not None and self._child.is_running

    @property
    def pid(self) -> int:
        """The id of its process. Raises: LocalProtocolError when none was started."""
        return self._process.pid

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it can be dialled, as it said when it was ready."""
        return tuple(self.ready["addresses"]) if self.ready is not None else ()

    @property
    def log(self) -> str:
        """What it has written to stderr."""
        return self._process.log_text()

    async def start(self) -> None:
        """Start its process; again, with the same key and memory, once the last one has ended."""
        if self.is_running:
            raise LocalProtocolError(f"{self._name} runs already")
        self.ready = None
        self.started_at = trio.current_time()
        self._child = await self._children.start_peer(self._name, self._command, self._environment, self._namespaces)

    start_again = start

    async def wait_ready(self) -> dict[str, Any]:
        """What it says once it serves for the first time. Raises: what it died of."""
        if self.ready is None:
            line = await self._process.read_line()
            try:
                said = json.loads(line)
                if said["peer_id"] != self.peer_id:
                    raise LocalProtocolError(f"{self._name} is {said['peer_id']}, not {self.peer_id}")
            except (ValueError, KeyError, TypeError) as error:
                raise LocalProtocolError(f"{self._name} did not say what it is, but {line[:80]!r}") from error
            self.ready = said
        return self.ready

    async def status(self) -> dict[str, Any]:
        """What `shardp2p status` shows of it now. Raises: PeerUnavailableError while it does not answer."""
        status: dict[str, Any] = await self._ask("status")
        return status

    async def records(self) -> Any:
        """What it knows of the swarm now, as cli/swarm_views.py has it. Raises: as `status`."""
        return await self._ask("records")

    async def wait_status(self, state: str) -> dict[str, Any]:
        """Its status, once it is in that state. Raises: PeerUnavailableError when its process has ended."""
        while True:
            if not self.is_running:
                raise PeerUnavailableError(f"{self._name} has ended: {self.log[-500:]}", self.peer_id)
            try:
                status = await self.status()
            except PeerUnavailableError:
                status = {}
            if status.get("state") == state:
                return status
            await trio.sleep(LOOK_S)

    async def kill(self) -> None:
        """End it without a word, as a power cut does; returns when it is gone."""
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    def interrupt(self) -> None:
        """Ask it to finish what it serves and leave, as the first Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    async def wait_end(self) -> int:
        """Its exit code, once it has ended."""
        return await self._process.wait()

    async def leave(self) -> int:
        """Ask it to leave, and wait until it has; its exit code."""
        self.interrupt()
        return await self.wait_end()

    async def _ask(self, what: str) -> Any:
        return await trio.to_thread.run_sync(ask_local, self.paths.run_dir, self.peer_id, what)

    @property
    def _process(self) -> Child:
        if self._child is None:
            raise LocalProtocolError(f"{self._name} was not started")
        return self._child


class SwarmChildren:
    """A swarm and its peers' processes. Made by `joined_swarm`."""

    def __init__(self, owned: OwnedSwarm, options: PeerOptions, children: Children) -> None:
        self.owned = owned
        """The swarm as its owner has it: for more invites and for revoking."""
        self.peers: list[JoinedPeer] = []
        self.token = ""
        """A bearer invite that names the first peer."""
        self.token_file = children.directory / "token"
        self._options = options
        self._children = children

    @property
    def swarm(self) -> SwarmId:
        """The id of the swarm."""
        return self.owned.swarm

    @property
    def running(self) -> list[JoinedPeer]:
        """The peers whose processes run."""
        return [peer for peer in self.peers if peer.is_running]

    async def add(
        self, memory: str, *arguments: str, listen: str = LOOPBACK, namespaces: Sequence[str] = ()
    ) -> JoinedPeer:
        """Start one more peer with that `memory` and those further arguments of `up`; it is not waited for.

        In the `namespaces`, files as in /proc/PID/ns, it is on another machine as far as the network goes.
        """
        peer = self._make(memory, listen, arguments, namespaces)
        await peer.start()
        return peer

    async def found(
        self, memory: str, *arguments: str, listen: str, address: str, namespaces: Sequence[str]
    ) -> JoinedPeer:
        """Start the first peer alone; others dial it at the multiaddr `address`, and the token says so."""
        peer = self._make(memory, listen, arguments, namespaces)
        self._write_token(f"{address}/p2p/{peer.peer_id}")
        await peer.start()
        return peer

    def new_data_dir(self, name: str) -> Path:
        """A data directory that has the models and is in no swarm, as a client on another machine has it."""
        directory = self._children.directory / name
        directory.mkdir()
        (directory / "models").symlink_to(self._options.models_dir, target_is_directory=True)
        return directory

    async def wait_ready(self) -> None:
        """Wait until every running peer has served. Raises: what the first one died of."""
        await _all_at_once([peer.wait_ready for peer in self.running])

    async def start(self, memory: Sequence[str]) -> None:
        """The first peers, all at once, by a token that names the first of them."""
        port = _free_port()
        for number, size in enumerate(memory):
            self._make(size, LOOPBACK if number else f"/ip4/127.0.0.1/tcp/{port}", ())
        self._write_token(f"/ip4/127.0.0.1/tcp/{port}/p2p/{self.peers[0].peer_id}")
        await _all_at_once([peer.start for peer in self.peers])

    def _write_token(self, first: str) -> None:
        self.token = write_join(self.owned.invite(time.time(), TOKEN_LIFETIME_S, peers=(first,)))
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(self.token)

    def _make(self, memory: str, listen: str, arguments: Sequence[str], namespaces: Sequence[str] = ()) -> JoinedPeer:
        index = len(self.peers)
        paths = default_paths(self.new_data_dir(f"peer-{index}"))
        options = self._options
        command = ["up", "--join", str(self.token_file), "--memory", memory]
        command += ["--listen", listen, "--dtype", options.dtype, "--threads", str(options.threads)]
        command += ["--cache-rows", str(options.cache_rows), "--data-dir", str(paths.data_dir)]
        command += ["--json", "--exit-on-stdin-close"]
        if options.model is not None:
            command += ["--model", options.model]
        command += arguments
        peer = JoinedPeer(index, memory, command, paths, self._children, options.environment, namespaces)
        self.peers.append(peer)
        return peer


@asynccontextmanager
async def empty_swarm(options: PeerOptions) -> AsyncIterator[SwarmChildren]:
    """A private swarm of nobody yet: `found` starts its first peer. Whoever is started ends with the context."""
    async with open_children() as children:
        owner = default_paths(children.directory / "owner")
        owned = OwnedSwarms(owner.swarms_dir).create("lab", is_open=False)
        yield SwarmChildren(owned, options, children)


@asynccontextmanager
async def joined_swarm(
    memory: Sequence[str], options: PeerOptions, *, is_awaited: bool = True
) -> AsyncIterator[SwarmChildren]:
    """A private swarm of one peer for each of `memory`, as `600MiB`, all started at once by token.

    They end with the context. `is_awaited`: all of them serve before the context is entered.
    Raises: the error with which the first of them failed.
    """
    async with empty_swarm(options) as swarm:
        await swarm.start(memory)
        if is_awaited:
            await swarm.wait_ready()
        yield swarm


def _free_port() -> int:
    """A port of this machine that nobody listens on now: the token names it before anybody does."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise LocalProtocolError("no port of this machine is free")


async def _all_at_once(actions: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Raises: the first error of ours among those with which they failed."""
    try:
        async with trio.open_nursery() as nursery:
            for action in actions:
                nursery.start_soon(action)
    except BaseExceptionGroup as group:
        ours, others = group.split(ShardError)
        if others is not None or ours is None:
            raise
        raise first_of(ours) from None
