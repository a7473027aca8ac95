from __future__ import annotations

import random

import pytest

from shardp2p.lab.network.nat import MAX_MAPPINGS, NAT_KINDS, NatTable
from shardp2p.lab.network.packets import ACK, ICMP, RST, SYN, TCP, UDP, Packet

OUTSIDE = 1000
INSIDE = (10, 4001)
REMOTE = (2000, 80)
OTHER = (3000, 90)
TRANSLATING = [kind for kind, behaviour in NAT_KINDS.items() if behaviour.is_translating]


def table(kind: str, timeout_s: float | None = None) -> NatTable:
    return NatTable(NAT_KINDS[kind], OUTSIDE, chance=random.Random(1).random, timeout_s=timeout_s)


def out(
    to: tuple[int, int] = REMOTE, inside: tuple[int, int] = INSIDE, protocol: int = TCP, flags: int = SYN
) -> Packet:
    return Packet(protocol, *inside, *to, flags, True)


def into(port: int, source: tuple[int, int] = REMOTE, protocol: int = TCP, flags: int = SYN) -> Packet:
    return Packet(protocol, *source, OUTSIDE, port, flags, True)


def mapped(nat: NatTable, packet: Packet, now: float = 0.0) -> int:
    going = nat.outbound(now, packet)
    assert going is not None
    assert (going.destination, going.destination_port) == (packet.destination, packet.destination_port)
    return going.source_port


def test_a_cone_keeps_the_port_and_has_one_mapping_for_all() -> None:
    nat = table("cone")
    assert mapped(nat, out(REMOTE)) == INSIDE[1]
    assert mapped(nat, out(OTHER)) == INSIDE[1]
    assert len(nat) == 1


def test_a_remapping_cone_has_one_mapping_for_all_by_another_port() -> None:
    nat = table("remapping-cone")
    port = mapped(nat, out(REMOTE))
    assert port != INSIDE[1]
    assert mapped(nat, out(OTHER)) == port


def test_a_symmetric_router_has_a_port_for_each_remote_that_repeats_with_the_seed() -> None:
    def ports() -> list[int]:
        nat = table("symmetric")
        return [mapped(nat, out((2000, port))) for port in range(80, 90)]

    assert len(set(ports())) == 10
    assert ports() == ports()


@pytest.mark.parametrize("kind", [kind for kind in TRANSLATING if kind != "full-cone"])
def test_only_who_was_spoken_to_comes_in(kind: str) -> None:
    nat = table(kind)
    port = mapped(nat, out(REMOTE))
    coming = nat.inbound(1.0, into(port, REMOTE, flags=SYN | ACK))
    assert coming is not None
    assert (coming.destination, coming.destination_port) == INSIDE
    assert nat.inbound(1.0, into(port, (REMOTE[0], 81))) is None
    assert nat.inbound(1.0, into(port, OTHER)) is None


def test_whoever_knows_the_mapping_of_a_full_cone_comes_in() -> None:
    nat = table("full-cone")
    port = mapped(nat, out(REMOTE))
    assert nat.inbound(0.0, into(port, OTHER)) is not None
    assert nat.inbound(0.0, into(port + 1, OTHER)) is None


@pytest.mark.parametrize("kind", TRANSLATING)
def test_an_idle_mapping_is_forgotten_and_a_used_one_is_not(kind: str) -> None:
    nat = table(kind, timeout_s=30.0)
    port = mapped(nat, out(protocol=UDP), now=0.0)
    assert nat.inbound(29.0, into(port, protocol=UDP)) is not None
    assert nat.inbound(58.0, into(port, protocol=UDP)) is not None
    assert nat.inbound(88.5, into(port, protocol=UDP)) is None
    assert len(nat) == 0


def test_a_remote_that_is_idle_is_shut_out_while_others_keep_the_mapping() -> None:
    nat = table("cone", timeout_s=30.0)
    port = mapped(nat, out(REMOTE, protocol=UDP), now=0.0)
    mapped(nat, out(OTHER, protocol=UDP), now=25.0)
    assert nat.inbound(31.0, into(port, REMOTE, protocol=UDP)) is None
    assert nat.inbound(31.0, into(port, OTHER, protocol=UDP)) is not None


def test_what_a_router_forgot_stays_broken_until_somebody_dials() -> None:
    nat = table("cone")
    port = mapped(nat, out())
    assert nat.outbound(1.0, out(flags=ACK)) is not None
    nat.forget()
    assert nat.outbound(2.0, out(flags=ACK)) is None
    assert nat.inbound(2.0, into(port, flags=ACK)) is None
    assert mapped(nat, out(flags=SYN), now=3.0) == port


def test_a_reset_ends_a_session_and_leaves_the_mapping() -> None:
    nat = table("remapping-cone")
    port = mapped(nat, out())
    assert nat.inbound(1.0, into(port, flags=RST | ACK)) is not None
    assert nat.inbound(2.0, into(port, flags=SYN)) is None
    assert mapped(nat, out(OTHER), now=3.0) == port


def test_two_inside_with_one_port_get_two_outside() -> None:
    nat = table("cone")
    first, second = mapped(nat, out(inside=(10, 4001))), mapped(nat, out(inside=(11, 4001)))
    assert (first, second) == (4001, 4002)
    coming = nat.inbound(0.0, into(second, flags=ACK | SYN))
    assert coming is not None
    assert coming.destination == 11


def test_a_forwarded_port_lets_everybody_in_and_survives_a_reboot() -> None:
    nat = table("symmetric")
    nat.forward(TCP, 7000, INSIDE)
    nat.forget()
    for source in (REMOTE, OTHER):
        coming = nat.inbound(0.0, into(7000, source))
        assert coming is not None
        assert (coming.destination, coming.destination_port) == INSIDE
        assert mapped(nat, out(source, flags=SYN | ACK)) == 7000
    nat.move_to(1001)
    assert nat.inbound(0.0, into(7000)) is None
    assert nat.inbound(0.0, into(7000)._replace(destination=1001)) is not None


def test_a_firewall_filters_and_translates_nothing() -> None:
    nat = table("firewall")
    packet = out()
    assert nat.outbound(0.0, packet) == packet
    answer = Packet(TCP, *REMOTE, *INSIDE, SYN | ACK, True)
    assert nat.inbound(0.0, answer) == answer
    assert nat.inbound(0.0, answer._replace(source=9)) is None


def test_an_open_router_lets_everything_pass() -> None:
    nat = table("open")
    packet = Packet(TCP, *REMOTE, *INSIDE, ACK, False)
    assert nat.inbound(0.0, packet) == packet
    assert nat.outbound(0.0, packet) == packet


def test_pings_are_translated_by_their_identifier() -> None:
    nat = table("remapping-cone")
    identifier = mapped(nat, Packet(ICMP, 10, 77, 2000, 0, 0, True))
    coming = nat.inbound(0.0, Packet(ICMP, 2000, 0, OUTSIDE, identifier, 0, True))
    assert coming is not None
    assert (coming.destination, coming.destination_port) == (10, 77)


def test_fragments_and_unknown_protocols_do_not_pass() -> None:
    nat = table("full-cone")
    assert nat.outbound(0.0, out()._replace(is_whole=False)) is None
    assert nat.inbound(0.0, into(4001)._replace(is_whole=False)) is None


def test_a_full_table_forgets_what_was_idle_longest() -> None:
    nat = table("cone")
    for at in range(MAX_MAPPINGS + 1):
        mapped(nat, out(inside=(10, 1024 + at), protocol=UDP), now=float(at) / 100)
    assert len(nat) == MAX_MAPPINGS
    assert nat.inbound(42.0, into(1024, protocol=UDP)) is None
    assert nat.inbound(42.0, into(1025, protocol=UDP)) is not None
