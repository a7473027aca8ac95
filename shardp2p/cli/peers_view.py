"""What `shardp2p peers` shows of a sight of the swarm: a line for each peer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.text import Text

from shardp2p.cli.columns import aligned, clipped, gibibytes, milliseconds, short_peer
from shardp2p.cli.sight import Sight
from shardp2p.scheduler.coverage import Seen
from shardp2p.vocabulary import PeerId

HEAD: Final = ("peer", "state", "layers", "reach", "path", "rtt", "layer", "free memory", "region", "version")
NUMBERS: Final = frozenset({"rtt", "layer", "free memory"})
LINES_BESIDE: Final = 5
MAX_RANGES: Final = 2
"""Ranges of one peer that its line names."""


def peer_lines(sight: Sight, columns: int, rows: int) -> Sequence[Text]:
    """A line for each peer, the most useful columns first; at most `rows` lines in all."""
    rtts_s, most = sight.rtts_s, max(1, rows - LINES_BESIDE)
    shown = [_cells(one, sight, rtts_s) for one in sight.seen[:most]]
    count = len(sight.live)
    head = Text(clipped(f"{sight.name}: {count:,} {'peer' if count == 1 else 'peers'} live", columns), style="bold")
    lines = [head, Text(), *aligned(HEAD, shown, columns, right=NUMBERS)]
    if len(sight.seen) > most:
        lines.append(Text(f"and {len(sight.seen) - most:,} more; --json has all", style="dim"))
    return lines


def peers_object(sight: Sight) -> dict[str, Any]:
    """What `--json` says: all fields of all records."""
    rtts_s = sight.rtts_s
    return {**sight.head(), "peers": [_peer_object(one, sight, rtts_s) for one in sight.seen]}


def _cells(one: Seen, sight: Sight, rtts_s: dict[PeerId, float]) -> tuple[str, ...]:
    record = one.record
    edges, is_here = sight.edges_to(record.peer_id), record.peer_id == sight.peer_id
    ranges = [f"{held.layers} {clipped(held.model, 16)}" for held in record.held[:MAX_RANGES]]
    more = f" +{len(record.held) - MAX_RANGES}" if len(record.held) > MAX_RANGES else ""
    return (
        short_peer(record.peer_id),
        record.state if one.is_live else "gone?",
        ", ".join(ranges) + more,
        record.reachability,
        edges[0]["path"] if edges else "",
        "here" if is_here else milliseconds(rtts_s.get(record.peer_id)),
        milliseconds(min((held.decode_layer_s for held in record.held if held.decode_layer_s), default=None)),
        f"{gibibytes(record.free_memory_bytes)} of {gibibytes(record.memory_bytes)}" if record.memory_bytes else "",
        clipped(record.region, 16),
        clipped(record.version, 12),
    )


def _peer_object(one: Seen, sight: Sight, rtts_s: dict[PeerId, float]) -> dict[str, Any]:
    record = one.record
    rtt_s = rtts_s.get(record.peer_id)
    return {
        "peer_id": record.peer_id,
        "is_live": one.is_live,
        "state": record.state,
        "addresses": list(record.addresses),
        "reachability": record.reachability,
        "edges": list(sight.edges_to(record.peer_id)),
        "region": record.region,
        "version": record.version,
        "rtt_ms": None if rtt_s is None else round(1e3 * rtt_s, 3),
        "memory_bytes": record.memory_bytes,
        "free_memory_bytes": record.free_memory_bytes,
        "sequence": record.sequence,
        "issued_at_s": record.issued_at_s,
        "lifetime_s": record.lifetime_s,
        "held": [
            {
                "model": held.model,
                "digest": held.model_digest,
                "model_layers": held.model_layers,
                "layers": [held.layers.start, held.layers.stop],
                "state": held.state,
                "dtype": held.dtype,
                "context_tokens": held.context_tokens,
                "layer_bytes": held.layer_bytes,
                "cache_rows": held.cache_rows,
                "free_cache_rows": held.free_cache_rows,
                "decode_layer_ms": round(1e3 * held.decode_layer_s, 4),
                "prefill_layer_ms": round(1e3 * held.prefill_layer_s, 4),
            }
            for held in record.held
        ],
        "links": [
            {
                "peer": link.peer,
                "rtt_ms": round(1e3 * link.rtt_s, 3),
                "spread_ms": round(1e3 * link.spread_s, 3),
                "bandwidth_mb_s": round(link.bandwidth_bytes_s / 1e6, 2),
            }
            for link in record.links
        ],
    }
