"""Every kind of router against every other: do two peers behind them find the way that there is, and answer over it?

Each cell is a swarm of its own: a public peer that holds nothing, and two that hold half of the demo model each, so
that every token passes between them. The processes, connections, routers' rules and the model are real; the routers
and the Internet between them are those of the lab.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import trio

from shardp2p.config import default_paths
from shardp2p.errors import ConfigError, PeerUnavailableError, ShardError
from shardp2p.lab.network.description import Description
from shardp2p.lab.network.lab import LabHost, Network, open_network
from shardp2p.lab.network.scenario import Outcome
from shardp2p.lab.swarm_children import JoinedPeer, PeerOptions, SwarmChildren, empty_swarm

MODEL: Final = "smollm2"
PROMPT: Final = "Name three rivers of Europe."
TOKENS: Final = 8
RELAY: Final = "relay"
PORT: Final = 4001
FOUNDER_MEMORY: Final = "8MiB"
"""Too little for a layer: it is there to be met, and to relay."""
PEER_MEMORY: Final = "600MiB"
CELL_S: Final = 90.0
"""A cell that has not answered by then has failed."""
SETTLED_S: Final = 12.0
"""A path that stays relayed for so long after the first answer, while holes are tried, is final."""
LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Cell:
    """One pair of routers, by the names of the hosts behind them. Times are from the start of both peers, in seconds;
    None where it did not come to that. `problem` says why.
    """

    a: str
    b: str
    path: str
    expected: str
    answer_s: float | None
    final_path_s: float | None
    exact: bool
    problem: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the way was found that there is, with the right answer."""
        return self.path == self.expected and self.exact


def expected_path(description: Description, a: str, b: str) -> str:
    """The best way between two hosts, by what their routers do."""
    if any(_is_open(description, name) for name in (a, b)):
        return "direct"
    kinds = [kind for name in (a, b) for kind in _kinds(description, name)]
    return "relayed" if "symmetric" in kinds else "punched"


def _kinds(description: Description, host: str) -> Iterator[str]:
    name = description.behind(host)
    while name is not None:
        yield description.routers[name].nat
        name = description.behind(name)


def _is_open(description: Description, host: str) -> bool:
    """Whether anybody can dial it: no router, those that let everybody in, or one that gives out ports."""
    behind = description.behind(host)
    return all(kind in ("open", "full-cone") for kind in _kinds(description, host)) or (
        behind is not None and description.routers[behind].has_upnp and description.behind(behind) is None
    )


def pairs(description: Description) -> tuple[tuple[str, str], ...]:
    """Each kind of home with each, itself included: hosts `KIND` and `KIND2`."""
    kinds = [name for name in description.hosts if f"{name}2" in description.hosts and name != RELAY]
    return tuple((a, f"{b}2") for at, a in enumerate(kinds) for b in kinds[at:])


async def run(description: Description) -> Outcome:
    """All cells, one after the other."""
    chosen = pairs(description)
    if not chosen or RELAY not in description.hosts:
        raise ConfigError(f"this network has no host {RELAY} or no pairs of hosts NAME and NAME2")
    cells = await run_cells(description, chosen)
    wrong = [cell for cell in cells if not cell.is_right]
    return Outcome(
        {"cells": [asdict(cell) for cell in cells], "conditions": _conditions(description)},
        list(_table(cells)),
        f"{len(wrong)} of {len(cells)} pairs did not find their way or answered wrongly" if wrong else None,
    )


def _conditions(description: Description) -> dict[str, Any]:
    """What the paths between homes and the relay are like, and what is asked over them."""
    link = description.link
    return {
        "rtt_ms": description.default_rtt_ms,
        "jitter_ms": link.jitter_ms,
        "loss": link.loss,
        "model": MODEL,
        "tokens": TOKENS,
    }


async def run_cells(description: Description, chosen: Sequence[tuple[str, str]]) -> list[Cell]:
    """The cells of these pairs of hosts."""
    models = default_paths().models_dir
    reference = await trio.to_thread.run_sync(_reference, models)
    cells = []
    async with open_network(description) as network:
        for a, b in chosen:
            cells.append(await _run_cell(network, a, b, models, reference))
    return cells


def _reference(models: Path) -> tuple[int, ...]:
    """The whole model's own answer, as token ids."""
    from shardp2p.runtime.reference import Reference
    from shardp2p.runtime.tokenizer import Tokenizer
    from shardp2p.vocabulary import ModelId
    from shardp2p.weights.store import ModelStore

    directory = ModelStore(models).resolve(ModelId(MODEL)).directory
    prompt = Tokenizer(directory).encode_chat([{"role": "user", "content": PROMPT}])
    return Reference(directory).generate(prompt, TOKENS).tokens


async def _run_cell(network: Network, a: str, b: str, models: Path, reference: tuple[int, ...]) -> Cell:
    run = _CellRun(network, a, b, reference)
    problem = f"no answer, or no path, within {CELL_S:.0f} s"
    with trio.move_on_after(CELL_S):
        try:
            async with empty_swarm(PeerOptions(models, MODEL)) as swarm:
                await run.run(swarm)
            problem = ""
        except ShardError as error:
            problem = error.message
    return Cell(
        a,
        b,
        run.path,
        expected_path(network.description, a, b),
        run.answer_s,
        run.final_path_s if not problem else None,
        bool(run.answers) and all(answer == reference for answer in run.answers),
        problem,
    )


class _CellRun:
    """One cell on its way."""

    def __init__(self, network: Network, a: str, b: str, reference: tuple[int, ...]) -> None:
        self._network = network
        self._a = network.hosts[a]
        self._b = network.hosts[b]
        self._expected = expected_path(network.description, a, b)
        self.path = "none"
        self.answer_s: float | None = None
        self.final_path_s: float | None = None
        self.answers: list[tuple[int, ...]] = []
        self._path_changed = trio.lowlevel.ParkingLot()

    async def run(self, swarm: SwarmChildren) -> None:
        """Raises: ShardError of whatever ended."""
        founder = self._network.hosts[RELAY]
        await swarm.found(
            FOUNDER_MEMORY,
            listen=f"/ip4/0.0.0.0/tcp/{PORT}",
            address=f"/ip4/{founder.address}/tcp/{PORT}",
            namespaces=founder.namespaces,
        )
        began_at = trio.current_time()
        first = await self._join(swarm, self._a, "0:15")
        second = await self._join(swarm, self._b, "15:30")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_path, first, second, began_at)
            await self._ask(swarm, founder, "asker-0")
            self.answer_s = round(trio.current_time() - began_at, 2)
            await self._wait_final_path()
            await self._ask(swarm, founder, "asker-1")
            nursery.cancel_scope.cancel()

    async def _wait_final_path(self) -> None:
        """Wait for the path that must be found; for a relayed one so long that any other would have been."""
        with trio.move_on_after(SETTLED_S if self._expected == "relayed" else CELL_S):
            while self.path != self._expected or self._expected == "relayed":
                await self._path_changed.park()

    async def _join(self, swarm: SwarmChildren, host: LabHost, layers: str) -> JoinedPeer:
        listen = f"/ip4/0.0.0.0/tcp/{PORT}"
        return await swarm.add(PEER_MEMORY, "--layers", layers, listen=listen, namespaces=host.namespaces)

    async def _watch_path(self, first: JoinedPeer, second: JoinedPeer, began_at: float) -> None:
        """Note how the two reach one another, and since when."""
        while True:
            with suppress(PeerUnavailableError):
                edges: list[dict[str, Any]] = (await first.status())["paths"]["edges"]
                path = next((edge["path"] for edge in edges if edge["peer"] == second.peer_id), "none")
                if path != self.path:
                    self.path, self.final_path_s = path, round(trio.current_time() - began_at, 2)
                    self._path_changed.unpark_all()
            await trio.sleep(LOOK_S)

    async def _ask(self, swarm: SwarmChildren, host: LabHost, name: str) -> None:
        """Ask as a client beside the founder, again until there is an answer."""
        data_dir = await trio.to_thread.run_sync(swarm.new_data_dir, name)
        command = ["generate", MODEL, PROMPT, "--max-tokens", str(TOKENS), "--join", str(swarm.token_file)]
        command += ["--data-dir", str(data_dir), "--json"]
        while True:
            child = await host.start_peer(command, name=name)
            try:
                answer = json.loads(await child.read_line())
            except PeerUnavailableError:
                await trio.sleep(LOOK_S)
            else:
                self.answers.append(tuple(answer["tokens"]))
                return


def _table(cells: Sequence[Cell]) -> Iterator[str]:
    width = max(len(name) for cell in cells for name in (cell.a, cell.b))
    yield f"{'a':{width}}  {'b':{width}}  path     expected  answer s  path s  exact"
    for cell in cells:
        answer_s, path_s = (
            f"{value:.1f}" if value is not None else "-" for value in (cell.answer_s, cell.final_path_s)
        )
        exact = "yes" if cell.exact else "NO"
        yield (
            f"{cell.a:{width}}  {cell.b:{width}}  {cell.path:7}  {cell.expected:8}  {answer_s:>8}  {path_s:>6}  {exact}"
            + (f"  {cell.problem}" if cell.problem else "")
        )
