"""Asking a ring that the user made by hand: the peers that were named with --peer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shardp2p.cli.asking import Asker, Tokens, Wish
from shardp2p.cli.drafting import add_drafts
from shardp2p.cli.local_layers import hold_first, open_device
from shardp2p.cli.progress import Report
from shardp2p.weights.store import StoredModel

if TYPE_CHECKING:
    from shardp2p.coordinator.request import GenerationRequest
    from shardp2p.node import Node
    from shardp2p.scheduler.plan import Plan
    from shardp2p.scheduler.route import Member


@asynccontextmanager
async def open_ring_asker(wish: Wish, model: StoredModel, cache_rows: int) -> AsyncIterator[Asker]:
    """A peer that asks the ring of `wish.peers`; it holds the first layers itself where that is wished."""
    from shardp2p.identity.keys import Identity
    from shardp2p.node import open_node

    async with open_node(Identity.generate()) as node:
        await add_drafts(node, wish.draft_model, model)
        ring = _NamedRing(node, wish, model)
        if not wish.local_layers:
            yield Asker(ring, wish, model)
            return
        with open_device() as device:
            dtype = (await ring.find_members())[0].info.dtype
            await hold_first(node, device, wish.local_layers, model, dtype, cache_rows)
            yield Asker(ring, wish, model)


class _NamedRing:
    """The ring through the peers that were named, as it stands at each question."""

    def __init__(self, node: Node, wish: Wish, model: StoredModel) -> None:
        self._node = node
        self._wish = wish
        self._model = model

    async def find_members(self) -> tuple[Member, ...]:
        """The peers that were named, those with our model first.

        Raises: ConfigError if they run other weights than ours.
        """
        from shardp2p.scheduler.route import recognise

        model, manifest = self._model.name, self._model.manifest
        members = await self._node.members(self._wish.peers)
        known = recognise(model, manifest.digest, manifest.layers, members)
        return tuple(sorted(known, key=lambda member: member.info.model_digest != manifest.digest))

    async def find_ring(self, request: GenerationRequest) -> Plan:
        """The ring through them, beginning with us where we hold layers."""
        from shardp2p.scheduler.first_layers import keep_first
        from shardp2p.scheduler.route import Member, route

        members = await self.find_members()
        if self._node.held:
            members = keep_first(Member(self._node.describe(), ()), members)
        return route(self._model.name, members)

    @asynccontextmanager
    async def generate(self, request: GenerationRequest, report: Report) -> AsyncIterator[tuple[Plan, Tokens]]:
        """Its answer."""
        wish = self._wish
        report("asking the peers", 0, 0)
        plan = await self.find_ring(request)
        report("waiting for the first token", 0, 0)
        async with self._node.generate(
            plan, request, driver="local" if wish.is_local else "first", draft=wish.draft, limits=wish.limits
        ) as stream:
            yield plan, stream
