from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from shardp2p.errors import ConfigError
from shardp2p.lab.network.catalog import shipped_networks
from shardp2p.lab.network.check import Measurement, What
from shardp2p.lab.network.kernel_router import miniupnpd_settings, nft_rules
from shardp2p.lab.network.scenario import SCENARIOS, find_scenario


@pytest.mark.parametrize(
    ("what", "asked", "measured", "is_within"),
    [
        ("rtt_ms", 60.0, 63.0, True),
        ("rtt_ms", 60.0, 63.1, False),
        ("rtt_ms", 60.0, 56.9, False),
        ("rtt_ms", 0.0, 0.5, True),
        ("rtt_ms", 0.0, 0.6, False),
        ("up_mbit_s", 20.0, 18.9, False),
        ("down_mbit_s", 20.0, 20.9, True),
        ("loss", 0.1, 0.106, False),
        ("loss", 0.1, 0.104, True),
    ],
)
def test_a_measurement_may_be_five_per_cent_off(what: What, asked: float, measured: float, is_within: bool) -> None:
    assert Measurement(what, "a", "b", asked, measured).is_within is is_within


def test_each_scenario_has_a_shipped_network() -> None:
    assert {scenario.network for scenario in SCENARIOS.values()} <= shipped_networks().keys()
    assert find_scenario("check") is SCENARIOS["check"]
    with pytest.raises(ConfigError, match="there is check"):
        find_scenario("nonsense")


def test_a_kernels_router_refuses_with_a_reset_only_where_it_is_asked_to() -> None:
    assert "reject" not in nft_rules("drop")
    assert nft_rules("reset").count("reject with tcp reset") == 2


def test_upnp_opens_ports_for_the_hosts_inside_alone() -> None:
    settings = miniupnpd_settings(IPv4Network("192.168.7.0/24")).splitlines()
    assert settings[-2:] == [
        "allow 1024-65535 192.168.7.0/24 1024-65535",
        "deny 0-65535 0.0.0.0/0 0-65535",
    ]
    assert "secure_mode=yes" in settings
