"""A swarm on this machine: the processes that a user would start, one for each stage, with identities of their own."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio

from shardp2p.errors import ConfigError, LocalProtocolError, ShardError, first_of
from shardp2p.lab.children import Child, open_children, peer_command
from shardp2p.vocabulary import DType, LayerRange, PeerId
from shardp2p.weights.source import Progress, no_progress


@dataclass(frozen=True, slots=True)
class StageProcess:
    """A stage that serves, as it said when it was ready; `load_growth_bytes` is what loading added at its peak."""

    pid: int
    peer_id: PeerId
    addresses: tuple[str, ...]
    layers: LayerRange
    rss_bytes: int
    layer_bytes: int
    load_growth_bytes: int
    load_s: float


def even_splits(layers: int, stages: int) -> tuple[LayerRange, ...]:
    """`layers` layers in `stages` ranges, of which none is more than one layer longer than another.

    Raises: ConfigError when there are not enough layers.
    """
    if not 1 <= stages <= layers:
        raise ConfigError(f"{stages} stages are asked for; the model's {layers} layers make between 1 and {layers}")
    bounds = [layers * stage // stages for stage in range(stages + 1)]
    return tuple(LayerRange(start, stop) for start, stop in pairwise(bounds))


def share_of_cores(processes: int) -> int:
    """How many threads each of several processes should compute with, so that all may compute at once."""
    return max(1, (os.cpu_count() or 1) // processes)


@asynccontextmanager
async def local_swarm(
    model: str,
    splits: Sequence[LayerRange],
    *,
    dtype: DType,
    threads: int = 0,
    cache_rows: int | None = None,
    data_dir: Path | None = None,
    environment: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
    are_forked: bool = True,
    fast_layout: bool = False,
) -> AsyncIterator[tuple[StageProcess, ...]]:
    """A process for each of `splits`, in that order, all started at once and all ready; they end with the context.

    `threads` is how many each one computes with, 0: as many as torch likes; `cache_rows` how many each has for all
    sessions, None: the usual number. Processes that are not forked share no
    memory with others, for those who measure it. Leaving the context, cancelled or not,
    takes a little more than `children.STOP_S` at most.
    Raises: the error with which the first stage failed that could not start.
    """
    async with open_children() as children:

        async def start(name: str, layers: LayerRange, identity: Path) -> Child:
            arguments = _up(model, layers, dtype, threads, identity, data_dir, cache_rows)
            if fast_layout:
                arguments += ("--fast-layout",)
            if are_forked:
                return await children.start_peer(name, arguments, environment)
            return await children.start(name, peer_command(arguments), environment)

        yield await _start_all(children.directory, splits, start, progress)


async def _start_all(
    directory: Path,
    splits: Sequence[LayerRange],
    start_stage: Callable[[str, LayerRange, Path], Awaitable[Child]],
    progress: Progress,
) -> tuple[StageProcess, ...]:
    what = f"starting {len(splits)} peers" if len(splits) > 1 else "starting a peer"
    ready: dict[int, StageProcess] = {}
    progress(what, 0, 0)

    async def start(index: int, layers: LayerRange) -> None:
        name = f"stage {index + 1} of {len(splits)} (layers {layers})"
        child = await start_stage(name, layers, directory / f"{index}.key")
        ready[index] = _read_ready(child, layers, await child.read_line())
        progress(what, len(ready), len(splits))

    try:
        async with trio.open_nursery() as nursery:
            for index, layers in enumerate(splits):
                nursery.start_soon(start, index, layers)
    except BaseExceptionGroup as group:
        ours, others = group.split(ShardError)
        if others is not None or ours is None:
            raise
        raise first_of(ours) from None
    return tuple(ready[index] for index in range(len(splits)))


def _up(
    model: str,
    layers: LayerRange,
    dtype: DType,
    threads: int,
    identity: Path,
    data_dir: Path | None,
    cache_rows: int | None,
) -> tuple[str, ...]:
    """What a user would type for a stage after `shardp2p`, and what ties the process to us."""
    command = ["up", "--model", model, "--layers", str(layers)]
    command += ["--listen", "/ip4/127.0.0.1/tcp/0", "--dtype", dtype, "--threads", str(threads)]
    command += ["--identity", str(identity), "--json", "--exit-on-stdin-close"]
    if cache_rows is not None:
        command += ["--cache-rows", str(cache_rows)]
    if data_dir is not None:
        command += ["--data-dir", str(data_dir)]
    return tuple(command)


def _read_ready(child: Child, layers: LayerRange, line: bytes) -> StageProcess:
    """What `up` says in its one line."""
    try:
        said: dict[str, Any] = json.loads(line)
        stage = StageProcess(
            pid=said["pid"],
            peer_id=PeerId(said["peer_id"]),
            addresses=tuple(said["addresses"]),
            layers=LayerRange(*said["layers"]),
            rss_bytes=said["rss_bytes"],
            layer_bytes=said["layer_bytes"],
            load_growth_bytes=said["load_growth_bytes"],
            load_s=said["load_s"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LocalProtocolError(f"`up` did not print the line that tells it is ready, but {line[:80]!r}") from error
    if (stage.pid, stage.layers) != (child.pid, layers):
        raise LocalProtocolError(f"`up` for layers {layers} serves {stage.layers} in process {stage.pid}")
    return stage
