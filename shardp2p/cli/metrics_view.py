"""What running peers know of themselves, in the text format of Prometheus, version 0.0.4. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/. Names and labels are listed in docs/commands.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from shardp2p.cli.columns import SHORT_CHARACTERS

Kind = Literal["gauge", "counter"]
Labels = Mapping[str, str]
Status = Mapping[str, Any]
"""What a peer's local socket answers to `status`."""

STATES: Final = ("joining", "placing", "loading", "serving", "draining", "left")
REACHABILITIES: Final = ("unknown", "public", "punchable", "relayed", "unreachable")
DIGEST_CHARACTERS: Final = 12
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric: what it means, and what each peer's status says of it."""

    name: str
    kind: Kind
    help: str
    samples: Callable[[Status], Iterable[tuple[Labels, float]]]


@dataclass(slots=True)
class _Summed:
    """The connections to one peer that have the same labels, taken together."""

    rtt_s: float = 0.0
    silent_s: float = float("inf")
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, edge: Mapping[str, Any]) -> None:
        self.rtt_s = self.rtt_s or 1e-3 * edge["rtt_ms"]  # that which new streams take comes first
        self.silent_s = min(self.silent_s, edge["silent_s"])
        for name in _EDGE_SUMS:
            self.sums[name] = self.sums.get(name, 0) + edge[name]
        self.sums["connections"] = self.sums.get("connections", 0) + 1


_EDGE_SUMS: Final = ("sent_bytes", "received_bytes", "queued_bytes", "missed_pings", "streams", "is_suspect")


def metrics_text(told: Sequence[Status], silent: Sequence[str] = ()) -> str:
    """The figures of these peers, each family once with all its samples; what is not known yet has none.

    Of those that are `silent`, by id, it says that they are not up.
    """
    up = [(status["peer_id"], 1) for status in told] + [(peer, 0) for peer in silent]
    if not up:
        return ""
    lines = [
        "# HELP shardp2p_up Whether the peer, which runs, answers.",
        "# TYPE shardp2p_up gauge",
        *(f"shardp2p_up{_labels({'node': _short(peer)})} {value}" for peer, value in up),
    ]
    for family in _FAMILIES:
        samples = [
            f"{family.name}{_labels({'node': _short(status['peer_id']), **labels})} {_number(value)}"
            for status in told
            for labels, value in family.samples(status)
        ]
        if samples:
            lines += [f"# HELP {family.name} {_help(family.help)}", f"# TYPE {family.name} {family.kind}", *samples]
    return "\n".join([*lines, ""])


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.9g}"


def _short(peer_id: str) -> str:
    return peer_id[-SHORT_CHARACTERS:]


# Where each kind of sample comes from.


def _of_node(*keys: str) -> Callable[[Status], Iterator[tuple[Labels, float]]]:
    """One number at `keys`, one below the other; a list stands for its length. What is missing or null has none."""

    def samples(status: Status) -> Iterator[tuple[Labels, float]]:
        value: Any = status
        for key in keys:
            value = None if value is None else value.get(key)
        if value is not None:
            yield {}, len(value) if isinstance(value, list) else value

    return samples


def _one_of(key: str, label: str, names: Sequence[str]) -> Callable[[Status], Iterator[tuple[Labels, float]]]:
    """One sample for each name: 1 for that which is at `key`, 0 for the others."""

    def samples(status: Status) -> Iterator[tuple[Labels, float]]:
        for name in names:
            yield {label: name}, float(status[key] == name)

    return samples


def _of_held(value: Callable[[Mapping[str, Any]], float]) -> Callable[[Status], Iterator[tuple[Labels, float]]]:
    def samples(status: Status) -> Iterator[tuple[Labels, float]]:
        for held in status["held"]:
            layers = "{}:{}".format(*held["layers"])
            yield {"model": held["model"], "digest": held["digest"][:DIGEST_CHARACTERS], "layers": layers}, value(held)

    return samples


def _of_links(key: str, unit: float) -> Callable[[Status], Iterator[tuple[Labels, float]]]:
    def samples(status: Status) -> Iterator[tuple[Labels, float]]:
        for link in status["links"]:
            if link[key]:
                yield {"peer": _short(link["peer"])}, unit * link[key]

    return samples


def _of_edges(value: Callable[[_Summed], float | None]) -> Callable[[Status], Iterator[tuple[Labels, float]]]:
    def samples(status: Status) -> Iterator[tuple[Labels, float]]:
        summed: dict[tuple[str, str, str, bool], _Summed] = {}
        for edge in status["paths"]["edges"]:
            at = (edge["peer"], edge["path"], edge["relay"] or "", edge["is_carried"])
            summed.setdefault(at, _Summed()).add(edge)
        for (peer, path, relay, is_carried), one in summed.items():
            if (found := value(one)) is not None:
                carried = "true" if is_carried else "false"
                yield {"peer": _short(peer), "path": path, "relay": _short(relay), "carried": carried}, found

    return samples


def _edge_sum(name: str) -> Callable[[Status], Iterator[tuple[Labels, float]]]:
    return _of_edges(lambda summed: summed.sums[name])


def _info(status: Status) -> Iterator[tuple[Labels, float]]:
    yield {key: status[key] for key in ("peer_id", "version", "swarm", "swarm_name", "region")}, 1


_FAMILIES: Final = (
    _Family("shardp2p_node_info", "gauge", "Which peer this is; always 1.", _info),
    _Family("shardp2p_node_state", "gauge", "1 for the state of its life.", _one_of("state", "state", STATES)),
    _Family(
        "shardp2p_node_reachability",
        "gauge",
        "1 for how others reach it.",
        _one_of("reachability", "reachability", REACHABILITIES),
    ),
    _Family("shardp2p_node_uptime_seconds", "gauge", "Time since its start.", _of_node("uptime_s")),
    _Family("shardp2p_swarm_live_peers", "gauge", "Peers that are live, itself included.", _of_node("live_peers")),
    _Family("shardp2p_gossip_neighbours", "gauge", "Peers it gossips with.", _of_node("neighbours")),
    _Family("shardp2p_sessions", "gauge", "Sessions that its layers serve now.", _of_node("sessions")),
    _Family("shardp2p_driven_answers", "gauge", "Answers it drives now for clients.", _of_node("driven")),
    _Family("shardp2p_memory_offered_bytes", "gauge", "Memory it may use.", _of_node("memory", "offered_bytes")),
    _Family(
        "shardp2p_memory_used_bytes", "gauge", "Memory its layers and caches take.", _of_node("memory", "used_bytes")
    ),
    _Family("shardp2p_memory_headroom_bytes", "gauge", "Memory it keeps free.", _of_node("memory", "headroom_bytes")),
    _Family(
        "shardp2p_layers_held",
        "gauge",
        "Layers of a model that it holds.",
        _of_held(lambda h: h["layers"][1] - h["layers"][0]),
    ),
    _Family("shardp2p_cache_rows", "gauge", "Cache rows of a held range.", _of_held(lambda h: h["cache_rows"])),
    _Family(
        "shardp2p_cache_rows_free", "gauge", "Those that no session has.", _of_held(lambda h: h["free_cache_rows"])
    ),
    _Family(
        "shardp2p_layer_decode_seconds",
        "gauge",
        "What a layer takes for one token; 0 before it is measured.",
        _of_held(lambda h: 1e-3 * h["decode_layer_ms"]),
    ),
    _Family(
        "shardp2p_layer_prefill_seconds",
        "gauge",
        "What a layer takes for one token of a prompt; 0 before it is measured.",
        _of_held(lambda h: 1e-3 * h["prefill_layer_ms"]),
    ),
    _Family("shardp2p_link_rtt_seconds", "gauge", "Measured round trip to a peer.", _of_links("rtt_ms", 1e-3)),
    _Family("shardp2p_link_rtt_spread_seconds", "gauge", "How much that varies.", _of_links("spread_ms", 1e-3)),
    _Family("shardp2p_link_bytes_per_second", "gauge", "Measured rate to a peer.", _of_links("bandwidth_mb_s", 1e6)),
    _Family("shardp2p_edge_connections", "gauge", "Live connections to a peer.", _edge_sum("connections")),
    _Family("shardp2p_edge_streams", "gauge", "Streams open on them.", _edge_sum("streams")),
    _Family("shardp2p_edge_rtt_seconds", "gauge", "Round trip of a ping.", _of_edges(lambda s: s.rtt_s or None)),
    _Family("shardp2p_edge_silent_seconds", "gauge", "Time since anything was heard.", _of_edges(lambda s: s.silent_s)),
    _Family("shardp2p_edge_suspect", "gauge", "Connections whose path is doubted.", _edge_sum("is_suspect")),
    _Family("shardp2p_edge_queued_bytes", "gauge", "Bytes that wait to be written.", _edge_sum("queued_bytes")),
    _Family("shardp2p_edge_sent_bytes_total", "counter", "Bytes written.", _edge_sum("sent_bytes")),
    _Family("shardp2p_edge_received_bytes_total", "counter", "Bytes read.", _edge_sum("received_bytes")),
    _Family(
        "shardp2p_edge_missed_pings_total",
        "counter",
        "Pings after which nothing was heard until the next.",
        _edge_sum("missed_pings"),
    ),
    _Family("shardp2p_relay_places", "gauge", "Relays that keep a place for it.", _of_node("paths", "places")),
    _Family(
        "shardp2p_relaying_reservations",
        "gauge",
        "Places it keeps for others.",
        _of_node("paths", "relaying", "reservations"),
    ),
    _Family("shardp2p_relaying_circuits", "gauge", "Circuits it passes on.", _of_node("paths", "relaying", "circuits")),
    _Family(
        "shardp2p_relaying_passed_bytes_total",
        "counter",
        "Bytes it passed on for others.",
        _of_node("paths", "relaying", "passed_bytes"),
    ),
)
