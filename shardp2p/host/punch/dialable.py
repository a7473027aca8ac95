"""Which addresses are offered to who is to dial us, and which of those that a peer offers are dialled. Pure.

A peer must not make us knock wherever it likes, and what cannot work from elsewhere must not leave this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from shardp2p.host.addresses import Endpoint
from shardp2p.host.ip_scopes import Scope, scope_of

MAX_HOSTS: Final = 4
"""Different ones of one peer: a public address of each family, one more for a line that just changed, and its LAN's."""


def dialable(
    offered: Sequence[Endpoint], seen: Collection[Endpoint], bound: Collection[Endpoint]
) -> tuple[Endpoint, ...]:
    """Those of `offered` that can be the peer, where others see us at `seen` and we listen at `bound`.

    Public addresses always; private ones only of who is seen where we are, thus behind the same router, or where we
    are seen at a private one ourselves; loopback only where we are seen there. Never ourselves.
    """
    ours = {host for host, _ in seen}
    scopes = _scopes(seen)
    if any(host in ours for host, _ in offered):
        scopes.add("private")
    chosen = [at for at in _within(offered, scopes) if at not in seen and at not in bound]
    hosts = list(dict.fromkeys(host for host, _ in chosen))[:MAX_HOSTS]
    return tuple(at for at in chosen if at[0] in hosts)


def offerable(announced: Sequence[Endpoint], seen: Collection[Endpoint]) -> tuple[Endpoint, ...]:
    """Those of our announced addresses that can work from where others see us."""
    return tuple(_within(announced, _scopes(seen)))


def _scopes(seen: Collection[Endpoint]) -> set[Scope]:
    """From where an address can be meant for us: anywhere, and wherever we are seen ourselves."""
    return {"public", *(scope_of(ipaddress.ip_address(host)) for host, _ in seen)} - {"none"}


def _within(addresses: Iterable[Endpoint], scopes: Collection[Scope]) -> Iterable[Endpoint]:
    for host, port in dict.fromkeys(addresses):
        if port > 0 and scope_of(ipaddress.ip_address(host)) in scopes:
            yield host, port
