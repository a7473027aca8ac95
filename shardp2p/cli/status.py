"""`shardp2p status`: what the peers of this data directory that run now are doing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardp2p.cli import options
from shardp2p.cli.columns import clipped, gibibytes
from shardp2p.cli.doctor_findings import counted
from shardp2p.cli.output import note, write, write_json
from shardp2p.config import load_settings
from shardp2p.errors import PeerUnavailableError
from shardp2p.telemetry import configure_logging

if TYPE_CHECKING:
    from shardp2p.gateway.local import Told

MAX_LINKS: Final = 8
"""Links that are shown; --json has all."""
CHARACTERS: Final = 64
"""Of any one name."""


def status(
    data_dir: options.DataDir = None, as_json: options.AsJson = False, log_level: options.LogLevel = None
) -> None:
    """Show what this machine's running peer does; --json prints one object for each that runs."""
    configure_logging(log_level or "error")
    told_by = running_statuses(data_dir)
    if not told_by.answers:
        raise PeerUnavailableError("; ".join(told_by.silent.values()))
    note_silent(told_by)
    for number, told in enumerate(told_by.answers.values()):
        if as_json:
            write_json(told)
        else:
            write(("\n" if number else "") + "\n".join(status_lines(told)) + "\n")


def running_statuses(data_dir: Path | None) -> Told:
    """What each peer of this data directory that runs says of itself. Raises: PeerUnavailableError when none runs."""
    run_dir = load_settings(data_dir=data_dir).paths.run_dir
    from shardp2p.gateway.local import ask_running

    told = ask_running(run_dir)
    if not (told.answers or told.silent):
        raise PeerUnavailableError(
            f"no peer of a swarm runs here, in {run_dir}; start one: shardp2p up --join TOKEN|FILE"
        )
    return told


def note_silent(told: Told) -> None:
    """Say on stderr which peers run here and do not answer."""
    for reason in told.silent.values():
        note(reason)


def status_lines(told: dict[str, Any]) -> Iterator[str]:
    """A running peer's status as lines to read."""
    memory = told["memory"]
    yield f"peer     {told['peer_id']}, version {told['version']}"
    live = f"{told['live_peers']} {'peer' if told['live_peers'] == 1 else 'peers'} live"
    yield f"swarm    {clipped(told['swarm_name'], CHARACTERS)} ({told['swarm']}), {live}"
    waits = f": {clipped(told['waits_for'], 4 * CHARACTERS)}" if told["waits_for"] else ""
    yield f"state    {told['state']} for {_duration(told['uptime_s'])} since the start{waits}"
    region = f", region {clipped(told['region'], CHARACTERS)}" if told["region"] else ""
    yield f"reach    {told['reachability']}{region}, {counted(len(told['neighbours']), 'neighbour')}"
    for line in _reach_lines(told["reach"]):
        yield f"         {clipped(line, 4 * CHARACTERS)}"
    for held in told["held"]:
        yield (
            f"layers   {held['layers'][0]}:{held['layers'][1]} of {clipped(held['model'], CHARACTERS)} "
            f"({held['model_layers']}), {held['state']}, {held['dtype']}, {gibibytes(held['layer_bytes'])}"
        )
        yield (
            f"         {held['free_cache_rows']} of {held['cache_rows']} cache rows free; a layer takes "
            f"{held['decode_layer_ms']:.2f} ms for a token, {held['prefill_layer_ms']:.2f} ms in a prompt"
        )
    yield (
        f"memory   {gibibytes(memory['used_bytes'])} of {gibibytes(memory['offered_bytes'])} offered is used, "
        f"{gibibytes(memory['headroom_bytes'])} kept free"
    )
    yield f"work     {told['sessions']} sessions, {told['driven']} answers driven here"
    for link in told["links"][:MAX_LINKS]:
        speed = f", {link['bandwidth_mb_s']:.1f} MB/s" if link["bandwidth_mb_s"] else ""
        yield f"link     {link['peer']}  {link['rtt_ms']:.2f} ms ± {link['spread_ms']:.2f}{speed}"
    if len(told["links"]) > MAX_LINKS:
        yield f"link     and {len(told['links']) - MAX_LINKS} more"
    for address in told["addresses"]:
        yield f"address  {address}"


def _reach_lines(reach: dict[str, Any]) -> Iterator[str]:
    """What was tried to be reached, and what to do about it."""
    yield from reach["tried"]
    if reach["upnp"]:
        yield f"UPnP: {reach['upnp']}"
    if reach["advice"]:
        yield reach["advice"]


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
