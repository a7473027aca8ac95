"""A real miniupnpd on a router whose kernel translates, as many home routers have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final, Protocol

import trio

from shardp2p.errors import ConfigError
from shardp2p.lab.children import Child
from shardp2p.lab.network.description import Unsolicited
from shardp2p.lab.network.kernel_router import miniupnpd_settings, nft_rules
from shardp2p.lab.network.namespaces import find_program

START_S: Final = 10.0
"""For miniupnpd, which takes milliseconds, on a machine that does much else."""

_READY: Final = "HTTP listening on port"
_POLL_S: Final = 0.02


class Inside(Protocol):
    """Where programs can be run: a node of the lab."""

    name: str

    async def run(self, command: Sequence[str], stdin: bytes = b"") -> str: ...
    async def start(
        self, command: Sequence[str], *, name: str | None = None, environment: Mapping[str, str] | None = None
    ) -> Child: ...


class UpnpGateway:
    """The rules and the miniupnpd of one router. Its files are in `directory`."""

    def __init__(self, router: Inside, lan: IPv4Network, unsolicited: Unsolicited, directory: Path) -> None:
        self._router = router
        self._rules = f"flush ruleset\n{nft_rules(unsolicited)}".encode()
        self._nft, self._miniupnpd = find_program("nft"), find_program("miniupnpd")
        self._directory = directory
        self._settings = miniupnpd_settings(lan)
        self._child: Child | None = None

    async def start(self) -> None:
        """Start it, or start it anew without what it had opened. Raises: ConfigError, why it does not run."""
        if self._child is not None:
            with trio.CancelScope(shield=True):  # bounded by what a child may take to end
                await self._child.stop()
        await self._router.run([self._nft, "-f", "-"], self._rules)
        settings = self._directory / f"{self._router.name}.miniupnpd.conf"
        settings.write_text(self._settings)
        command = [self._miniupnpd, "-d", "-f", str(settings), "-P", str(settings.with_suffix(".pid"))]
        self._child = await self._router.start(command, name=f"miniupnpd of {self._router.name}")
        with trio.move_on_after(START_S):
            while self._child.is_running:
                if _READY in self._child.log_text():
                    return
                await trio.sleep(_POLL_S)
        said = self._child.log_text().splitlines()
        raise ConfigError(f"miniupnpd of {self._router.name} does not start: {said[-1] if said else 'it says nothing'}")
