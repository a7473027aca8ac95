"""The multiaddrs that we dial and listen on: TCP over IP or a DNS name, or a relay's circuit.

Pure, but for the list of interfaces.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

import base58
import psutil
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from shardp2p.errors import ConfigError
from shardp2p.vocabulary import PeerId

_HOST_PROTOCOLS: Final = ("ip4", "ip6", "dns", "dns4", "dns6")
_EXAMPLE: Final = "write it like /ip4/192.0.2.7/tcp/4001"
_CIRCUIT_EXAMPLE: Final = "/ip4/192.0.2.7/tcp/4001/p2p/RELAY-ID/p2p-circuit/p2p/PEER-ID"
_WANTED: Final = {"ip4": "an IPv4 address", "ip6": "an IPv6 address", "tcp": "a port, 0 to 65535", "p2p": "a peer id"}
_SHOWN: Final = 80
"""As much of a wrong part as an error quotes."""


Endpoint = tuple[str, int]
"""A literal IP address, without a zone, and a port."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """`/<protocol>/<host>/tcp/<port>[/p2p/<peer>]`; `protocol` is ip4, ip6, dns, dns4 or dns6."""

    protocol: str
    host: str
    port: int
    peer: PeerId | None = None

    def __str__(self) -> str:
        suffix = f"/p2p/{self.peer}" if self.peer else ""
        return f"/{self.protocol}/{self.host}/tcp/{self.port}{suffix}"

    @property
    def is_ipv6(self) -> bool:
        """Whether the host is a literal IPv6 address."""
        return self.protocol == "ip6"


@dataclass(frozen=True, slots=True)
class CircuitAddress:
    """`<the relay's TCP address>/p2p/<relay>/p2p-circuit[/p2p/<peer>]`: a peer that a relay connects us to."""

    relay: TcpAddress
    peer: PeerId | None = None

    def __str__(self) -> str:
        suffix = f"/p2p/{self.peer}" if self.peer else ""
        return f"{self.relay}/p2p-circuit{suffix}"

    @property
    def relay_peer(self) -> PeerId:
        """Who relays."""
        assert self.relay.peer is not None
        return self.relay.peer


Address = TcpAddress | CircuitAddress


def parse_address(text: str) -> Address:
    """The address that a multiaddr names. Raises: ConfigError when it is malformed, or neither TCP nor a circuit."""
    relay, circuit, rest = text.partition("/p2p-circuit")
    if not circuit:
        return parse_tcp_address(text)
    address = parse_tcp_address(relay) if relay else None
    if address is None or address.peer is None:
        raise ConfigError(f"{text[:_SHOWN]!r} names no relay; write it like {_CIRCUIT_EXAMPLE}")
    if not rest:
        return CircuitAddress(address)
    if not rest.startswith("/p2p/"):
        raise ConfigError(f"{text[:_SHOWN]!r} has something other than a peer after /p2p-circuit; {_CIRCUIT_EXAMPLE}")
    return CircuitAddress(address, parse_peer_id(rest.removeprefix("/p2p/")))


def parse_tcp_address(text: str) -> TcpAddress:
    """The plain TCP address that a multiaddr names. Raises: ConfigError when it is malformed or something else."""
    try:
        parts = [(protocol.name, value) for protocol, value in Multiaddr(text).items()]
    except (MultiaddrError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{text[:_SHOWN]!r} is no multiaddr: {_wrong_part(text)}; {_EXAMPLE}") from error
    names = [name for name, _ in parts]
    values = [str(value) for _, value in parts]
    if names[:2] not in [[host, "tcp"] for host in _HOST_PROTOCOLS] or names[2:] not in ([], ["p2p"]):
        raise ConfigError(f"the address {text} is not plain TCP; {_EXAMPLE}")
    peer = parse_peer_id(values[2]) if len(values) == 3 else None
    return TcpAddress(names[0], values[0], int(values[1]), peer)


def _wrong_part(text: str) -> str:
    """What is the matter with a text that is no multiaddr, as far as it could be one of ours."""
    if not text.startswith("/"):
        return "it does not begin with /"
    words = text.removeprefix("/").removesuffix("/").split("/")
    for name, value in zip(words[::2], words[1::2], strict=False):
        try:
            Multiaddr(f"/{name}/{value}")
        except (MultiaddrError, ValueError, KeyError, TypeError):
            if name in _WANTED:
                return f"in /{name}/{value[:_SHOWN]}, {value[:_SHOWN]!r} is not {_WANTED[name]}"
            return f"its part /{name[:_SHOWN]}/{value[:_SHOWN]} is wrong"
    return f"nothing follows /{words[-1][:_SHOWN]}" if len(words) % 2 else "its parts do not belong together"


def parse_listen_address(text: str) -> TcpAddress:
    """An address to listen on: a literal IP without a peer id. Raises: ConfigError."""
    address = parse_tcp_address(text)
    if address.protocol not in ("ip4", "ip6") or address.peer is not None:
        raise ConfigError(f"cannot listen on {text}; give an IP address and a port, for example /ip4/0.0.0.0/tcp/4001")
    return address


def parse_peer_id(text: str) -> PeerId:
    """`text` as a peer id in its base58 form. Raises: ConfigError."""
    try:
        decoded = base58.b58decode(text)
    except ValueError:
        decoded = b""
    # A multihash: the identity (0x00) of an Ed25519 key or a SHA-256 digest (0x12), then its length.
    is_multihash = decoded[:2] in (b"\x00\x24", b"\x12\x20") and len(decoded) == 2 + decoded[1]
    if not is_multihash or base58.b58encode(decoded).decode("ascii") != text:
        raise ConfigError(f"{text!r} is no peer id; it looks like 12D3KooW…")
    return PeerId(text)


def dialable_addresses(host: str, port: int, peer: PeerId) -> tuple[str, ...]:
    """How others reach a socket bound to `host`: a wildcard stands for each address of this machine, loopback last."""
    bound = ipaddress.ip_address(host)
    protocol = f"ip{bound.version}"
    if not bound.is_unspecified:
        return (str(TcpAddress(protocol, host, port, peer)),)
    family = socket.AF_INET if bound.version == 4 else socket.AF_INET6
    texts = [
        address.address
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family == family
    ]
    # A link-local address is of no use to a peer that does not share the interface's name.
    found = {ip for ip in map(ipaddress.ip_address, texts) if not ip.is_link_local}
    ordered = sorted(found, key=lambda ip: (ip.is_loopback, int(ip)))
    return tuple(str(TcpAddress(protocol, str(ip), port, peer)) for ip in ordered)
