"""The verdict on how others reach us: what it takes to reach it, and what does not turn it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.identity.keys import Identity
from shardp2p.swarm.declared import Declared, parse_declared
from shardp2p.swarm.dial_evidence import MAX_OBSERVERS
from shardp2p.swarm.observers import choose_observers
from shardp2p.swarm.reachability import (
    MAX_ENDPOINTS,
    MAX_SIGHTINGS,
    SETTLED_S,
    SOON_S,
    STALE_S,
    ReachabilityMachine,
    Sighting,
)
from shardp2p.swarm.reachability_account import account_of
from shardp2p.vocabulary import PeerId
from shardp2p.wire.dialling_back import DialOutcome

PEER = Identity.from_seed(b"a" * 32).peer_id
WAN = "45.45.0.7"
A, B, C = "45.45.1.1", "45.45.2.2", "45.45.3.3"
OUTCOMES: dict[str, DialOutcome] = {"o": "open", "t": "timeout", "r": "refused", "x": "other"}


def told(*reports: str, machine: ReachabilityMachine | None = None, host: str = WAN) -> ReachabilityMachine:
    """A machine after reports like "Ao": observer A reached us; t, r, x: no answer, refused, something else."""
    machine = machine or ReachabilityMachine()
    observers = {"A": A, "B": B, "C": C}
    for at, text in enumerate(reports):
        machine.report(observers[text[0]], host, [(4001, OUTCOMES[text[1]])], float(at))
    return machine


@pytest.mark.parametrize(
    ("reports", "opened", "closed"),
    [
        ((), False, False),
        (("Ao",), True, False),
        (("At",), False, False),  # a single failure may be a lost packet
        (("At", "At"), False, True),
        (("At", "Bt"), False, True),
        (("Ao", "Bt"), True, False),  # proved already
        (("Bt", "Ao"), False, False),  # one of two: not known yet
        (("Bt", "Ao", "Co"), True, False),
        (("At", "Bt", "Co"), False, True),  # a single liar does not make it public
        (("At", "Bt", "Co", "Ao"), True, False),
        # What is proved does not turn over one failure, nor over one observer of several.
        (("Ao", "At"), True, False),
        (("Ao", "At", "At"), False, True),
        (("Ao", "Bo", "At", "At", "At"), True, False),
        (("Ao", "Bo", "At", "At", "Bt", "Bt"), False, True),
        (("Ao", "Bo", "Co", "At", "At", "Bt", "Bt"), False, True),
    ],
)
def test_one_report_does_not_turn_an_address(reports: tuple[str, ...], opened: bool, closed: bool) -> None:
    machine = told(*reports)
    assert (bool(machine.opened), bool(machine.closed)) == (opened, closed)


def test_verdicts() -> None:
    assert ReachabilityMachine().verdict == "unknown"
    assert told("Ao").verdict == "public"
    assert told("At").verdict == "unknown"
    assert told("At", "Bt").verdict == "unreachable"
    relayed = told("At", "Bt")
    relayed.has_relay = True
    assert relayed.verdict == "relayed"
    for observer in (A, B):
        relayed.sight(Sighting(observer, 4001, WAN, 61234), 3.0)
    assert (relayed.verdict, relayed.mapping, relayed.is_cut_off) == ("punchable", "independent", True)
    relayed.sight(Sighting(C, 4001, WAN, 61235), 3.0)
    assert (relayed.verdict, relayed.mapping) == ("relayed", "dependent")


def test_a_relay_alone_reaches_who_asked_nobody() -> None:
    machine = ReachabilityMachine()
    machine.has_relay = True
    assert machine.verdict == "relayed"
    assert not machine.is_cut_off


def test_who_keeps_its_ports_for_several_peers_is_punchable() -> None:
    machine = told("At", "Bt")
    machine.has_relay = True
    machine.sight(Sighting(A, 50001, WAN, 50001), 3.0)
    assert machine.mapping == "unknown"
    machine.sight(Sighting(B, 50002, WAN, 50002), 3.0)
    assert (machine.mapping, machine.verdict) == ("independent", "punchable")


def test_a_firewall_before_a_public_address_maps_nothing() -> None:
    machine = told("At", "Bt")
    machine.own_hosts = frozenset({WAN})
    machine.has_relay = True
    assert (machine.mapping, machine.verdict) == ("none", "punchable")
    machine.has_relay = False
    assert "firewall of this machine" in account_of(machine).advice


def test_a_private_address_counts_only_where_nobody_is_outside() -> None:
    machine = told("Ao", host="192.168.1.5")
    assert account_of(machine).verdict == "public"
    told("Bt", "Ct", machine=machine)
    assert account_of(machine).verdict == "unreachable"


def test_who_is_on_a_machine_without_a_network_is_not_public() -> None:
    machine = told("Ao", host="127.0.0.1")
    machine.is_alone = True
    assert account_of(machine).verdict == "unknown"
    assert "only this machine reaches it" in account_of(machine).advice
    machine.is_alone = False
    assert account_of(machine).verdict == "public"


def test_a_new_address_replaces_the_former() -> None:
    machine = told("Ao", "Bo")
    told("Ao", "Bo", machine=machine, host="45.45.0.8")
    assert machine.opened == (("45.45.0.8", 4001),)
    assert {str(ip) for ip in machine.seen_as} == {"45.45.0.8"}


def test_what_was_proved_stays_while_nobody_can_be_asked() -> None:
    machine = told("Ao", "Bo")
    machine.forget(10 * STALE_S)
    assert account_of(machine).verdict == "public"
    machine.reset()
    assert account_of(machine).verdict == "unknown"


def test_old_failures_do_not_weigh() -> None:
    machine = told("At")
    machine.forget(2 * STALE_S)
    machine.report(A, WAN, [(4001, "timeout")], 2 * STALE_S)
    assert machine.verdict == "unknown"


def test_when_to_ask() -> None:
    machine = ReachabilityMachine()
    assert machine.next_round_at == 0.0
    for number, pause_s in enumerate((*SOON_S, SETTLED_S, SETTLED_S)):
        machine.asked(1000.0 * number)
        assert machine.next_round_at == 1000.0 * number + pause_s
    told("Ao", machine=machine)
    assert machine.next_round_at == 4000.0 + SETTLED_S
    told("At", machine=machine)
    assert machine.next_round_at < 4000.0 + SETTLED_S
    machine.reset()
    assert machine.next_round_at == 0.0
    machine.is_on_loopback = True
    assert machine.next_round_at == float("inf")


@pytest.mark.parametrize(
    ("reports", "advice"),
    [
        ((), "no other peer could be asked yet"),
        (("Ao",), ""),
        (("At", "Bt"), "nobody can dial it: turn on UPnP in the router, or forward the port"),
        (("Ax", "Bx"), "something else answers at its port of the router"),
    ],
)
def test_what_to_do_about_it(reports: tuple[str, ...], advice: str) -> None:
    said = account_of(told(*reports)).advice
    assert advice in said
    assert bool(advice) == bool(said)


def test_what_was_tried() -> None:
    machine = told("Ao", "Bo", "Ct")
    machine.report(A, WAN, [(443, "refused")], 9.0)
    assert account_of(machine).tried == (
        "45.45.0.7:4001: reached by 2 peers, no answer for 1 peer",
        "45.45.0.7:443: refused to 1 peer",
    )
    machine.report(A, "2a00::7", [(443, "open")], 9.0)
    assert account_of(machine).tried[-1] == "[2a00::7]:443: reached by 1 peer"


def declared(*texts: str) -> tuple[Declared, ...]:
    return parse_declared(texts, PEER)


def test_a_declared_address_where_others_fail_is_withheld_and_why_is_said() -> None:
    forwarded = declared(f"/ip4/{WAN}/tcp/4001")
    for reports, is_withheld in ((("At",), False), (("At", "Bt"), True), (("Ao", "Bt", "Ct"), False), (("Ao",), False)):
        account = account_of(told(*reports), forwarded)
        assert (account.withheld == (f"{WAN}:4001",)) == is_withheld
        assert ("check that the router forwards the port" in account.advice) == is_withheld
    two = declared(f"/ip4/{WAN}/tcp/4001", f"/ip4/{WAN}/tcp/443")
    machine = told("At", "Bt")
    machine.report(A, WAN, [(443, "open")], 9.0)
    assert account_of(machine, two).verdict == "public"
    assert account_of(machine, two).withheld == (f"{WAN}:4001",)  # others reach us, but not there
    machine.report(A, WAN, [(4001, "open")], 10.0)
    machine.report(B, WAN, [(4001, "open")], 11.0)
    assert account_of(machine, two).withheld == ()  # the port was forwarded since


def test_a_name_has_failed_once_it_has_wherever_it_leads() -> None:
    (name,) = declared("/dns4/home.example.org/tcp/4001")
    closed = told("At", "Bt").closed
    assert not name.has_failed(closed)  # nobody has looked it up
    assert name.leading_to([WAN]).has_failed(closed)
    assert not name.leading_to([WAN, "45.45.0.8"]).has_failed(closed)
    assert name.leading_to([WAN]).text == "home.example.org:4001"


def test_a_declared_address_under_which_nobody_sees_us_was_not_tried() -> None:
    elsewhere = declared("/ip4/45.45.0.200/tcp/4001", "/ip6/2a00::7/tcp/4001", "/ip4/10.8.0.3/tcp/4001")
    assert account_of(told(), elsewhere).tried == ()
    account = account_of(told("At", "Bt"), elsewhere)
    assert account.tried[1:] == (f"45.45.0.200:4001: others see this machine as {WAN}, so nobody could try it",)
    assert "names another address than the one under which others see this machine" in account.advice
    assert account.withheld == ()  # it may well lead here
    assert account_of(told("Ao", "Bo"), elsewhere).advice == ""


def test_of_ipv6_all_addresses_of_a_home_are_one_voice() -> None:
    machine = ReachabilityMachine()
    for at, observer in enumerate(("2a00:1:2:3::1", "2a00:1:2:3:4::1")):
        machine.report(observer, "2a00:9::7", [(4001, "open" if at else "timeout")], float(at))
    ((_, outcomes),) = machine.outcomes
    assert outcomes == ("open",)  # what it said last
    machine.report("2a00:1:2:4::1", "2a00:9::7", [(4001, "timeout")], 2.0)
    assert len(machine.outcomes[0][1]) == 2


def test_a_declared_address_in_the_ipv6_network_in_which_others_see_us_is_ours() -> None:
    machine = told("At", "Bt", host="2a00:9::d1ce")
    assert account_of(machine, declared("/ip6/2a00:9::7/tcp/4001")).tried[1:] == ()
    (strange,) = account_of(machine, declared("/ip6/2a00:8::7/tcp/4001")).tried[1:]
    assert strange == "[2a00:8::7]:4001: others see this machine as 2a00:9::d1ce, so nobody could try it"
    assert account_of(machine, declared("/ip6/2A00:9:0::d1ce/tcp/4001")).withheld == ("[2a00:9::d1ce]:4001",)


def test_of_two_versions_of_ip_the_router_is_judged_by_ipv4() -> None:
    machine = ReachabilityMachine()
    machine.own_hosts = frozenset({"192.168.1.5", "2a00:9::7"})
    machine.sight(Sighting("2a00:1::1", 4001, "2a00:9::7", 4001), 0.0)
    assert machine.mapping == "none"  # a machine with IPv6 alone has no router that maps ports
    for port, observer in ((61234, A), (61235, B)):
        machine.sight(Sighting(observer, 4001, WAN, port), 1.0)
    assert machine.mapping == "dependent"


def test_on_loopback_there_is_nothing_to_ask() -> None:
    machine = ReachabilityMachine()
    machine.is_on_loopback = True
    assert machine.verdict == "unknown"
    assert "--listen" in account_of(machine).advice


def test_observers_of_different_homes_connected_ones_and_not_those_of_just_now() -> None:
    peers = [PeerId(name) for name in "abcdef"]
    homes = ["one", "one", "two", "two", "three", "four"]
    candidates = [(peer, home, peer in "bf") for peer, home in zip(peers, homes, strict=True)]
    assert choose_observers(candidates, (), 3) == ("b", "f", "c")
    assert choose_observers(candidates, (peers[1], peers[5], peers[2]), 3) == ("a", "d", "e")
    assert choose_observers(candidates, peers, 3) == ("b", "f", "c")
    assert choose_observers(candidates[:2], (), 3) == ("b", "a")
    assert choose_observers((), (), 3) == ()


HOSTS = st.sampled_from([WAN, "45.45.0.8", "192.168.1.5", "2a00::7", "127.0.0.1"])
OBSERVERS = st.integers(0, 300).map(lambda number: f"45.46.{number // 256}.{number % 256}")
REPORTS = st.tuples(OBSERVERS, HOSTS, st.integers(1, 40), st.sampled_from(list(OUTCOMES.values())))


@given(st.lists(REPORTS, max_size=120), st.lists(st.tuples(OBSERVERS, st.integers(1, 9), HOSTS), max_size=60))
def test_whatever_is_reported_is_bounded_and_has_an_account(
    reports: list[tuple[str, str, int, DialOutcome]], sightings: list[tuple[str, int, str]]
) -> None:
    machine = ReachabilityMachine()
    for at, (observer, host, port, outcome) in enumerate(reports):
        machine.report(observer, host, [(port, outcome)], float(at))
    for observer, port, host in sightings:
        machine.sight(Sighting(observer, port, host, port), float(len(reports)))
    machine.forget(float(len(reports)))
    assert len(machine.outcomes) <= MAX_ENDPOINTS
    assert all(len(outcomes) <= MAX_OBSERVERS for _, outcomes in machine.outcomes)
    assert len(machine._sightings) <= MAX_SIGHTINGS
    assert not set(machine.opened) & set(machine.closed)
    account = account_of(machine)
    assert account.verdict == "public" or account.advice
