"""A client finds a ring among who is live, and another one where that fails before the first token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shardp2p.coordinator.remote import SILENCE_S
from shardp2p.errors import ConfigError, OverloadedError, PeerUnavailableError
from shardp2p.member import Member
from shardp2p.scheduler.attempts import MAX_TRIES
from shardp2p.scheduler.topology import Topology
from shardp2p.swarm.strikes import Strikes
from shardp2p.swarm_client import COMING_S, SETTLE_S, SwarmClient, Terms
from shardp2p.vocabulary import LayerRange, PeerId, SwarmId
from shardp2p.weights.manifest import Manifest
from shardp2p.wire.codec import encode
from shardp2p.wire.driving import Finished
from shardp2p.wire.protocols import GENERATE
from shardp2p.wire.records import CoverageRecord, HeldLayers, NodeState
from shardp2p.wire.stream import Stream
from tests.support.fake_block import fake_reference
from tests.support.sim_nodes import CACHE_ROWS, DIGEST, MODEL, SimNodes, prompt, read_all, request

LAYERS = 6
MANIFEST = cast(
    Manifest,
    SimpleNamespace(digest=DIGEST, layers=LAYERS, size_bytes=6_000, hidden_size=16, context_tokens=1_000),
)
ANSWER = fake_reference(prompt(), 24)


class Sight:
    """What a member knows of its swarm, as a test has it; the part of `Member` that a client uses."""

    def __init__(self, sim: SimNodes, name: str = "client") -> None:
        self.peer_id = PeerId(name)
        self.name = "lab"
        self.node = sim.node(name)
        self.gossip = self
        self.strikes = Strikes()
        self.admission = self
        self.refusal: ConfigError | None = None
        self.changes = 0
        self.is_met: set[PeerId] = set()
        self._records: dict[str, CoverageRecord] = {}
        self._changed = trio.Event()

    def show(self, name: str, layers: str, state: NodeState = "serving", **changes: Any) -> None:
        """From now on a peer says this of itself; the later in the alphabet, the slower it is."""
        speed = 0.001 * (1 + "abcdefgh".index(name[0])) if state == "serving" else 0.0
        fields: dict[str, Any] = {
            "model": MODEL, "model_digest": DIGEST, "model_layers": LAYERS, "layers": LayerRange.parse(layers),
            "state": state, "dtype": "float32", "context_tokens": 1_000, "layer_bytes": 1_000,
            "cache_rows": CACHE_ROWS, "free_cache_rows": CACHE_ROWS, "decode_layer_s": speed,
            "prefill_layer_s": speed,
        }  # fmt: skip
        held = HeldLayers(**(fields | changes))
        self._records[name] = CoverageRecord(
            SwarmId("swarm"), PeerId(name), self.changes + 1, 0.0, 10.0, state, held=(held,)
        )
        self._change()

    def lose(self, name: str) -> None:
        del self._records[name]
        self._change()

    def live(self) -> tuple[CoverageRecord, ...]:
        return tuple(self._records[name] for name in sorted(self._records))

    def met(self) -> frozenset[PeerId]:
        return frozenset(self.is_met)

    async def wait_sight(self) -> None:
        while not self._records:
            await self.wait_change(self.changes)

    async def wait_change(self, seen: int) -> int:
        while self.changes == seen:
            await self._changed.wait()
        return self.changes

    async def check(self, lost: PeerId, addresses: Any) -> None:
        if self.refusal is not None:
            raise self.refusal

    def topology(self, machines: Any) -> Topology:
        return Topology.from_round_trips(machines, [])

    def _change(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed = trio.Event()


def swarm_of(nursery: trio.Nursery, *peers: tuple[str, str]) -> tuple[SimNodes, Sight]:
    """Peers that serve these layers and say so."""
    sim = SimNodes(nursery)
    sight = Sight(sim)
    for name, layers in peers:
        sim.hold(name, layers)
        sight.show(name, layers)
    return sim, sight


def client_of(sight: Sight, said: list[str] | None = None) -> SwarmClient:
    return SwarmClient(cast(Member, sight), MODEL, MANIFEST, say=said.append if said is not None else lambda what: None)


async def ask(client: SwarmClient, terms: Terms | None = None) -> tuple[tuple[int, ...], list[str]]:
    """The answer, and the peers of the ring that gave it."""
    async with client.generate(request(), terms) as answer:
        tokens = await read_all(cast(Any, answer))
    assert answer.result.finish is not None
    return tokens, [stage.peer_id for stage in answer.plan.stages]


async def test_one_claim_that_nobody_keeps_is_followed_by_peers_that_somebody_has_met(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        _, sight = swarm_of(nursery, ("g", "0:3"), ("h", "3:6"))
        sight.is_met = {PeerId("g"), PeerId("h")}
        for number in range(2 * MAX_TRIES):
            sight.show(f"a{number}", "0:6")
        assert await ask(client_of(sight)) == (ANSWER, ["g", "h"])


@pytest.mark.parametrize("terms", [Terms(), Terms(driver="local"), Terms(draft="lookup")])
async def test_the_fastest_ring_answers(terms: Terms, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim, sight = swarm_of(nursery, ("a", "0:3"), ("b", "3:6"), ("c", "0:3"), ("d", "3:6"))
        assert await ask(client_of(sight), terms) == (ANSWER, ["a", "b"])
        await sim.assert_settled()


@pytest.mark.parametrize("driver", ["first", "local"])
@pytest.mark.parametrize("liar", ["0:3", "3:6", "0:6"])
async def test_who_claims_layers_and_serves_none_is_routed_around(
    liar: str, driver: Any, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        sim, sight = swarm_of(nursery, ("b", "0:3"), ("c", "3:6"))
        sim.node("a")
        sight.show("a", liar)
        client = client_of(sight)
        assert await ask(client, Terms(driver=driver)) == (ANSWER, ["b", "c"])
        is_seen = driver == "local" or liar.startswith("0:")
        assert (sight.strikes.score(PeerId("a"), trio.current_time()) > 0) == is_seen
        started = trio.current_time()
        assert await ask(client, Terms(driver=driver)) == (ANSWER, ["b", "c"])
        assert trio.current_time() - started < 5.0
        await sim.assert_settled()


async def test_peers_that_died_are_passed_over_until_a_ring_answers(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim, sight = swarm_of(nursery, ("a", "0:3"), ("b", "3:6"), ("c", "0:3"), ("d", "3:6"))
        for name in "ab":
            sim.swarm.kill(name)
        said: list[str] = []
        assert await ask(client_of(sight, said)) == (ANSWER, ["c", "d"])
        assert said.count("waiting for the first token") == 3


async def test_a_peer_that_failed_is_asked_again_where_nobody_else_is_left(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim, sight = swarm_of(nursery, ("b", "0:6"))
        sim.node("a")
        sight.show("a", "0:6")
        client = client_of(sight)
        assert await ask(client) == (ANSWER, ["b"])
        sim.hold("a", "0:6")
        sight.lose("b")
        assert await ask(client) == (ANSWER, ["a"])


async def test_no_room_anywhere_is_said_at_once(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim, sight = swarm_of(nursery, ("b", "0:6"))
        sim.hold("c", "0:6", cache_rows=10)
        sight.show("b", "0:6", free_cache_rows=10)
        sight.show("c", "0:6")  # has said that it has room, and has none any more
        with pytest.raises(OverloadedError, match="free"):
            await ask(client_of(sight))
        assert trio.current_time() < 1.0
        sight.show("b", "0:6")
        assert await ask(client_of(sight)) == (ANSWER, ["b"])


async def test_what_the_model_cannot_take_is_refused_before_any_room_is_looked_for(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        _, sight = swarm_of(nursery, ("a", "0:6"))
        with pytest.raises(ConfigError, match="takes 1000 in all: shorten the prompt or lower --max-tokens"):
            async with client_of(sight).generate(request(max_tokens=99_999)):
                pass
        nursery.cancel_scope.cancel()


async def test_layers_on_their_way_are_waited_for(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim, sight = swarm_of(nursery, ("a", "0:3"))
        sight.show("b", "3:6", "loading")
        said: list[str] = []

        async def load() -> None:
            await trio.sleep(COMING_S - 1)
            sim.hold("b", "3:6")
            sight.show("b", "3:6")

        nursery.start_soon(load)
        assert await ask(client_of(sight, said)) == (ANSWER, ["a", "b"])
        assert "layers 3:6 are loading on b, waiting" in said
        assert said[-1] == "waiting for the first token"


@pytest.mark.parametrize(("state", "waited_s"), [("loading", COMING_S), (None, SETTLE_S)])
async def test_missing_layers_are_named_after_a_while(
    state: NodeState | None, waited_s: float, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        _, sight = swarm_of(nursery, ("a", "0:3"))
        if state is not None:
            sight.show("b", "3:6", state)
        with pytest.raises(PeerUnavailableError, match="layers 3:6 of fake are missing"):
            await ask(client_of(sight))
        assert trio.current_time() == pytest.approx(waited_s)


async def test_a_ring_that_breaks_after_tokens_came_is_one_clear_error(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim, sight = swarm_of(nursery, ("a", "0:3"), ("b", "3:6"), ("c", "3:6"))
        tokens: list[int] = []
        client = client_of(sight)

        async def break_it() -> None:
            async with client.generate(request()) as answer:
                async for batch in answer:
                    tokens.extend(batch)
                    sim.swarm.kill("b")

        with pytest.raises(PeerUnavailableError, match=r"stage 2 of 2 \(layers 3:6, peer b\)"):
            await break_it()
        assert tuple(tokens) == ANSWER[: len(tokens)]
        assert tokens
        said: list[str] = []
        client.say = said.append
        assert await ask(client) == (ANSWER, ["a", "c"])
        assert said.count("waiting for the first token") == 1


@pytest.mark.parametrize("driver", ["first", "local"])
@pytest.mark.parametrize("has_begun", [True, False])
async def test_whom_the_swarm_shuts_out_is_told_so(driver: Any, has_begun: bool, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim, sight = swarm_of(nursery, ("a", "0:6"), ("b", "0:6"))
        client = client_of(sight)

        def shut_out() -> None:
            sight.refusal = ConfigError("admits this peer no more (revoked)")
            sim.swarm.kill("a")

        async def answer() -> None:
            if not has_begun:
                shut_out()
            async with client.generate(request(), Terms(driver=driver)) as answer:
                async for _ in answer:
                    shut_out()

        with pytest.raises(ConfigError, match="revoked"):
            await answer()
        assert sight.strikes.score(PeerId("a"), trio.current_time()) == 0


async def test_only_the_peers_that_the_user_trusts_are_used(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        _, sight = swarm_of(nursery, ("a", "0:6"), ("b", "0:6"), ("c", "0:6"))
        client = client_of(sight)
        assert (await ask(client, Terms(blocked=frozenset({PeerId("a")}))))[1] == ["b"]
        assert (await ask(client, Terms(allowed=frozenset({PeerId("c")}))))[1] == ["c"]


@pytest.mark.parametrize("lie", [{"model_layers": 7}, {"context_tokens": 5}])
async def test_what_the_manifest_contradicts_is_not_believed(lie: dict[str, Any], autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        _, sight = swarm_of(nursery, ("a", "0:6"), ("b", "0:6"))
        sight.show("a", "0:6", **lie)
        assert (await ask(client_of(sight)))[1] == ["b"]


async def test_own_first_layers_begin_the_ring_which_is_driven_here(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim, sight = swarm_of(nursery, ("a", "0:3"), ("b", "3:6"))
        sim.hold("client", "0:1")
        client = client_of(sight)
        assert await client.find_dtype() == "float32"
        route = await client.find_route(request(), Terms())
        assert route.driver == "client"
        tokens, ring = await ask(client)
        assert (tokens, ring) == (ANSWER, ["client", "a", "b"])


async def test_own_layers_are_of_the_type_of_most(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        _, sight = swarm_of(nursery)

        async def appear() -> None:
            await trio.sleep(1.0)
            sight.show("a", "0:2")
            sight.show("b", "0:6", dtype="bfloat16", model_digest="ee" * 32)

        nursery.start_soon(appear)
        client = client_of(sight)
        assert await client.find_dtype() == "float32"
        sight.show("b", "0:6", dtype="bfloat16")
        assert await client.find_dtype() == "bfloat16"


@pytest.mark.parametrize("answer", [encode(GENERATE, Finished("length", 0, 0, 0.0, 0.0)), b""])
async def test_a_driver_that_does_not_answer_is_replaced(answer: bytes, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim, sight = swarm_of(nursery, ("b", "0:6"))

        async def say_nothing(stream: Stream) -> None:
            await stream.send_all(answer)
            await trio.sleep(50.0)

        sim.network("a").serve(GENERATE, say_nothing)
        sight.show("a", "0:6")
        client = client_of(sight)
        assert await ask(client) == (ANSWER, ["b"])
        assert sight.strikes.score(PeerId("a"), trio.current_time()) > 0
        assert trio.current_time() < SILENCE_S + 5.0
