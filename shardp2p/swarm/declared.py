"""Addresses that the user declares with `--announce`, and what others say of where they lead. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from shardp2p.errors import ConfigError
from shardp2p.host.addresses import CircuitAddress, Endpoint, TcpAddress, parse_address
from shardp2p.host.announcing import MAX_DECLARED
from shardp2p.host.ip_scopes import IpAddress, home_of, scope_of
from shardp2p.vocabulary import PeerId


@dataclass(frozen=True, slots=True)
class Declared:
    """One address, and the endpoints to which it leads: none while it is a name that nobody has looked up."""

    address: TcpAddress
    endpoints: frozenset[Endpoint]

    @property
    def is_name(self) -> bool:
        """Whether it has to be looked up, and may lead elsewhere later."""
        return self.address.protocol.startswith("dns")

    @property
    def text(self) -> str:
        """Its host and port, as one reads them."""
        return shown(self.address.host, self.address.port)

    def leading_to(self, hosts: Iterable[str]) -> Declared:
        """The same once its name was looked up."""
        return replace(self, endpoints=frozenset((host, self.address.port) for host in hosts))

    def has_failed(self, closed: Collection[Endpoint]) -> bool:
        """Whether others tried wherever it leads, and reached us nowhere; `closed` are the endpoints where they did."""
        return bool(self.endpoints) and self.endpoints.issubset(closed)

    def is_strange(self, seen_as: Collection[IpAddress]) -> bool:
        """Whether others see us on the internet, and under no address to which it leads: so nobody could try it."""
        ips = [ipaddress.ip_address(host) for host, _ in self.endpoints]
        versions, homes = {ip.version for ip in seen_as}, set(map(home_of, seen_as))
        return bool(ips) and all(
            scope_of(ip) == "public" and ip.version in versions and home_of(ip) not in homes for ip in ips
        )


def parse_declared(texts: Sequence[str], own: PeerId) -> tuple[Declared, ...]:
    """What the user of the peer `own` declares with `--announce`. Raises: ConfigError that says what is wrong."""
    if len(texts) > MAX_DECLARED:
        raise ConfigError(f"--announce is given {len(texts)} times; {MAX_DECLARED} addresses are enough")
    return tuple(dict.fromkeys(_declared(text, own) for text in texts))


def _declared(text: str, own: PeerId) -> Declared:
    address = parse_address(text)
    if isinstance(address, CircuitAddress):
        raise ConfigError(f"--announce {text} is a relay's; relays are found by themselves")
    if address.peer not in (None, own):
        raise ConfigError(f"--announce {text} is another peer's, this one is {own}; leave out what follows the port")
    if address.port == 0:
        raise ConfigError(f"--announce {text} has no port; name the one at which others reach this machine")
    is_name = address.protocol not in ("ip4", "ip6")
    if not is_name and scope_of(ipaddress.ip_address(address.host)) == "none":
        raise ConfigError(f"--announce {text} can be dialled from nowhere; name an address that others can reach")
    bare = replace(address, peer=None)
    return Declared(bare, frozenset() if is_name else frozenset({(bare.host, bare.port)}))


def shown(host: str, port: int) -> str:
    """An endpoint as one reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
