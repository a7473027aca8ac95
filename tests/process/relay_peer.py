"""A relay in a process of its own: prints its id and addresses, and relays until its stdin ends."""

from __future__ import annotations

import sys

import trio

from shardp2p.config import RelayLimits
from shardp2p.host.circuit.service import open_circuits
from shardp2p.host.host import open_host
from shardp2p.identity.keys import Identity


async def main() -> None:
    async with (
        open_host(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"]) as host,
        open_circuits(host, limits=RelayLimits()),
    ):
        print(host.peer_id, *host.addresses(), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


if __name__ == "__main__":
    trio.run(main)
