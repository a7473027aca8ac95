"""A swarm whose peers and clients are on the hosts of a network: the commands that users run there, as processes.

The model is one that this machine has. What clients get is compared with what the whole model answers by itself.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from shardp2p.config import default_paths, prepare_compute
from shardp2p.errors import PeerUnavailableError, ShardError
from shardp2p.lab.network.description import Description
from shardp2p.lab.network.lab import Network, open_network
from shardp2p.lab.swarm_children import JoinedPeer, PeerOptions, SwarmChildren, empty_swarm
from shardp2p.swarm.sealed_records import payload_of
from shardp2p.wire.records import CoverageRecord, decode_record

MODEL: Final = "smollm2"
LAYERS: Final = 30
PORT: Final = 4001
FOUNDER_MEMORY: Final = "8MiB"
"""Too little for a layer: such a peer is there to be met, and to relay."""
PEER_MEMORY: Final = "600MiB"
LOOK_S: Final = 0.1
BACK_S: Final = 20.0
"""For a path to come back to what it was: a hole that was given up is punched again in about 3 s."""


@dataclass(frozen=True, slots=True)
class Question:
    """What clients ask, and what the whole model answers, greedily, in up to `tokens` tokens."""

    prompt: str
    tokens: int
    answer: str


@dataclass(frozen=True, slots=True)
class Told:
    """What a client got: all text, and when each piece came, in trio's time. `problem` says why it is not all."""

    text: str
    pieces_at: tuple[float, ...]
    asked_at: float
    ended_at: float
    problem: str = ""

    @property
    def longest_gap_s(self) -> float:
        """The longest wait for a piece after the first; 0 where there is none."""
        return max(self.gaps_s(), default=0.0)

    def gaps_s(self) -> Iterator[float]:
        """How long each piece after the first was waited for."""
        return (after - before for before, after in zip(self.pieces_at, self.pieces_at[1:], strict=False))


class HostedSwarm:
    """Made by `open_hosted`."""

    def __init__(self, network: Network, swarm: SwarmChildren) -> None:
        self.network = network
        self.swarm = swarm
        self.peers: dict[str, JoinedPeer] = {}
        """By the names of their hosts."""
        self._directories: dict[str, Path] = {}

    async def found(self, host: str, *, port: int = PORT) -> JoinedPeer:
        """Start a public peer that holds nothing; all others come by a token that names it."""
        node = self.network.hosts[host]
        listen, address = f"/ip4/0.0.0.0/tcp/{port}", f"/ip4/{node.address}/tcp/{port}"
        peer = await self.swarm.found(FOUNDER_MEMORY, listen=listen, address=address, namespaces=node.namespaces)
        self.peers[host] = peer
        return peer

    async def join(self, host: str, *arguments: str, memory: str = PEER_MEMORY, port: int = PORT) -> JoinedPeer:
        """Start a peer with those further arguments of `up`; it is not waited for."""
        namespaces = self.network.hosts[host].namespaces
        listen = f"/ip4/0.0.0.0/tcp/{port}"
        peer = await self.swarm.add(memory, *arguments, listen=listen, namespaces=namespaces)
        self.peers[host] = peer
        return peer

    async def join_halves(self, first: str, second: str) -> None:
        """Start two peers with half of the model each, so that every token passes between them."""
        await self.join(first, "--layers", f"0:{LAYERS // 2}")
        await self.join(second, "--layers", f"{LAYERS // 2}:{LAYERS}")

    async def ask(self, host: str, question: Question, on_piece: Callable[[int], None] = lambda count: None) -> Told:
        """Ask once, as a client on that host; `on_piece` hears how many pieces of the answer have come."""
        asked_at, pieces_at, text, problem = trio.current_time(), [], bytearray(), ""
        command = ["generate", MODEL, question.prompt, "--max-tokens", str(question.tokens)]
        command += ["--join", str(self.swarm.token_file), "--data-dir", str(self._data_dir(host))]
        child = await self.network.hosts[host].start_peer(command, name=f"client on {host}")
        try:
            while piece := await child.read_some():
                text += piece
                pieces_at.append(trio.current_time())
                on_piece(len(pieces_at))
        except ShardError as error:
            problem = error.message
        finally:
            with trio.CancelScope(shield=True):  # bounded by children.STOP_S
                await child.stop()
        said = text.decode(errors="replace").rstrip("\n")
        if not problem and said != question.answer.rstrip("\n"):
            problem = f"it was answered wrongly: {said!r}"
        return Told(said, tuple(pieces_at), asked_at, trio.current_time(), problem)

    async def ask_until_answered(self, host: str, question: Question) -> Told:
        """Ask again and again until the answer is there and right."""
        while True:
            told = await self.ask(host, question)
            if not told.problem:
                return told
            await trio.sleep(LOOK_S)

    async def edge(self, host: str, other: str) -> Mapping[str, Any]:
        """The connection that new streams take from the peer of one host to that of another; empty for none."""
        with suppress(PeerUnavailableError):
            edges: list[Mapping[str, Any]] = (await self.peers[host].status())["paths"]["edges"]
            for edge in edges:
                if edge["peer"] == self.peers[other].peer_id:
                    return edge
        return {}

    async def addresses(self, host: str) -> list[str]:
        """Every address in every record that the peer of a host has of others and itself."""
        return [address for record in await self._records(host) for address in record.addresses]

    async def covered(self, host: str) -> int:
        """How many layers are served, by the records that the peer of a host has."""
        held = [one for record in await self._records(host) for one in record.held if one.state == "serving"]
        return len({layer for one in held for layer in range(one.layers.start, one.layers.stop)})

    async def _records(self, host: str) -> list[CoverageRecord]:
        texts: list[str] = (await self.peers[host].records())["records"]
        return [decode_record(payload_of(base64.b64decode(text))) for text in texts]

    async def path(self, host: str, other: str) -> str:
        """How one peer reaches the other: direct, punched, relayed, or none."""
        return str((await self.edge(host, other)).get("path", "none"))

    async def wait_path(self, host: str, other: str, wanted: Collection[str]) -> float:
        """When one peer reaches the other in one of the ways that are wanted, in trio's time."""
        while True:
            if await self.path(host, other) in wanted:
                return trio.current_time()
            await trio.sleep(LOOK_S)

    async def path_within(self, host: str, other: str, wanted: str, within_s: float = BACK_S) -> str:
        """`wanted` if one peer reaches the other so within that time, else how it does then.

        At any single moment a path may be doubted, or be replaced for seconds because the line swallowed two packets.
        """
        with trio.move_on_after(within_s):
            await self.wait_path(host, other, {wanted})
            return wanted
        return await self.path(host, other)

    def _data_dir(self, host: str) -> Path:
        """Where clients on a host keep what they know: beside its peer, where there is one."""
        if host not in self._directories:
            peer = self.peers.get(host)
            known = self.swarm.new_data_dir(f"client-{host}") if peer is None else peer.paths.data_dir
            self._directories[host] = known
        return self._directories[host]


@asynccontextmanager
async def open_hosted(description: Description, *, seed: int = 0) -> AsyncIterator[HostedSwarm]:
    """A network, and a swarm of nobody yet on it; all ends with the context. Raises: ConfigError."""
    options = PeerOptions(default_paths().models_dir, MODEL)
    async with open_network(description, seed=seed) as network, empty_swarm(options) as swarm:
        yield HostedSwarm(network, swarm)


async def prepare_questions(*asked: tuple[str, int]) -> list[Question]:
    """Prompts and numbers of tokens, with the answers of the whole model. Raises: ConfigError without a model."""
    return await trio.to_thread.run_sync(_answer, asked)


def _answer(asked: tuple[tuple[str, int], ...]) -> list[Question]:
    prepare_compute()
    from shardp2p.runtime.reference import Reference
    from shardp2p.runtime.tokenizer import TextStream, Tokenizer
    from shardp2p.vocabulary import ModelId
    from shardp2p.weights.store import ModelStore

    directory = ModelStore(default_paths().models_dir).resolve(ModelId(MODEL)).directory
    tokenizer, whole = Tokenizer(directory), Reference(directory)
    questions = []
    for prompt, tokens in asked:
        encoded = tokenizer.encode_chat([{"role": "user", "content": prompt}])
        text = TextStream(tokenizer)
        text.feed(whole.generate(encoded, tokens, tokenizer.stop_tokens).tokens)
        text.finish()
        questions.append(Question(prompt, tokens, text.text))
    return questions
