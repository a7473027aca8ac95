"""A host in a process of its own: echoes every stream and prints its address, until its stdin ends."""

from __future__ import annotations

import sys

import trio

from shardp2p.host.host import open_host
from shardp2p.identity.keys import Identity
from shardp2p.wire.stream import Stream

ECHO = "/test/echo/1"


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some(65536):
        await stream.send_all(data)


async def main() -> None:
    async with open_host(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"]) as host:
        host.serve(ECHO, echo)
        print(host.peer_id, *host.addresses(), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


if __name__ == "__main__":
    trio.run(main)
