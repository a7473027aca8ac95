"""How others reach us, in words: the verdict, what was tried, and what the user can do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from shardp2p.swarm.declared import Declared, shown
from shardp2p.swarm.reachability import ReachabilityMachine
from shardp2p.wire.dialling_back import DialOutcome
from shardp2p.wire.records import Reachability

_SAID: Final[dict[Reachability, str]] = {
    "public": "",
    "punchable": "others reach it through a relay first, then directly; nothing has to be done",
    "unknown": "no other peer could be asked yet whether it reaches this one",
}

_FORWARDING: Final = (
    "where --announce says, so others are not told: check that the router forwards the port to this machine, or leave "
    "--announce out"
)
_STRANGE: Final = (
    "--announce names another address than the one under which others see this machine: correct it if it is wrong, or "
    "leave it out"
)


@dataclass(frozen=True, slots=True)
class Account:
    """The verdict, what it rests on, and what the user can do; `advice` is empty where there is nothing to do.

    `withheld` are declared addresses that are not told to others, who could not reach us there.
    """

    verdict: Reachability
    tried: tuple[str, ...]
    advice: str
    withheld: tuple[str, ...] = ()


def account_of(machine: ReachabilityMachine, declared: Sequence[Declared] = ()) -> Account:
    """The machine's verdict in words."""
    withheld = tuple(one.text for one in declared if one.has_failed(machine.closed))
    strange = [] if machine.is_reached else [one for one in declared if one.is_strange(machine.seen_as)]
    tried = (*_tried(machine), *_untried(machine, strange))
    if withheld:
        return Account(machine.verdict, tried, f"nobody could reach it {_FORWARDING}", withheld)
    if strange and machine.closed:
        return Account(machine.verdict, tried, _STRANGE)
    return Account(machine.verdict, tried, _advice(machine))


def _untried(machine: ReachabilityMachine, strange: Iterable[Declared]) -> Iterable[str]:
    """What nobody could try, as a dial-back goes only to where one is seen."""
    seen = " and ".join(sorted(map(str, machine.seen_as)))
    for one in strange:
        yield f"{one.text}: others see this machine as {seen}, so nobody could try it"


def _tried(machine: ReachabilityMachine) -> Iterable[str]:
    for (host, port), outcomes in machine.outcomes:
        if outcomes:
            yield f"{shown(host, port)}: {_summed(outcomes)}"
    if machine.mapping == "dependent":
        yield "the router before this machine uses another port for each peer (symmetric NAT)"
    elif machine.mapping == "independent":
        yield "the router before this machine keeps one port for all peers, so that holes can be punched"


def _advice(machine: ReachabilityMachine) -> str:
    if machine.is_on_loopback:
        return "only this machine reaches it: for others, start it with --listen /ip4/0.0.0.0/tcp/4001"
    if machine.is_alone and machine.is_reached:
        return "only this machine reaches it, which has no network: connect it to one, or name an address by --announce"
    if (said := _SAID.get(machine.verdict)) is not None:
        return said
    if machine.verdict == "unreachable":
        return f"nobody can dial it: {_way_out(machine)}"
    if machine.closed:
        return f"others reach it through a relay, which is slower: {_way_out(machine)}"
    return "others reach it through a relay; nobody could be asked yet whether they reach it directly"


def _way_out(machine: ReachabilityMachine) -> str:
    """What makes others reach it directly."""
    if machine.mapping == "none":
        return "let TCP connections to its port through the firewall of this machine"
    if {outcome for _, outcomes in machine.outcomes for outcome in outcomes} == {"other"}:
        return "something else answers at its port of the router; choose another with --listen"
    return "turn on UPnP in the router, or forward the port to this machine and name it with --announce"


_WORDS: Final[dict[DialOutcome, str]] = {
    "open": "reached by {}",
    "timeout": "no answer for {}",
    "refused": "refused to {}",
    "other": "something else answered {}",
}


def _summed(outcomes: Sequence[DialOutcome]) -> str:
    counts = ((words, outcomes.count(outcome)) for outcome, words in _WORDS.items())
    return ", ".join(words.format("1 peer" if count == 1 else f"{count} peers") for words, count in counts if count)
