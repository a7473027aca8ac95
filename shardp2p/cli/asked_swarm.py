"""Asking a swarm: the client joins it without layers, and each question goes to the best ring that is live."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from shardp2p.cli.asking import Asker, Tokens, Wish
from shardp2p.cli.client_identity import ClientPlace
from shardp2p.cli.drafting import add_drafts
from shardp2p.cli.local_layers import hold_first, open_device
from shardp2p.cli.progress import Report, progress_bar
from shardp2p.cli.quick_imports import quick_imports
from shardp2p.config import Paths
from shardp2p.vocabulary import SwarmId
from shardp2p.weights.store import StoredModel

if TYPE_CHECKING:
    from shardp2p.coordinator.request import GenerationRequest
    from shardp2p.member import Member
    from shardp2p.scheduler.plan import Plan
    from shardp2p.swarm_client import SwarmClient, Terms


@asynccontextmanager
async def open_swarm_asker(
    wish: Wish, model: StoredModel, cache_rows: int, place: ClientPlace, paths: Paths
) -> AsyncIterator[Asker]:
    """A client of the swarm of `place`; it holds the first layers itself where that is wished."""
    import trio

    with quick_imports():
        import shardp2p.swarm_client  # noqa: F401
        from shardp2p.member import open_member

    near = await trio.to_thread.run_sync(_peers_of_this_machine, paths, place.joined.swarm)
    async with open_member(
        place.identity, place.joined, peers=(*wish.peers, *near), kept=place.kept, is_listener=True
    ) as member:
        try:
            async with _open_asker(member, wish, model, cache_rows) as asker:
                yield asker
        finally:
            _keep_met(member, place)


@asynccontextmanager
async def _open_asker(member: Member, wish: Wish, model: StoredModel, cache_rows: int) -> AsyncIterator[Asker]:
    from shardp2p.swarm_client import SwarmClient

    await add_drafts(member.node, wish.draft_model, model)
    client = SwarmClient(member, model.name, model.manifest)
    asker = Asker(_Swarm(client, wish), wish, model, member.name)
    if not wish.local_layers:
        yield asker
        return
    with open_device() as device:
        with progress_bar() as report:
            client.say = _sayer(report)
            dtype = await client.find_dtype()
        await hold_first(member.node, device, wish.local_layers, model, dtype, cache_rows)
        yield asker


def _keep_met(member: Member, place: ClientPlace) -> None:
    """Keep where peers are now, for the next command; where nobody was met, what was kept stays."""
    met = [record.addresses[0] for record in member.live() if record.addresses]
    if met:
        place.kept.keep_met(member.swarm, met)


class _Swarm:
    """Answers by the swarm's best ring."""

    def __init__(self, client: SwarmClient, wish: Wish) -> None:
        self._client = client
        self._wish = wish

    async def find_ring(self, request: GenerationRequest) -> Plan:
        """The ring that would answer now."""
        with progress_bar() as report:
            self._client.say = _sayer(report)
            return (await self._client.find_route(request, self._terms())).plan

    @asynccontextmanager
    async def generate(self, request: GenerationRequest, report: Report) -> AsyncIterator[tuple[Plan, Tokens]]:
        """Its answer, by another ring where one fails before the first token."""
        self._client.say = _sayer(report)
        async with self._client.generate(request, self._terms()) as answer:
            yield answer.plan, answer

    def _terms(self) -> Terms:
        from shardp2p.swarm_client import Terms

        wish = self._wish
        return Terms(
            driver="local" if wish.is_local else "first",
            draft=wish.draft,
            limits=wish.limits,
            allowed=wish.only or None,
            blocked=wish.blocked,
        )


def _sayer(report: Report) -> Any:
    return lambda what: report(what, 0, 0)


def _peers_of_this_machine(paths: Paths, swarm: SwarmId) -> tuple[str, ...]:
    """The addresses of this user's peers of the swarm that run here: nobody is nearer."""
    from shardp2p.gateway.local import ask_running

    told = ask_running(paths.run_dir).answers.values()
    return tuple(address for status in told if status.get("swarm") == swarm for address in status["addresses"])
