from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.lab.network.addressing import plan_addresses
from shardp2p.lab.network.internet import Internet, ports_of
from shardp2p.lab.network.packets import Packet, parse
from shardp2p.lab.network.reading import parse_description
from tests.support.ip_packets import ACK, RST, SYN, has_right_checksums, tcp, udp

SEED = 5


class Net:
    """An Internet, and what came out of it: (when, port, packet)."""

    def __init__(self, **description: Any) -> None:
        self.description = parse_description(json.dumps(description))
        addresses = plan_addresses(self.description)
        self.at = {name: str(address) for name, address in addresses.outside.items()}
        self.internet = Internet(self.description, addresses, random.Random(SEED).random)

    def run(self, now: float) -> list[tuple[float, str, Packet]]:
        """What leaves up to `now`, each at its time."""
        seen = []
        while (due := self.internet.next_at()) is not None and due <= now:
            for port, data in self.internet.advance(due):
                packet = parse(data)
                assert packet is not None
                assert has_right_checksums(data)
                seen.append((due, port, packet))
        seen += [(now, port, packet) for port, data in self.internet.advance(now) if (packet := parse(data))]
        return seen

    def send(self, now: float, port: str, data: bytes, until: float = 10.0) -> list[tuple[float, str, Packet]]:
        self.internet.receive(now, port, data)
        return self.run(now + until)


HOMES: dict[str, Any] = {
    "hosts": {"relay": {}, "alice": {"behind": "home-a"}, "bob": {"behind": "home-b"}, "shelf": {"behind": "home-b"}},
    "routers": {"home-a": {"nat": "cone"}, "home-b": {"nat": "remapping-cone"}},
    "default_rtt_ms": 40,
}


def dial(net: Net, source: str, to: tuple[str, int], port: int = 4001, flags: int = SYN) -> bytes:
    return tcp((net.at[source], port), to, flags)


def mapping(net: Net, host: str, port: int = 4001) -> tuple[str, int]:
    """The endpoint that the relay sees of a host."""
    ((_, _, packet),) = net.send(0.0, host, dial(net, host, (net.at["relay"], 80), port))
    return net.at[net.description.site(host)], packet.source_port


def test_a_packet_arrives_after_its_delay_as_the_router_sent_it() -> None:
    net = Net(**HOMES | {"one_way_ms": {"alice>relay": 30}})
    ((at, port, packet),) = net.send(1.0, "alice", dial(net, "alice", (net.at["relay"], 80)))
    assert (at, port) == (pytest.approx(1.03), "relay")
    assert parse(tcp((net.at["home-a"], 4001), (net.at["relay"], 80))) == packet
    answer = tcp((net.at["relay"], 80), (net.at["home-a"], 4001), SYN | ACK)
    ((at, port, packet),) = net.send(2.0, "relay", answer)
    assert (at, port) == (pytest.approx(2.02), "alice")
    assert parse(tcp((net.at["relay"], 80), (net.at["alice"], 4001), SYN | ACK)) == packet


def test_both_cones_are_punched_when_both_dial_at_once() -> None:
    net = Net(**HOMES)
    alice, bob = mapping(net, "alice"), mapping(net, "bob")
    net.internet.receive(20.0, "alice", dial(net, "alice", bob))
    net.internet.receive(20.005, "bob", dial(net, "bob", alice))
    assert [(port, packet.flags) for _, port, packet in net.run(21.0)] == [("bob", SYN), ("alice", SYN)]


def test_a_hole_that_is_punched_too_late_was_closed_when_the_packet_came() -> None:
    net = Net(**HOMES)
    alice, bob = mapping(net, "alice"), mapping(net, "bob")
    net.internet.receive(20.0, "alice", dial(net, "alice", bob))
    assert net.run(20.021) == []
    net.internet.receive(20.021, "bob", dial(net, "bob", alice))
    assert [port for _, port, _ in net.run(21.0)] == ["alice"]


def test_a_symmetric_router_cannot_be_punched_from_a_cone() -> None:
    net = Net(**HOMES | {"routers": {"home-a": {"nat": "symmetric"}, "home-b": {"nat": "cone"}}})
    alice, bob = mapping(net, "alice"), mapping(net, "bob")
    net.internet.receive(20.0, "alice", dial(net, "alice", bob))
    net.internet.receive(20.0, "bob", dial(net, "bob", alice))
    assert net.run(30.0) == []


def test_a_router_that_answers_resets_what_nobody_asked_for() -> None:
    net = Net(**HOMES | {"routers": {"home-a": {"unsolicited": "reset"}, "home-b": {}}})
    ((at, port, packet),) = net.send(1.0, "relay", tcp((net.at["relay"], 80), (net.at["home-a"], 4001)))
    assert (at, port) == (pytest.approx(1.04), "relay")
    assert packet.flags == RST | ACK
    assert net.send(20.0, "relay", tcp((net.at["relay"], 80), (net.at["home-b"], 4001))) == []


def test_a_packet_passes_two_routers_and_its_answer_finds_back() -> None:
    net = Net(
        hosts={"relay": {}, "alice": {"behind": "inner"}},
        routers={"inner": {"nat": "remapping-cone", "behind": "carrier"}, "carrier": {"nat": "cone"}},
    )
    ((_, _, packet),) = net.send(1.0, "alice", dial(net, "alice", (net.at["relay"], 80)))
    assert packet == parse(tcp((net.at["carrier"], 20000), (net.at["relay"], 80)))
    answer = tcp((net.at["relay"], 80), (net.at["carrier"], 20000), SYN | ACK)
    ((_, port, packet),) = net.send(2.0, "relay", answer)
    assert (port, packet.destination_port) == ("alice", 4001)


@pytest.mark.parametrize("has_hairpin", [True, False])
def test_a_neighbour_is_reached_by_the_public_address_through_a_hairpin_alone(has_hairpin: bool) -> None:
    net = Net(**HOMES | {"routers": {"home-a": {}, "home-b": {"nat": "full-cone", "hairpin": has_hairpin}}})
    bob = mapping(net, "bob")
    seen = net.send(20.0, "shelf", dial(net, "shelf", bob, port=5))
    expected = [("bob", parse(tcp((net.at["home-b"], 5), (net.at["bob"], 4001))))]
    assert [(port, packet) for _, port, packet in seen] == (expected if has_hairpin else [])


def test_neighbours_talk_directly_and_hear_each_others_multicast() -> None:
    net = Net(**HOMES)
    packet = tcp((net.at["bob"], 1), (net.at["shelf"], 2))
    assert net.send(1.0, "bob", packet) == [(1.0, "shelf", parse(packet))]
    everybody = udp((net.at["bob"], 5353), ("224.0.0.251", 5353))
    assert [port for _, port, _ in net.send(20.0, "bob", everybody)] == ["shelf"]
    assert net.send(30.0, "relay", udp((net.at["relay"], 5353), ("224.0.0.251", 5353))) == []


def test_a_firewall_lets_out_what_it_allows() -> None:
    routers = {"home-a": {"allow_out": [443], "unsolicited": "reset"}, "home-b": {"allow_out": [443]}}
    net = Net(**HOMES | {"routers": routers})
    relay = net.at["relay"]
    assert [port for _, port, _ in net.send(1.0, "alice", dial(net, "alice", (relay, 443)))] == ["relay"]
    ((_, port, packet),) = net.send(20.0, "alice", dial(net, "alice", (relay, 4001)))
    assert (port, packet.flags) == ("alice", RST | ACK)
    assert net.send(40.0, "bob", dial(net, "bob", (relay, 4001))) == []
    assert net.send(60.0, "bob", udp((net.at["bob"], 1), (relay, 443))) == []


def test_what_a_line_cannot_send_at_once_waits_and_then_is_dropped() -> None:
    net = Net(hosts={"a": {}, "b": {}}, links={"a": {"up_mbit_s": 1, "queue_ms": 25}})
    data = udp((net.at["a"], 1), (net.at["b"], 2), b"x" * 1222)
    for _ in range(10):
        net.internet.receive(1.0, "a", data)
    assert [at for at, _, _ in net.run(2.0)] == pytest.approx([1.01, 1.02, 1.03])


def test_a_line_has_a_rate_for_each_direction() -> None:
    net = Net(hosts={"a": {}, "b": {}}, links={"b": {"down_mbit_s": 10, "up_mbit_s": 1}})
    there = udp((net.at["a"], 1), (net.at["b"], 2), b"x" * 1222)
    back = udp((net.at["b"], 2), (net.at["a"], 1), b"x" * 1222)
    assert net.send(1.0, "a", there)[0][0] == pytest.approx(1.001)
    assert net.send(20.0, "b", back)[0][0] == pytest.approx(20.01)


@pytest.mark.parametrize("reorder", [True, False])
def test_jitter_keeps_the_order_unless_it_is_asked_not_to(reorder: bool) -> None:
    net = Net(hosts={"a": {}, "b": {}}, default_rtt_ms=40, jitter_ms=20, reorder=reorder)
    for at in range(200):
        net.internet.receive(1 + at / 1000, "a", udp((net.at["a"], 1000 + at), (net.at["b"], 2)))
    seen = net.run(5.0)
    delays = [at - (1 + (packet.source_port - 1000) / 1000) for at, _, packet in seen]
    assert len(seen) == 200
    assert min(delays) >= 0.02 - 1e-9
    assert max(delays) <= 0.04 + 1e-9
    assert max(delays) - min(delays) > 0.009
    ports = [packet.source_port for _, _, packet in seen]
    assert (ports == sorted(ports)) is not reorder


def test_packets_are_lost_as_often_as_asked() -> None:
    net = Net(hosts={"a": {}, "b": {}}, links={"b": {"loss": 0.1}})
    for at in range(2000):
        net.internet.receive(1.0, "a", udp((net.at["a"], 1 + at), (net.at["b"], 2)))
    assert 160 < 2000 - len(net.run(2.0)) < 240


def test_a_packet_that_does_not_fit_is_reported_to_its_sender() -> None:
    net = Net(**HOMES | {"links": {"home-b": {"mtu": 1280}}})
    big = tcp((net.at["alice"], 1), (net.at["home-b"], 2), ACK, b"x" * 1300)
    net.internet.receive(1.0, "alice", big)
    ((port, data),) = net.internet.advance(1.0)
    assert (port, data[20:22]) == ("alice", b"\x03\x04")
    assert int.from_bytes(data[26:28], "big") == 1280


def test_nothing_passes_a_cut_until_it_is_restored_not_even_what_was_on_its_way() -> None:
    net = Net(**HOMES)
    data = dial(net, "alice", (net.at["relay"], 80))
    net.internet.receive(1.0, "alice", data)
    net.internet.cuts.cut("alice", "relay")
    assert net.run(2.0) == []
    assert net.send(3.0, "alice", data) == []
    net.internet.cuts.restore("relay", "alice")
    assert len(net.send(20.0, "alice", data)) == 1


def test_a_cut_in_one_way_leaves_the_other() -> None:
    net = Net(**HOMES)
    mapping(net, "alice")
    net.internet.cuts.cut_one_way("relay", "home-a")
    assert len(net.send(20.0, "alice", dial(net, "alice", (net.at["relay"], 80)))) == 1
    assert net.send(40.0, "relay", tcp((net.at["relay"], 80), (net.at["home-a"], 4001), SYN | ACK)) == []


def test_a_router_without_its_cable_still_joins_those_behind_it() -> None:
    net = Net(**HOMES)
    net.internet.cuts.cut("home-b")
    assert net.send(1.0, "bob", dial(net, "bob", (net.at["relay"], 80))) == []
    assert len(net.send(20.0, "bob", dial(net, "bob", (net.at["shelf"], 80)))) == 1
    net.internet.cuts.restore()
    assert len(net.send(40.0, "bob", dial(net, "bob", (net.at["relay"], 80)))) == 1


def test_a_router_that_was_rebooted_or_moved_knows_nobody() -> None:
    net = Net(**HOMES)
    host, port = mapping(net, "bob")
    answer = tcp((net.at["relay"], 80), (host, port), SYN | ACK)
    assert len(net.send(20.0, "relay", answer)) == 1
    net.internet.forget_mappings("home-b")
    assert net.send(40.0, "relay", answer) == []
    new = net.internet.readdress("home-b")
    assert str(new) != host
    ((_, _, packet),) = net.send(60.0, "bob", dial(net, "bob", (net.at["relay"], 80)))
    assert packet.source == int(new)


def test_a_host_with_another_address_is_not_found_by_the_old_one() -> None:
    net = Net(**HOMES)
    to_old = dial(net, "bob", (net.at["shelf"], 80))
    new = net.internet.readdress("shelf")
    assert net.send(1.0, "bob", to_old) == []
    assert len(net.send(20.0, "bob", dial(net, "bob", (str(new), 80)))) == 1


def test_a_forwarded_port_is_reached_from_anywhere() -> None:
    net = Net(**HOMES)
    net.internet.open_port("home-a", 4001, "alice", 5001)
    ((_, port, packet),) = net.send(1.0, "relay", tcp((net.at["relay"], 1), (net.at["home-a"], 4001)))
    assert (port, packet.destination_port) == ("alice", 5001)


def test_a_kernels_router_gets_what_it_has_to_translate() -> None:
    net = Net(
        hosts={"relay": {}, "alice": {"behind": "home"}, "bob": {"behind": "home"}}, routers={"home": {"upnp": True}}
    )
    assert list(ports_of(net.description)) == ["relay", "alice", "bob", "home.lan", "home.wan"]
    out = dial(net, "alice", (net.at["relay"], 80))
    assert net.send(1.0, "alice", out) == [(1.0, "home.lan", parse(out))]
    translated = tcp((net.at["home"], 9), (net.at["relay"], 80))
    assert net.send(20.0, "home.wan", translated)[0][1:] == ("relay", parse(translated))
    back = tcp((net.at["relay"], 80), (net.at["home"], 9), SYN | ACK)
    assert net.send(40.0, "relay", back)[0][1:] == ("home.wan", parse(back))
    within = tcp((net.at["relay"], 80), (net.at["alice"], 4001), SYN | ACK)
    assert net.send(60.0, "home.lan", within)[0][1:] == ("alice", parse(within))
    search = udp((net.at["alice"], 1900), ("239.255.255.250", 1900))
    assert [port for _, port, _ in net.send(80.0, "alice", search)] == ["bob", "home.lan"]
    notice = udp(("192.168.1.1", 1900), ("239.255.255.250", 1900))
    assert [port for _, port, _ in net.send(99.0, "home.lan", notice)] == ["alice", "bob"]


def test_hosts_behind_an_open_router_are_reached_by_their_own_addresses() -> None:
    net = Net(hosts={"relay": {}, "alice": {"behind": "home"}}, routers={"home": {"nat": "open"}})
    data = tcp((net.at["relay"], 1), (net.at["alice"], 80))
    assert net.send(1.0, "relay", data)[0][1:] == ("alice", parse(data))


def test_what_is_on_its_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardp2p.lab.network.internet.MAX_IN_FLIGHT", 100)
    net = Net(hosts={"a": {}, "b": {}}, default_rtt_ms=100)
    data = udp((net.at["a"], 1), (net.at["b"], 2))
    for _ in range(110):
        net.internet.receive(1.0, "a", data)
    assert sum(1 for _ in net.internet.advance(2.0)) == 100


@given(st.lists(st.tuples(st.sampled_from(["relay", "alice", "bob", "up.lan", "up.wan"]), st.binary(max_size=120))))
def test_whatever_bytes_hosts_send_the_network_goes_on(sent: list[tuple[str, bytes]]) -> None:
    routers = HOMES["routers"] | {"home-a": {"unsolicited": "reset", "hairpin": True}, "up": {"upnp": True}}
    net = Net(**HOMES | {"routers": routers, "links": {"relay": {"mtu": 576}}})
    heads = (
        b"",
        tcp((net.at["alice"], 1), (net.at["relay"], 2))[:20],
        udp((net.at["bob"], 1), (net.at["relay"], 2))[:20],
    )
    for at, (port, data) in enumerate(sent):
        for head in heads:
            net.internet.receive(float(at), port, head + data)
            for _ in net.internet.advance(float(at)):
                pass


def test_the_same_seed_gives_the_same_network() -> None:
    def run() -> list[tuple[float, str, Packet]]:
        net = Net(**HOMES | {"jitter_ms": 10, "loss": 0.2, "routers": {"home-a": {"nat": "symmetric"}, "home-b": {}}})
        for at in range(100):
            net.internet.receive(1 + at / 100, "alice", dial(net, "alice", (net.at["relay"], 1 + at)))
        return net.run(10.0)

    assert run() == run()
