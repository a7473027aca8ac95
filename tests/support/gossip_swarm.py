"""Peers that gossip over a MemorySwarm, with a clock, keys and secrets that a seed decides."""

from __future__ import annotations

from random import Random

import trio

from shardp2p.identity.keys import Identity
from shardp2p.swarm.gossip_service import GossipService
from shardp2p.swarm.publisher import Coverage
from shardp2p.swarm.shared_values import Validator
from shardp2p.vocabulary import PeerId, SwarmId
from shardp2p.wire.messages import PeerAddress
from tests.support.memory_network import MemorySwarm

UNIX_S = 1_700_000_000.0
STEP_S = 0.1


def identity_of(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


OWNER = identity_of(2**32)
SWARM = SwarmId(OWNER.peer_id)


def address_of(peer: PeerId) -> str:
    return f"/ip4/192.0.2.1/tcp/4001/p2p/{peer}"


class GossipSwarm:
    """Starts, kills and stops peers; peer 0 is what the others are told of."""

    def __init__(self, nursery: trio.Nursery, *, validators: dict[int, Validator] | None = None) -> None:
        self.memory = MemorySwarm(nursery)
        self.services: dict[int, GossipService] = {}
        self._nursery = nursery
        self._validators = validators
        self._starts = 0

    def peer(self, number: int) -> PeerId:
        return identity_of(number).peer_id

    async def start(self, number: int, *, unix_s: float = UNIX_S, bootstrap: int = 0) -> GossipService:
        """A peer that has just started, with no memory of an earlier run."""
        identity = identity_of(number)
        self._starts += 1
        rng = Random(f"{number}/{self._starts}")
        entrance = self.peer(bootstrap)
        network = self.memory.network(identity.peer_id)
        start = trio.current_time()
        service = GossipService(
            network,
            identity,
            SWARM,
            bootstrap=() if number == bootstrap else (PeerAddress(entrance, (address_of(entrance),)),),
            validators=self._validators,
            rng=rng,
            entropy=rng.randbytes,
            unix_clock=lambda: unix_s + trio.current_time() - start,
        )
        service.publish(Coverage(state="joining", addresses=(address_of(identity.peer_id),)))
        self.services[number] = service
        await self._nursery.start(self._live, network.life(), service)
        return service

    def kill(self, number: int) -> None:
        """End a peer without a word."""
        self.memory.kill(self.peer(number))
        self.services.pop(number)

    async def leave(self, number: int) -> None:
        """Stop a peer as its user does."""
        await self.services[number].leave()
        self.kill(number)

    def sees(self, number: int) -> set[PeerId]:
        """Who is live in the view of that peer, itself included."""
        return {record.peer_id for record in self.services[number].live()}

    def agree(self) -> bool:
        """Whether every peer sees exactly the peers that run."""
        everybody = {self.peer(number) for number in self.services}
        return all(self.sees(number) == everybody for number in self.services)

    async def wait_agreement(self, within_s: float) -> float:
        """The seconds until all views are right. Fails after `within_s`."""
        start = trio.current_time()
        for _ in range(round(within_s / STEP_S)):
            if self.agree():
                break
            await trio.sleep(STEP_S)
        waited = trio.current_time() - start
        wrong = {n: len(self.sees(n)) for n in self.services if len(self.sees(n)) != len(self.services)}
        assert self.agree(), f"after {waited:.1f} s of {len(self.services)} peers some see: {wrong}"
        return waited

    @staticmethod
    async def _live(scope: trio.CancelScope, service: GossipService, *, task_status: trio.TaskStatus[None]) -> None:
        # `run` is shielded while it says farewell; a killed peer has no time for that.
        with scope:
            await service.run(task_status=task_status)
