"""Peers of the same swarm on the same network, by multicast DNS: no address has to be known.

zeroconf runs in threads of its own; what it finds crosses into trio through one bounded channel. The announcement does
not name the swarm: it carries a salted hash, which only who knows the swarm can compare. Source: RFC 6762 and 6763;
docs/protocols/discovery.md.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog
import trio
import zeroconf

from shardp2p.errors import ConfigError
from shardp2p.host.address_book import MAX_ADDRESSES, Provider
from shardp2p.host.addresses import TcpAddress, parse_address, parse_peer_id
from shardp2p.host.host import Host
from shardp2p.vocabulary import PeerId, SwarmId

SERVICE: Final = "_shardp2p._tcp.local."
SALT_BYTES: Final = 16
TAG_BYTES: Final = 16
MAX_WAITING: Final = 64
"""Found peers that nobody has taken yet; further ones are dropped, and found again when they announce themselves."""
RESOLVE_MS: Final = 1000
CLOSE_S: Final = 2.0
"""How long leaving waits for the goodbye to be sent."""

log = structlog.get_logger()


def announcement(swarm: SwarmId, peer: PeerId, salt: bytes) -> dict[str, str]:
    """What a peer tells everybody on the network, as the properties of a TXT record."""
    return {"v": "1", "salt": salt.hex(), "swarm": _tag(swarm, salt).hex(), "peer": peer}


def announced_peer(properties: Mapping[bytes, bytes | None], swarm: SwarmId) -> PeerId | None:
    """The peer that announced itself, when it is of `swarm`; None for all else that a network may contain."""
    try:
        values = {key: (properties.get(key.encode()) or b"").decode("ascii") for key in ("v", "salt", "swarm", "peer")}
        salt, tag = bytes.fromhex(values["salt"]), bytes.fromhex(values["swarm"])
        peer = parse_peer_id(values["peer"])
    except (ValueError, ConfigError):
        return None
    is_ours = values["v"] == "1" and len(salt) == SALT_BYTES and hmac.compare_digest(tag, _tag(swarm, salt))
    return peer if is_ours else None


def _tag(swarm: SwarmId, salt: bytes) -> bytes:
    return hashlib.sha256(b"shardp2p mdns 1\0" + salt + swarm.encode()).digest()[:TAG_BYTES]


@asynccontextmanager
async def open_mdns(
    host: Host, swarm: SwarmId, interfaces: Sequence[str] | None = None
) -> AsyncIterator[trio.MemoryReceiveChannel[Provider] | None]:
    """Announce `host` (where it listens) and find others of `swarm`: a channel of the peers found, or None.

    None when this machine or its network has no multicast; that is no error. `interfaces` are the IP addresses of
    those to use, by default all. A peer may come more than once. Leaving says goodbye and ends every thread.
    """
    waiting, found = trio.open_memory_channel[Provider](MAX_WAITING)
    listener = _Listener(swarm, host.peer_id, waiting, trio.lowlevel.current_trio_token())
    try:
        mdns = await trio.to_thread.run_sync(_start, listener, _service_of(host, swarm), interfaces)
    except (OSError, zeroconf.Error) as error:
        log.info("mdns_unavailable", reason=str(error) or type(error).__name__)
        yield None
        return
    try:
        with waiting, found:
            yield found
    finally:
        with trio.move_on_after(CLOSE_S, shield=True):
            await trio.to_thread.run_sync(_stop, mdns, abandon_on_cancel=True)


class _Listener(zeroconf.ServiceListener):
    """Runs in a thread of zeroconf's."""

    def __init__(
        self,
        swarm: SwarmId,
        ours: PeerId,
        waiting: trio.MemorySendChannel[Provider],
        token: trio.lowlevel.TrioToken,
    ) -> None:
        self._swarm = swarm
        self._ours = ours
        self._waiting = waiting
        self._token = token

    def add_service(self, zc: zeroconf.Zeroconf, type_: str, name: str) -> None:
        """A service appeared."""
        try:
            info = zc.get_service_info(type_, name, timeout=RESOLVE_MS)
        except zeroconf.Error as error:
            log.debug("mdns_unresolved", reason=str(error))
            return
        peer = None if info is None else announced_peer(info.properties, self._swarm)
        if info is None or peer is None or peer == self._ours:
            return
        provider = Provider(peer, _addresses_of(info))
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._offer, provider)

    def update_service(self, zc: zeroconf.Zeroconf, type_: str, name: str) -> None:
        """A service changed, as its addresses."""
        self.add_service(zc, type_, name)

    def remove_service(self, zc: zeroconf.Zeroconf, type_: str, name: str) -> None:
        """A service said goodbye: who is gone is noticed elsewhere."""

    def _offer(self, provider: Provider) -> None:
        """Runs in trio's thread."""
        with suppress(trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            self._waiting.send_nowait(provider)


def _service_of(host: Host, swarm: SwarmId) -> zeroconf.ServiceInfo | None:
    """The announcement of where we listen, as far as others may know it; None for a host that only dials."""
    told = host.addresses()
    at_sockets = map(parse_address, (text for text in host.listen_addresses() if text in told))
    listening = [at for at in at_sockets if isinstance(at, TcpAddress)]
    if not listening:
        return None
    port = listening[0].port
    # The name is random, so that it links nothing; the id stands in the TXT record.
    name = secrets.token_hex(8)
    return zeroconf.ServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        port=port,
        properties=announcement(swarm, host.peer_id, secrets.token_bytes(SALT_BYTES)),
        server=f"{name}.local.",
        parsed_addresses=[address.host for address in listening if address.port == port][:MAX_ADDRESSES],
    )


def _start(
    listener: _Listener, service: zeroconf.ServiceInfo | None, interfaces: Sequence[str] | None
) -> zeroconf.Zeroconf:
    choice = zeroconf.InterfaceChoice.All if interfaces is None else list(interfaces)
    mdns = zeroconf.Zeroconf(interfaces=choice)
    try:
        if service is not None:
            mdns.register_service(service)
        mdns.add_service_listener(SERVICE, listener)
    except BaseException:
        mdns.close()
        raise
    return mdns


def _stop(mdns: zeroconf.Zeroconf) -> None:
    with suppress(OSError, zeroconf.Error):
        mdns.unregister_all_services()
    mdns.close()


def _addresses_of(info: zeroconf.ServiceInfo) -> tuple[str, ...]:
    """Where the service can be dialled, loopback last."""
    parsed = [ipaddress.ip_address(text.partition("%")[0]) for text in info.parsed_addresses()]
    usable = [ip for ip in parsed if not (ip.is_unspecified or ip.is_multicast)]
    ordered = sorted(usable, key=lambda ip: ip.is_loopback)
    return tuple(f"/ip{ip.version}/{ip}/tcp/{info.port}" for ip in ordered[:MAX_ADDRESSES])
