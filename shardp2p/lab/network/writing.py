"""Descriptions of networks back to JSON: what reading.py reads as the same value. Pure."""

from __future__ import annotations

import json
from typing import Any

from shardp2p.lab.network.description import Description, Host, Link, Router


def description_to_json(description: Description) -> str:
    """The JSON text of a description."""
    return json.dumps(
        {
            "about": description.about,
            "hosts": {name: _host(host) for name, host in description.hosts.items()},
            "routers": {name: _router(router) for name, router in description.routers.items()},
            "one_way_ms": {f"{a}>{b}": delay for (a, b), delay in description.one_way_ms.items()},
            "default_rtt_ms": description.default_rtt_ms,
            "reorder": description.is_reordering,
            **_link(description.link),
            "links": {name: _link(link) for name, link in description.links.items()},
        },
        ensure_ascii=False,
    )


def _host(host: Host) -> dict[str, Any]:
    return {"behind": host.behind, "docker": host.has_docker}


def _router(router: Router) -> dict[str, Any]:
    written = {
        "nat": router.nat,
        "behind": router.behind,
        "hairpin": router.has_hairpin,
        "unsolicited": router.unsolicited,
        "mapping_timeout_s": router.mapping_timeout_s,
        "upnp": router.has_upnp,
        "allow_out": None if router.allow_out is None else list(router.allow_out),
        "lan": router.lan,
        "lan_rtt_ms": router.lan_rtt_ms,
    }
    return {name: value for name, value in written.items() if value is not None}


def _link(link: Link) -> dict[str, Any]:
    return {
        "up_mbit_s": link.up_mbit_s,
        "down_mbit_s": link.down_mbit_s,
        "jitter_ms": link.jitter_ms,
        "loss": link.loss,
        "queue_ms": link.queue_ms,
        "mtu": link.mtu,
    }
