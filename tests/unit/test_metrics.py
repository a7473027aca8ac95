"""A peer's figures in the text format of Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from shardp2p.cli.metrics_view import metrics_text

NODE = {"node": "abcdefgh"}


def edge(peer: str, **changes: Any) -> dict[str, Any]:
    return {
        "peer": peer, "path": "direct", "relay": None, "is_carried": False, "rtt_ms": 20.5, "silent_s": 0.2,
        "is_suspect": False, "missed_pings": 1, "streams": 2, "sent_bytes": 100, "received_bytes": 200,
        "queued_bytes": 3,
    } | changes  # fmt: skip


def status(peer_id: str = "12D3KooWabcdefgh", **changes: Any) -> dict[str, Any]:
    return {
        "peer_id": peer_id, "swarm": "s", "swarm_name": 'a "home"\n\\x', "state": "serving", "uptime_s": 7300.5,
        "version": "1", "region": "", "reachability": "punchable",
        "memory": {"offered_bytes": 2**40, "headroom_bytes": 2**28, "used_bytes": 2**29},
        "held": [{
            "model": "m", "digest": "ab" * 32, "layers": [3, 9], "cache_rows": 9, "free_cache_rows": 8,
            "decode_layer_ms": 1.5, "prefill_layer_ms": 0.0,
        }],
        "sessions": 1, "driven": 2, "neighbours": ["p1", "p2"], "live_peers": 3,
        "links": [{"peer": "p1", "rtt_ms": 1.0, "spread_ms": 0.1, "bandwidth_mb_s": 0.0}],
        "paths": {"edges": [edge("peer-one")], "places": ["r"], "relaying": None},
    } | changes  # fmt: skip


def read(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """What a monitor understands, as name → samples; and that each family comes once, with its type and its help."""
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families) == text.count("# TYPE ") == text.count("# HELP ")
    assert all(family.documentation and family.type in ("gauge", "counter") for family in families)
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in families:
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_what_a_peer_knows_of_itself_has_a_name_and_a_unit() -> None:
    found = read(metrics_text([status()]))
    assert found["shardp2p_node_uptime_seconds"] == [(NODE, 7300.5)]
    assert found["shardp2p_memory_offered_bytes"] == [(NODE, 2**40)]
    assert found["shardp2p_gossip_neighbours"] == [(NODE, 2)]
    assert [labels["state"] for labels, value in found["shardp2p_node_state"] if value] == ["serving"]
    assert [labels["reachability"] for labels, value in found["shardp2p_node_reachability"] if value] == ["punchable"]
    range_labels = {**NODE, "model": "m", "digest": "ab" * 6, "layers": "3:9"}
    assert found["shardp2p_layers_held"] == [(range_labels, 6)]
    assert found["shardp2p_cache_rows_free"] == [(range_labels, 8)]
    assert found["shardp2p_layer_decode_seconds"] == [(range_labels, 0.0015)]
    assert found["shardp2p_link_rtt_seconds"] == [({**NODE, "peer": "p1"}, 0.001)]
    assert found["shardp2p_relay_places"] == [(NODE, 1)]
    assert "shardp2p_link_bytes_per_second" not in found  # nothing measured
    assert "shardp2p_relaying_circuits" not in found  # it relays for nobody


def test_a_peer_that_does_not_answer_is_not_up() -> None:
    found = read(metrics_text([status()], ["12D3KooWstuvwxyz"]))
    assert found["shardp2p_up"] == [(NODE, 1), ({"node": "stuvwxyz"}, 0)]
    assert found["shardp2p_sessions"] == [(NODE, 1)]
    assert list(read(metrics_text([], ["12D3KooWstuvwxyz"]))) == ["shardp2p_up"]


def test_labels_are_escaped() -> None:
    ((labels, value),) = read(metrics_text([status()]))["shardp2p_node_info"]
    assert (labels["swarm_name"], value) == ('a "home"\n\\x', 1)


def test_every_edge_says_its_path_and_how_it_does() -> None:
    edges = [edge("peer-one"), edge("peer-two", path="relayed", relay="xx-the-relay", is_suspect=True, rtt_ms=0.0)]
    found = read(metrics_text([status(paths={"edges": edges, "places": [], "relaying": None})]))
    direct = {**NODE, "peer": "peer-one", "path": "direct", "relay": "", "carried": "false"}
    relayed = {**NODE, "peer": "peer-two", "path": "relayed", "relay": "he-relay", "carried": "false"}
    assert found["shardp2p_edge_rtt_seconds"] == [(direct, 0.0205)]  # that of the other is not known yet
    assert found["shardp2p_edge_suspect"] == [(direct, 0), (relayed, 1)]
    assert found["shardp2p_edge_sent_bytes_total"] == [(direct, 100), (relayed, 100)]
    assert found["shardp2p_edge_missed_pings_total"] == [(direct, 1), (relayed, 1)]


def test_connections_with_the_same_labels_are_one_sample() -> None:
    edges = [edge("peer-one"), edge("peer-one", rtt_ms=50.0, silent_s=0.1), edge("peer-one", is_carried=True)]
    found = read(metrics_text([status(paths={"edges": edges, "places": [], "relaying": None})]))
    alone, carried = found["shardp2p_edge_connections"]
    assert (alone[1], carried[1]) == (2, 1)
    assert carried[0]["carried"] == "true"
    assert [value for _, value in found["shardp2p_edge_received_bytes_total"]] == [400, 200]
    assert [value for _, value in found["shardp2p_edge_rtt_seconds"]] == [0.0205, 0.0205]
    assert [value for _, value in found["shardp2p_edge_silent_seconds"]] == [0.1, 0.2]


def test_peers_of_one_machine_are_told_apart_within_each_family() -> None:
    relaying = {"reservations": 4, "circuits": 1, "passed_bytes": 12}
    second = status("12D3KooWstuvwxyz", paths={"edges": [], "places": [], "relaying": relaying})
    found = read(metrics_text([status(), second]))
    assert [labels["node"] for labels, _ in found["shardp2p_sessions"]] == ["abcdefgh", "stuvwxyz"]
    assert found["shardp2p_relaying_passed_bytes_total"] == [({"node": "stuvwxyz"}, 12)]
    assert metrics_text([]) == ""
