"""`shardp2p up` in a swarm: join, let the swarm say which layers are needed, serve them until told to leave."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shardp2p.cli.drafting import add_drafts_of
from shardp2p.cli.hints import hinted
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.output import note, one_line, write, write_json
from shardp2p.cli.progress import progress_bar
from shardp2p.cli.quick_imports import quick_imports
from shardp2p.config import Paths, ReachSettings, RelayLimits, UpSettings
from shardp2p.errors import ConfigError, OverloadedError
from shardp2p.weights.store import ModelStore, StoredModel

if TYPE_CHECKING:
    import trio

    from shardp2p.identity.joined import JoinedSwarm, JoinedSwarms
    from shardp2p.identity.keys import Identity
    from shardp2p.identity.token import Grant
    from shardp2p.keeper import Keeper, Offer
    from shardp2p.member import Member
    from shardp2p.runtime.device import DeviceThread

SHOW_S: Final = 0.25
"""How often the line that says what is waited for is brought up to date."""


@dataclass(frozen=True, slots=True)
class InSwarm:
    """What a peer of a swarm is started with, checked before anything slow begins."""

    joined: JoinedSwarm
    kept: JoinedSwarms
    offer: Offer
    settings: UpSettings
    limits: RelayLimits
    paths: Paths
    is_once: bool
    as_json: bool

    @property
    def is_owner(self) -> bool:
        """Whether the swarm is this user's own."""
        from shardp2p.identity.owned import OwnedSwarms

        return any(owned.swarm == self.joined.swarm for owned in OwnedSwarms(self.paths.swarms_dir).list())


def find_swarm(
    join: str | None, identity: Identity, paths: Paths, *, serves: bool
) -> tuple[JoinedSwarm, JoinedSwarms] | None:
    """The swarm to be in: that of `join`, else the one that this identity joined before; None without any.

    Raises: ConfigError for a token that is no good, or that lets nobody serve who `serves`, and where several swarms
    were joined.
    """
    from shardp2p.cli.client_identity import join_clients, joined_before
    from shardp2p.cli.process_title import hide_argument
    from shardp2p.identity.joined import JoinedSwarms
    from shardp2p.identity.owned import OwnedSwarms
    from shardp2p.identity.token import Invite

    kept, now_s = JoinedSwarms(paths.swarms_dir), time.time()
    named = None if join is None else joined_before(join, paths)
    if join is not None and named is None:
        hide_argument(join)
        asked = OwnedSwarms(paths.swarms_dir).read_join(join, identity, now_s)
        if serves and isinstance(asked, Invite):
            _refuse_clients(asked.grant)
        joined = kept.join(asked, identity, now_s)
        join_clients(asked, join, paths, now_s)
        return joined, kept
    remembered = [joined for joined in kept.remembered(identity.peer_id, now_s) if named in (None, joined.swarm)]
    if len(remembered) > 1:
        names = ", ".join(sorted(swarm.name for swarm in remembered))
        raise ConfigError(f"this peer has joined several swarms ({names}); say which with --join NAME")
    if not remembered and named is not None:
        raise ConfigError(
            f"{join} was joined here by other peers, and not by this one: join it with its token, --join TOKEN|FILE"
        )
    if not remembered:
        return None
    if serves and (membership := remembered[0].membership) is not None:
        _refuse_clients(membership.own.grant)
    return remembered[0], kept


def _refuse_clients(grant: Grant) -> None:
    """Raises: ConfigError for a grant by which one may ask a swarm and not serve it."""
    if grant.role == "client":
        raise ConfigError(
            f"the invite to {grant.name} is for a client, who asks and serves no layers: ask with `shardp2p generate` "
            "or `chat` and the same --join; to serve, ask the swarm's owner for an invite made with --role member"
        )


def make_offer(settings: UpSettings, paths: Paths) -> Offer:
    """What this machine offers: the models in its store, or the one that was named, and memory.

    Raises: ConfigError when there is none, or the memory that was asked for is not there.
    """
    from shardp2p.keeper import Offer
    from shardp2p.runtime.budget import Budget
    from shardp2p.runtime.free_memory import offered_bytes

    models = _models(settings, paths)
    if settings.layers is not None and len(models) > 1:
        raise ConfigError("--layers needs a model; name it with --model")
    if settings.layers is not None and settings.layers.stop > (count := models[0].manifest.layers):
        raise ConfigError(
            f"--layers {settings.layers} goes beyond {models[0].name}, which has {count} layers: 0:{count} are all"
        )
    if settings.draft_model is not None and len(models) > 1:
        raise ConfigError("--draft-model needs a model to draft for; name it with --model")
    memory_bytes = offered_bytes(settings.device, settings.memory_bytes)
    return Offer(
        models=tuple(_offered(model, settings) for model in models),
        budget=Budget(memory_bytes, settings.cache_rows),
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        region=settings.region,
        pinned=settings.layers,
        fast_layout=settings.fast_layout,
    )


def _models(settings: UpSettings, paths: Paths) -> tuple[StoredModel, ...]:
    store = ModelStore(paths.models_dir)
    with progress_bar() as report:
        if settings.model is not None:
            return (store.resolve(settings.model, report),)
    models = tuple(model for model in store.list() if isinstance(model, StoredModel))
    if not models:
        raise ConfigError(f"there is no model in {paths.models_dir}; import one: shardp2p model import smollm2")
    return models


def _offered(model: StoredModel, settings: UpSettings) -> Any:
    from shardp2p.seating import Offered
    from shardp2p.weights.footprint import footprint
    from shardp2p.weights.source import ties_embeddings

    return Offered(model, footprint(model.manifest, settings.dtype, ties_embeddings=ties_embeddings(model.directory)))


async def serve_in_swarm(identity: Identity, start: InSwarm, watch_stdin: Callable[[], Any] | None) -> None:
    """Be a peer of the swarm until told to leave."""
    import trio

    with quick_imports():
        from shardp2p.keeper import Keeper
        from shardp2p.member import open_member

    settings = start.settings
    reach = ReachSettings(settings.announce, settings.relay, start.limits)
    listen = settings.listen_addresses(in_swarm=True)
    member_of = open_member(identity, start.joined, listen, peers=settings.peers, kept=start.kept, reach=reach)
    async with member_of as member, trio.open_nursery() as nursery:
        await add_drafts_of(member.node, settings, start.offer.models[0].stored)
        keeper = Keeper(member, start.offer, is_owner=start.is_owner)
        with interrupts.ending(nursery.cancel_scope):
            await _serve(member, keeper, start, nursery, watch_stdin)
        nursery.cancel_scope.cancel()


async def _serve(
    member: Member, keeper: Keeper, start: InSwarm, nursery: trio.Nursery, watch_stdin: Callable[[], Any] | None
) -> None:
    """Answer this machine's commands and keep what the swarm needs, until told to leave."""
    from shardp2p.gateway.local import open_local

    async with (
        open_local(start.paths.run_dir, member.peer_id, local_answers(member, keeper)),
        _open_device(start.settings, nursery) as get_device,
    ):
        if watch_stdin is not None:
            nursery.start_soon(watch_stdin)
        nursery.start_soon(_watch_refusal, member, start.joined)
        nursery.start_soon(_watch_twin, member)
        nursery.start_soon(_watch_announced, member)
        if start.is_once and not (start.is_owner and not member.bootstrap):
            await member.wait_sight()
        interrupts.is_serving = True
        with interrupts.first_means(partial(_drain, keeper)):
            nursery.start_soon(announce, member, keeper, start)
            await keeper.run(get_device)


def local_answers(member: Member, keeper: Keeper | None) -> Mapping[str, Any]:
    """What this machine's other commands may ask."""
    from shardp2p.cli import swarm_views

    async def status(_: Mapping[str, Any]) -> Any:
        return keeper.status() if keeper is not None else {}

    async def records(_: Mapping[str, Any]) -> Any:
        return swarm_views.view_of(member)

    async def directory(asked: Mapping[str, Any]) -> Any:
        return await swarm_views.directory_view_of(member, swarm_views.digest_of(asked))

    return {"status": status, "records": records, "directory": directory}


@asynccontextmanager
async def _open_device(settings: UpSettings, nursery: Any) -> AsyncIterator[Callable[[], Any]]:
    """The device's thread, once the runtime is imported: that takes seconds, in which the peer joins."""
    import trio

    devices: list[DeviceThread] = []
    is_open = trio.Event()

    def import_runtime() -> None:
        with quick_imports():
            import shardp2p.runtime.bring_up
            import shardp2p.stage.worker  # noqa: F401

    async def start() -> None:
        await trio.to_thread.run_sync(import_runtime, abandon_on_cancel=True)
        from shardp2p.runtime.device import DeviceThread, check_device

        check_device(settings.device)
        devices.append(DeviceThread(threads=settings.threads or None))
        is_open.set()

    async def get_device() -> DeviceThread:
        await is_open.wait()
        return devices[0]

    nursery.start_soon(start)
    try:
        yield get_device
    finally:
        for device in devices:
            device.close()


async def _watch_refusal(member: Member, joined: JoinedSwarm) -> None:
    """End when the swarm does not admit us any more."""
    from shardp2p.identity.token import turned_away

    await member.admission.refused.wait()
    refusal = None if joined.membership is None else joined.membership.own_refusal(time.time())
    raise ConfigError(turned_away(member.name, refusal or "revoked"))


async def _watch_twin(member: Member) -> None:
    """End when another process was in the swarm with this peer's identity before; say so when it came later."""
    await member.gossip.twin_seen.wait()
    what = f"another process with this peer's identity, {member.peer_id}, is in the swarm {member.name}"
    if member.gossip.has_older_twin:
        raise ConfigError(
            f"{what}, and was there first, so this one ends; a key is for one machine: give this one its own with "
            "--identity FILE, or another --data-dir, and join again"
        )
    note(f"{what}; it came later and should have ended: a key is for one machine, give the other one its own")


async def _watch_announced(member: Member) -> None:
    """Say when what the user declares turns out not to work, and when it does."""
    reachable, seen = member.reachable, 0
    told: tuple[str, ...] = ()
    while True:
        account = reachable.account
        if account.withheld and account.withheld != told:
            note(f"{', '.join(account.withheld)}: {account.advice}")
        elif told and not account.withheld:
            note(f"{', '.join(told)}: others reach this peer there now, and are told")
        told = account.withheld
        seen = await reachable.wait_change(seen)


def _drain(keeper: Keeper) -> None:
    note("leaving: finishing the requests that run; press Ctrl-C again to stop at once")
    keeper.drain()


async def announce(member: Member, keeper: Keeper, start: InSwarm) -> None:
    """Say what is waited for until the peer serves; then what it is, and `ready`.

    What is in the way is a line of its own, as it stands there in full. Raises: OverloadedError when the peer is to
    start once, and no layer fits.
    """
    import trio

    told = ""
    with progress_bar() as report:
        while not keeper.is_ready.is_set():
            if start.is_once and keeper.has_no_place:
                raise OverloadedError(keeper.trouble)
            if keeper.trouble != told and (told := keeper.trouble):
                note(hinted(one_line(f"{keeper.state}: {_briefly(told)}")))
            report(f"{keeper.state}: {_briefly(keeper.waits_for)}", 0, 0)
            with trio.move_on_after(SHOW_S):
                await keeper.is_ready.wait()
    if start.as_json:
        write_json(keeper.status())
        return
    write("\n".join([*_lines(member, keeper, start), "ready"]) + "\n")


def _lines(member: Member, keeper: Keeper, start: InSwarm) -> list[str]:
    status = keeper.status()
    memory = status["memory"]
    lines = [
        f"peer     {member.peer_id}",
        f"swarm    {member.name} ({member.swarm}), {_live(status['live_peers'])}",
        f"reach    {_reach(status)}",
    ]
    lines += [
        f"layers   {held['layers'][0]}:{held['layers'][1]} of {held['model']}, {held['dtype']}, "
        f"{held['cache_rows']} cache rows"
        for held in status["held"]
    ]
    lines.append(f"memory   {_mib(memory['used_bytes'])} of {_mib(memory['offered_bytes'])} offered")
    lines += [f"address  {address}" for address in status["addresses"]]
    socket = f"{start.paths.run_dir / member.peer_id}.sock"
    lines.append(hinted(f"api      {socket}: shardp2p status; also peers, coverage and plan"))
    lines.append(f"join     {_join_line(member, start)}")
    return lines


def _reach(status: Mapping[str, Any]) -> str:
    """How others reach this peer, and what would help."""
    advice = status["reach"]["advice"] or "others dial the addresses below"
    return f"{status['reachability']}: {advice}"


def _join_line(member: Member, start: InSwarm) -> str:
    if start.joined.membership is None:
        from shardp2p.identity.join import OpenSwarm, write_join

        text = write_join(OpenSwarm(member.swarm, member.name, member.node.addresses()))
        return f"shardp2p up --join {text}"
    addresses = " ".join(f"--peer {address}" for address in member.node.addresses()[:2])
    invite = f"shardp2p swarm invite {member.name} {addresses}"
    return f"invite others: {hinted(invite)}" if start.is_owner else f"its owner invites others with: {invite}"


def _briefly(reason: str) -> str:
    """A reason with peer ids cut to what tells them apart: a line has little room."""
    return re.sub(r"12D3KooW\w+(\w{8})", r"…\1", reason)


def _live(count: int) -> str:
    return "nobody else is there yet" if count == 1 else f"{count} peers live"


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
