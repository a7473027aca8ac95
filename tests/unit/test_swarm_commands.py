"""What coverage, peers, status and plan show of a swarm, without one."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from shardp2p.cli.columns import aligned, clipped, gibibytes, milliseconds, short_peer
from shardp2p.cli.coverage_view import Bar, coverage_lines, coverage_object
from shardp2p.cli.peers_view import peer_lines, peers_object
from shardp2p.cli.plan_view import make_plans, plan_lines, plans_object
from shardp2p.cli.seeing import digest_in
from shardp2p.cli.sight import Sight
from shardp2p.cli.status import status_lines
from shardp2p.cli.swarm_views import sight_of
from shardp2p.errors import PeerUnavailableError, RemoteProtocolError
from shardp2p.scheduler.coverage import ModelCoverage, Seen, SeenModel, coverage_of
from shardp2p.scheduler.planning import Goal
from shardp2p.swarm.sealed_records import seal_record
from shardp2p.vocabulary import LayerRange, ModelId, PeerId
from shardp2p.wire.records import CoverageRecord, HeldLayers, Link, encode_record
from tests.support.gossip_parts import HELD, record_of
from tests.support.gossip_swarm import SWARM, identity_of

HERE = identity_of(900).peer_id


def held(start: int, stop: int, **changes: Any) -> HeldLayers:
    return replace(HELD, layers=LayerRange(start, stop), **changes)


def record(number: int, *parts: HeldLayers, **changes: Any) -> CoverageRecord:
    return replace(record_of(number), held=parts, links=(), **changes)


def sight(*records: CoverageRecord, links: tuple[Link, ...] = ()) -> Sight:
    return Sight(HERE, SWARM, "lab", "gossip", tuple(map(Seen, records)), links)


def coverage(*records: CoverageRecord, layers: int = 30) -> ModelCoverage:
    return coverage_of(SeenModel("ab" * 32, layers, (ModelId("smollm2"),)), map(Seen, records))


def plain(found: ModelCoverage, width: int = 80, rows: int = 50) -> list[str]:
    return [line.plain.rstrip() for line in coverage_lines(found, {}, width, rows)]


SWARM_OF_FOUR = (
    record(1, held(0, 12)),
    record(2, held(10, 20, state="loading", decode_layer_s=0.0)),
    record(3, held(20, 28, state="draining")),
    record(4, held(0, 6)),
)


def test_bars_are_aligned_over_the_layers_and_read_without_colours() -> None:
    lines = plain(coverage(*SWARM_OF_FOUR))
    assert lines[0] == "smollm2  30 layers  abababababab"
    assert lines[1] == "incomplete: nobody serves 12:30; 8 of these layers are being loaded"
    assert lines[3:9] == [
        "           0         10        20",
        "holders    222222111111LLLLLLLLDDDDDDDD--",
        f"{short_peer(record(4).peer_id)}  {'SSSSSS':30}    0:6  1.00 ms  public",
        f"{short_peer(record(1).peer_id)}  {'SSSSSSSSSSSS':30}   0:12  1.00 ms  public",
        f"{short_peer(record(2).peer_id)}  {'          LLLLLLLLLL':30}  10:20           public",
        f"{short_peer(record(3).peer_id)}  {'                    DDDDDDDD':30}  20:28  1.00 ms  public",
    ]
    assert lines[-1] == "S serving  L loading  D draining  ? does not answer  - missing"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("layers", [1, 7, 30, 80, 500])
def test_no_line_is_wider_than_the_terminal(width: int, layers: int) -> None:
    parts = [held(at, at + 1, model_layers=layers) for at in range(0, layers, 3)][:16]
    found = coverage(record(1, *parts, region="a-region-with-a-long-name", reachability="unreachable"), layers=layers)
    lines = coverage_lines(found, {record(1).peer_id: 0.1234}, width, 50)
    assert max(line.cell_len for line in lines) <= width
    assert [line.plain.count("S") > 0 for line in lines[5:-2]] == [True] * len(parts)


def test_a_cell_of_many_layers_shows_the_scarcest() -> None:
    found = coverage(record(1, held(0, 250, model_layers=500), held(251, 500, model_layers=500)), layers=500)
    assert found.missing == (LayerRange(250, 251),)
    (summed,) = [line for line in plain(found) if line.startswith("holders")]
    assert summed.count("-") == 1


@pytest.mark.parametrize(("layers", "room"), [(1, 16), (5, 16), (30, 37), (37, 37), (38, 37), (500, 37), (9999, 16)])
def test_every_layer_has_a_cell_and_every_cell_layers(layers: int, room: int) -> None:
    bar = Bar(layers, room)
    assert bar.width <= room
    cells = [bar.layers_at(cell) for cell in range(bar.width)]
    assert sorted({layer for cell in cells for layer in cell}) == list(range(layers))
    for layer in {0, layers // 3, layers // 2, layers - 1}:
        drawn = bar.draw(LayerRange(layer, layer + 1), "S", "").plain
        assert len(drawn) == bar.width
        assert [at for at, letter in enumerate(drawn) if letter == "S"] == [
            at for at, cell in enumerate(cells) if layer in cell
        ]


def test_ten_thousand_peers_are_cut_with_a_count() -> None:
    records = [record(1, held(layer, layer + 1)) for layer in range(30)]
    everyone = [replace(records[n % 30], peer_id=PeerId(f"p{n}")) for n in range(10_000)]
    found = coverage(*everyone)
    lines = plain(found, rows=20)
    assert len(lines) == 5 + 20 + 3
    assert "and 9,980 more" in lines
    assert lines[1] == "complete: every layer is served by 333 peers or more"
    assert "holders    " + "+" * 30 in lines
    shown = [line.plain for line in peer_lines(sight(*everyone), 80, 24)]
    assert len(shown) <= 24
    assert shown[-1] == "and 9,981 more; --json has all"


def test_coverage_object_names_every_holder() -> None:
    told = json.loads(json.dumps(coverage_object(coverage(*SWARM_OF_FOUR))))
    assert (told["model"], told["layers"], told["complete"], told["min_holders"]) == ("smollm2", 30, False, 0)
    assert told["missing"] == [[12, 30]]
    assert [(one["layers"], one["state"]) for one in told["holders"]] == [
        ([0, 6], "serving"),
        ([0, 12], "serving"),
        ([10, 20], "loading"),
        ([20, 28], "draining"),
    ]
    assert told["holders"][0]["decode_layer_ms"] == 1.0
    assert told["holders"][0]["addresses"] == list(record(4).addresses)


def test_view_of_a_running_peer_keeps_records_links_and_hints() -> None:
    one, link = record(1, held(0, 30)), Link(record(1).peer_id, 0.02, 0.001, 1e6)
    view: dict[str, Any] = {"peer_id": HERE, "swarm": SWARM, "name": "lab", "links": [[link.peer, 0.02, 0.001, 1e6]]}
    view["edges"] = [{"peer": one.peer_id, "path": "relayed"}, {"peer": HERE, "path": "direct"}]
    sealed = base64.b64encode(seal_record(identity_of(1), one)).decode()
    told = sight_of(json.loads(json.dumps({**view, "records": [sealed]})))
    assert told == replace(sight(one, links=(link,)), edges=tuple(view["edges"]))
    assert [edge["path"] for edge in told.edges_to(one.peer_id)] == ["relayed"]
    assert told.rtts_s == {one.peer_id: 0.02}
    hint = [base64.b64encode(encode_record(one)).decode(), False]
    found = sight_of({**view, "hints": [hint]})
    assert (found.source, found.seen, found.live) == ("directory", (Seen(one, False),), ())
    with pytest.raises(RemoteProtocolError):
        sight_of({**view, "hints": [["AAAA", True]]})


def test_peers_are_a_line_each_and_fields_in_json() -> None:
    one = record(1, held(0, 12), region="eu\x1b[2J", version="1.2")
    edges = tuple({"peer": one.peer_id, "path": path} for path in ("punched", "relayed"))
    seen = replace(sight(one, record(2), links=(Link(one.peer_id, 0.0123, 0.001),)), edges=edges)
    text = "\n".join(line.plain for line in peer_lines(seen, 120, 50))
    assert "lab: 2 peers live" in text
    assert "12.3 ms" in text
    assert "punched" in text
    assert "relayed" not in text
    assert "\x1b" not in text
    told = peers_object(seen)
    assert [peer["rtt_ms"] for peer in told["peers"]] == [12.3, None]
    assert [len(peer["edges"]) for peer in told["peers"]] == [2, 0]
    assert told["peers"][0]["held"][0]["layers"] == [0, 12]
    assert told["seen_by"] == HERE


def test_plan_has_the_ring_now_and_the_best_and_a_reason_for_every_peer() -> None:
    fast = record(1, held(0, 15, decode_layer_s=0.001), memory_bytes=10**9, free_memory_bytes=7 * 10**8)
    slow = record(2, held(15, 30, decode_layer_s=0.01))
    leaving = record(3, held(0, 30), state="draining")
    plans = make_plans(sight(fast, slow, leaving), "smollm2", Goal(), 0)
    told = plans_object(plans)
    assert [stage["layers"] for stage in told["route"]["stages"]] == [[0, 15], [15, 30]]
    assert told["plan"]["stages"] == [{"peer_id": fast.peer_id, "layers": [0, 30]}]
    assert told["plan"]["lap_ms"] == 30.0
    for ring in ("route", "plan"):
        reasons = {peer["peer_id"]: peer["reason"] for peer in told[ring]["peers"]}
        assert reasons.keys() == {fast.peer_id, slow.peer_id, leaving.peer_id}
        assert all(reasons.values())
    text = "\n".join(plan_lines(plans))
    assert "a request now: 2 stages" in text
    assert "if layers could move: 1 stage, a lap takes 30.0 ms" in text


def test_plan_says_why_there_is_no_ring() -> None:
    half = record(1, held(0, 15), memory_bytes=200, free_memory_bytes=0)
    told = plans_object(make_plans(sight(half), "smollm2", Goal(), 0))
    assert told["route"] is None
    assert told["plan"] is None
    assert "layers 15:30 of smollm2 are missing" in told["route_error"]
    assert "room for 15" in told["plan_error"]
    busy = record(1, held(0, 30, free_cache_rows=10))
    assert "is busy" in plans_object(make_plans(sight(busy), "smollm2", Goal(), 100))["route_error"]
    with pytest.raises(PeerUnavailableError, match="or any other model"):
        make_plans(sight(), "smollm2", Goal(), 0)


def test_status_has_lines_for_all_that_a_peer_says() -> None:
    told = {
        "peer_id": "p", "swarm": "s", "swarm_name": "lab", "state": "loading", "waits_for": "loading layers 0:3",
        "uptime_s": 7300.0, "version": "1", "region": "", "reachability": "unknown", "addresses": ["/ip4/1.2.3.4"],
        "reach": {"tried": ["45.45.0.7:4001: no answer for 2 peers"], "upnp": "no router", "advice": "forward it"},
        "memory": {"offered_bytes": 2**30, "headroom_bytes": 2**28, "used_bytes": 2**29},
        "held": [{
            "model": "m", "layers": [0, 3], "model_layers": 30, "state": "serving", "dtype": "float32",
            "layer_bytes": 2**20, "cache_rows": 9, "free_cache_rows": 8,
            "decode_layer_ms": 1.5, "prefill_layer_ms": 0.5,
        }],
        "sessions": 1, "driven": 2, "neighbours": [], "live_peers": 3,
        "links": [{"peer": f"p{n}", "rtt_ms": 1.0, "spread_ms": 0.1, "bandwidth_mb_s": 0.0} for n in range(10)],
    }  # fmt: skip
    text = "\n".join(status_lines(told))
    assert "loading for 2 h since the start: loading layers 0:3" in text
    assert "0:3 of m (30), serving, float32, 1.0 MiB" in text
    assert "512 MiB of 1.0 GiB offered is used, 256 MiB kept free" in text
    assert "and 2 more" in text
    assert [line.strip() for line in text.splitlines()[4:7]] == [
        "45.45.0.7:4001: no answer for 2 peers", "UPnP: no router", "forward it",
    ]  # fmt: skip


def test_columns_drop_what_is_empty_and_what_does_not_fit() -> None:
    lines = aligned(("a", "b", "c"), [("1", "", "long"), ("22", "", "x")], 80, right=frozenset("a"))
    assert [line.plain for line in lines] == [" a  c", " 1  long", "22  x"]
    assert [line.plain for line in aligned(("a", "b"), [("1", "2")], 3, right=frozenset())] == ["a", "1"]


def test_sizes_and_times_are_short() -> None:
    assert [milliseconds(s) for s in (None, 0.0, 0.00123, 0.0123, 0.123)] == ["", "", "1.23 ms", "12.3 ms", "123 ms"]
    assert [gibibytes(n) for n in (0, 2**20, 12 * 2**20, 2**30, 80 * 2**30)] == [
        "0 KiB", "1.0 MiB", "12 MiB", "1.0 GiB", "80 GiB",
    ]  # fmt: skip
    assert clipped("a\nb" + "c" * 10, 6) == "a bcc…"


def test_only_a_whole_digest_asks_the_directory_for_one_model() -> None:
    assert digest_in("ab" * 32) == "ab" * 32
    assert digest_in("ab" * 31) is None
    assert digest_in("smollm2") is None
