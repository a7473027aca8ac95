"""A peer in a namespace, for tests of punching: takes commands as lines of JSON and answers each with one.

It listens on port 4001, relays for others when told so, and says from where it sees whoever asks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping as Map

import structlog
import trio

from shardp2p.config import RelayLimits
from shardp2p.errors import PeerUnavailableError
from shardp2p.host.circuit.candidates import Candidate
from shardp2p.host.circuit.service import HostCircuits, open_circuits
from shardp2p.host.host import Host, open_host
from shardp2p.host.punch.mapping import Mapping
from shardp2p.host.punch.observing import Observing
from shardp2p.host.punch.puncher import Puncher
from shardp2p.host.stream import HostStream
from shardp2p.identity.keys import Identity
from shardp2p.vocabulary import PeerId
from shardp2p.wire.protocols import SWARM
from tests.process.host_peer import ECHO, echo
from tests.support.seen import say_seen

Fields = Map[str, str]


class PunchPeer:
    def __init__(self, host: Host, circuits: HostCircuits) -> None:
        self._host = host
        self._circuits = circuits
        self._mapping = Mapping()
        self._puncher = Puncher(host, self._mapping)
        self._observing = Observing(host, self._mapping)

    async def observe(self, fields: Fields) -> object:
        """Dial the peer at `address` from the port that we listen on, and ask it."""
        peer = PeerId(fields["address"].rpartition("/")[2])
        if not self._host.is_connected(peer):
            await self._host.connect(peer, [fields["address"]], from_listen_port=True)
        await self._observing.refresh()
        now = trio.current_time()
        return {"kind": self._mapping.kind(now), "seen": [list(at) for at in self._mapping.current(now)]}

    async def reserve(self, fields: Fields) -> object:
        """Keep a place at the relay at `address`."""
        peer = PeerId(fields["address"].rpartition("/")[2])
        self._circuits.set_candidates([Candidate(peer, (fields["address"],))])
        self._circuits.want(True)
        while not self._circuits.held():
            await self._circuits.wait_changed()
        return self._circuits.addresses()

    async def dial(self, fields: Fields) -> object:
        """Dial a peer over a relay, as its circuit address says."""
        peer = PeerId(fields["address"].rpartition("/")[2])
        await self._host.connect(peer, [fields["address"]])
        return await self.paths({"peer": peer})

    async def punch(self, fields: Fields) -> object:
        peer = PeerId(fields["peer"])
        began_at = trio.current_time()
        result = await self._puncher.punch(peer)
        took_s = trio.current_time() - began_at
        return {"path": result.path and result.path.kind, "reason": result.reason, "took_s": took_s}

    async def paths(self, fields: Fields) -> object:
        return [path.kind for path in self._host.paths(PeerId(fields["peer"]))]

    async def echo(self, fields: Fields) -> object:
        """A round trip over the best connection there is; no path where that was lost meanwhile."""
        began_at = trio.current_time()
        try:
            stream = await self._host.open_stream(PeerId(fields["peer"]), ECHO)
            assert isinstance(stream, HostStream)
            began_at = trio.current_time()
            await stream.send_all(b"x")
            assert await stream.receive_some(1) == b"x"
            took_s = trio.current_time() - began_at
            await stream.close()
        except PeerUnavailableError as error:
            return {"path": None, "took_s": trio.current_time() - began_at, "reason": error.message}
        return {"path": stream.connection.path.kind, "took_s": took_s}

    async def drop(self, fields: Fields) -> object:
        """Close the straight connections to a peer."""
        for connection in self._host.connections(PeerId(fields["peer"])):
            if connection.path.is_direct:
                await connection.close()
        return await self.paths(fields)


async def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    is_relay = "relay" in sys.argv
    async with (
        open_host(Identity.generate(), ["/ip4/0.0.0.0/tcp/4001"]) as host,
        open_circuits(host, limits=RelayLimits() if is_relay else None) as circuits,
    ):
        host.serve(SWARM, say_seen)
        host.serve(ECHO, echo)
        peer = PunchPeer(host, circuits)
        print(json.dumps(host.peer_id), flush=True)
        commands = trio.wrap_file(sys.stdin)
        while line := await commands.readline():
            command = json.loads(line)
            answer = await getattr(peer, command["do"])(command)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    trio.run(main)
