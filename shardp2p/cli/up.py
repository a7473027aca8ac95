"""`shardp2p up`: serve a range of a model's layers until told to end."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from shardp2p.cli import options
from shardp2p.cli.drafting import add_drafts_of
from shardp2p.cli.hints import hinted
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.output import write, write_json
from shardp2p.cli.progress import progress_bar
from shardp2p.cli.quick_imports import quick_imports
from shardp2p.cli.up_swarm import InSwarm, find_swarm, make_offer, serve_in_swarm
from shardp2p.config import Paths, RelayLimits, UpSettings, load_settings, prepare_compute, with_flags
from shardp2p.errors import ConfigError
from shardp2p.telemetry import configure_logging
from shardp2p.vocabulary import LayerRange, ModelId, parse_bytes, parse_region
from shardp2p.weights.store import ModelStore, StoredModel

if TYPE_CHECKING:
    from shardp2p.identity.keys import Identity
    from shardp2p.node import Node
    from shardp2p.runtime.block import Block
    from shardp2p.runtime.device import DeviceThread

STDIN_BYTES = 4096
"""What is read of stdin at once, only to notice its end."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What is to be served, checked before anything slow begins."""

    model: StoredModel
    layers: LayerRange
    settings: UpSettings
    ends_with_stdin: bool


@dataclass(frozen=True, slots=True)
class Loaded:
    """A block in memory, how much the process grew for it at the peak, and how long that took."""

    block: Block
    growth_bytes: int
    load_s: float


def up(
    model: options.Model = None,
    layers: options.Layers = None,
    listen: options.Listen = None,
    announce: options.Announce = None,
    relay: options.Relay = None,
    dtype: options.DTypeName = None,
    device: options.Device = None,
    threads: options.Threads = None,
    fast_layout: options.FastLayout = False,
    cache_rows: options.CacheRows = None,
    join: options.Join = None,
    peer: options.UpPeers = None,
    memory: options.Memory = None,
    region: options.Region = None,
    draft_model: options.DraftModel = None,
    no_memory: options.UpNoMemory = False,
    once: options.Once = False,
    identity: options.KeyFile = None,
    data_dir: options.DataDir = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
    exit_on_stdin_close: options.ExitOnStdinClose = False,
    log_level: options.LogLevel = None,
) -> None:
    """Serve layers of a model until Ctrl-C: those that the swarm needs, or a range that is named."""
    everything = load_settings(config, data_dir=data_dir)
    settings = with_flags(
        everything.up,
        model=ModelId(model) if model else None,
        layers=LayerRange.parse(layers) if layers else None,
        listen=listen,
        announce=announce,
        relay=relay,
        dtype=dtype,
        device=device,
        threads=threads,
        cache_rows=cache_rows,
        peers=peer,
        memory_bytes=parse_bytes(memory) if memory else None,
        region=parse_region(region) if region else None,
        identity=identity,
        draft_model=draft_model,
        remembers=False if no_memory else None,
        fast_layout=fast_layout or None,
    )
    configure_logging(log_level or everything.log_level)
    _start(settings, everything.relay, everything.paths, _Manner(join, once, as_json, exit_on_stdin_close))


@dataclass(frozen=True, slots=True)
class _Manner:
    """How `up` is to join, and what it is to do at its start and its end."""

    join: str | None
    is_once: bool
    as_json: bool
    ends_with_stdin: bool


def _start(settings: UpSettings, limits: RelayLimits, paths: Paths, manner: _Manner) -> None:
    """Be the peer that the settings describe, in a swarm where there is one to be in."""
    prepare_compute()
    from shardp2p.identity.keys import hold, load_or_create

    key_file = settings.identity or paths.identity_file
    if manner.join is None and not key_file.exists():
        _require_alone(settings)  # before a key is made that nobody needs
    with hold(key_file):
        key = load_or_create(key_file)
        if (found := find_swarm(manner.join, key, paths, serves=True)) is not None:
            offer = make_offer(settings, paths)
            start = InSwarm(*found, offer, settings, limits, paths, is_once=manner.is_once, as_json=manner.as_json)
            watch_stdin = _end_with_stdin if manner.ends_with_stdin else None
            interrupts.run(partial(serve_in_swarm, key, start, watch_stdin))
            return
        model_name = _require_alone(settings)
        with progress_bar() as report:
            stored = ModelStore(paths.models_dir).resolve(model_name, report)
        serving = Serving(stored, _choose_layers(settings, stored), settings, manner.ends_with_stdin)
        interrupts.run(partial(_serve, key, serving, _show_json if manner.as_json else _show))


def _require_alone(settings: UpSettings) -> ModelId:
    """The model to serve outside any swarm. Raises: ConfigError for what such a peer cannot do."""
    if settings.model is None and settings.layers is None:
        raise ConfigError(
            "this peer is in no swarm: join one with --join TOKEN|FILE, or make one with `shardp2p swarm create`; to "
            "serve without a swarm, say --model and --layers"
        )
    if settings.model is None:
        raise ConfigError("name a model with --model; `shardp2p model list` shows those on this machine")
    if settings.peers or settings.announce or settings.relay != "auto" or settings.memory_bytes is not None:
        raise ConfigError(
            "--peer, --announce, --relay and --memory are for a peer of a swarm; join one with --join TOKEN|FILE"
        )
    return settings.model


def _choose_layers(settings: UpSettings, model: StoredModel) -> LayerRange:
    """The layers that were asked for. Raises: ConfigError that tells how many the model has."""
    count, layers = model.manifest.layers, settings.layers
    if layers is None:
        half = max(1, count // 2)
        raise ConfigError(
            f"say which layers to serve with --layers A:B; {model.name} has {count}: 0:{count} serves all of them, "
            f"0:{half} leaves {half}:{count} to another peer"
        )
    if layers.stop > count:
        raise ConfigError(f"--layers {layers} goes beyond {model.name}, which has {count} layers: 0:{count} are all")
    return layers


async def _serve(identity: Identity, serving: Serving, show: Callable[[Serving, Node, Loaded], None]) -> None:
    import trio

    with quick_imports():
        from shardp2p.node import open_node

    async with (
        open_node(identity, serving.settings.listen_addresses(in_swarm=False)) as node,
        trio.open_nursery() as nursery,
    ):
        if serving.ends_with_stdin:
            nursery.start_soon(_end_with_stdin)
        await _import_runtime()
        from shardp2p.runtime.device import DeviceThread, check_device

        check_device(serving.settings.device)
        with DeviceThread(threads=serving.settings.threads or None) as device:
            loaded = await _load(device, serving)
            await add_drafts_of(node, serving.settings, serving.model)
            _hold(node, serving, device, loaded)
            interrupts.is_serving = True  # before anybody can read that we are ready
            show(serving, node, loaded)
            await trio.sleep_forever()


def _hold(node: Node, serving: Serving, device: DeviceThread, loaded: Loaded) -> None:
    from shardp2p.stage.holding import Holding

    digest, settings = serving.model.manifest.digest, serving.settings
    holding = Holding(digest, settings.dtype, settings.cache_rows)
    node.hold(serving.model.name, loaded.block, device, holding, loaded.growth_bytes)


async def _import_runtime() -> None:
    """Import torch and what is built on it: seconds, in a thread that holds up neither the network nor a signal."""
    import trio

    def run_imports() -> None:
        with quick_imports():
            import shardp2p.runtime.load
            import shardp2p.runtime.prepare
            import shardp2p.stage.worker  # noqa: F401

    with progress_bar() as report:
        report("starting the runtime", 0, 0)
        await trio.to_thread.run_sync(run_imports, abandon_on_cancel=True)


async def _load(device: DeviceThread, serving: Serving) -> Loaded:
    from shardp2p.runtime.load import load_block
    from shardp2p.runtime.memory import PeakGrowth
    from shardp2p.runtime.prepare import prepare

    started = perf_counter()
    await device.run(prepare, serving.model.directory, serving.settings.dtype, serving.settings.device)
    growth = PeakGrowth()
    with progress_bar() as report:

        def progress(done: int, total: int) -> None:
            interrupts.check()
            report(f"loading layers {serving.layers}", done, total)

        block = await device.run(
            partial(
                load_block,
                serving.model.directory,
                serving.layers,
                dtype=serving.settings.dtype,
                device=serving.settings.device,
                digests=serving.model.manifest.digests(),
                progress=progress,
                fast_layout=serving.settings.fast_layout,
            )
        )
        await device.run(block.warm_up)
    return Loaded(block, growth.growth_bytes(), perf_counter() - started)


async def _end_with_stdin() -> None:
    """End this process, as if that was asked for, once nobody can write to its stdin any more."""
    import trio

    descriptor = sys.stdin.fileno()
    while True:
        try:
            await trio.lowlevel.wait_readable(descriptor)
        except PermissionError:  # a regular file or /dev/null: never has to be waited for
            await trio.lowlevel.checkpoint()
        try:
            is_open = bool(os.read(descriptor, STDIN_BYTES))
        except OSError:  # such as a terminal that was closed
            is_open = False
        if not is_open:
            interrupts.end(0)
            return


def _show_json(serving: Serving, node: Node, loaded: Loaded) -> None:
    """The one object that a program which started us waits for."""
    info = node.describe()
    write_json(
        {
            "peer_id": info.peer_id,
            "pid": info.pid,
            "addresses": list(node.addresses()),
            "model": info.model,
            "model_digest": info.model_digest,
            "layers": [serving.layers.start, serving.layers.stop],
            "dtype": info.dtype,
            "device": info.device,
            "rss_bytes": info.rss_bytes,
            "layer_bytes": info.layer_bytes,
            "load_growth_bytes": info.load_growth_bytes,
            "load_s": round(loaded.load_s, 3),
        }
    )


def _show(serving: Serving, node: Node, loaded: Loaded) -> None:
    """What we are, and how a client reaches us."""
    info, rows, block = node.describe(), serving.settings.cache_rows, loaded.block
    cache = f"up to {_mib(rows * block.row_bytes)} of cache for {rows} tokens"
    lines = [
        f"peer     {info.peer_id}",
        f"model    {info.model}, layers {serving.layers} of {block.model_layers}, {info.dtype} on {info.device}",
        f"memory   {_mib(info.layer_bytes)} of weights, loaded in {loaded.load_s:.1f} s; {cache}",
        *(f"address  {address}" for address in node.addresses()),
        f"client   {_client_line(serving, node.addresses()[0])}",
        "ready",
    ]
    write("\n".join(lines) + "\n")


def _client_line(serving: Serving, address: str) -> str:
    """A command that asks this peer, with a gap for every peer that holds the other layers."""
    model, layers, count = serving.model, serving.layers, serving.model.manifest.layers
    name = model.name if model.is_imported else shlex.quote(str(model.directory))
    bounds = ((0, layers.start), (layers.stop, count))
    others = [f" --peer ADDRESS-OF-LAYERS-{start}:{stop}" for start, stop in bounds if start < stop]
    return hinted(f'shardp2p generate {name} "Hello" --peer {address}') + "".join(others)


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
