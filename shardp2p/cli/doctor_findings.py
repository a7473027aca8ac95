"""What `shardp2p doctor` makes of what it measured: a verdict for each check, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from shardp2p.cli.columns import clipped, gibibytes

Judgement = Literal["ok", "warning", "problem"]

FEW_BYTES: Final = 2 * 2**30
NO_BYTES: Final = 64 * 2**20
"""Below the first few models find a place; below the second not even a peer's own files are safe."""
LITTLE_MEMORY: Final = 2**30
OFF_S: Final = 30.0
FAR_OFF_S: Final = 300.0
"""A clock that is off by this lets invites begin too late and end too early."""
OLD_RECORD_S: Final = 3600.0
"""A peer makes a new record of itself several times in an hour, whatever happens."""
MAX_CHARACTERS: Final = 400


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found, and where it is not ok, what to do."""

    check: str
    verdict: Judgement
    found: str
    advice: str = ""


def lines_of(findings: Sequence[Finding]) -> list[str]:
    """A line for each check, what to do below it, and the sum."""
    lines = []
    width = max((len(one.check) for one in findings), default=0)
    for one in findings:
        lines.append(f"{one.verdict:8} {one.check:{width}}  {clipped(one.found, MAX_CHARACTERS)}")
        if one.advice:
            lines.append(f"{'':9}{'':{width}}  {clipped(one.advice, MAX_CHARACTERS)}")
    return [*lines, summary_of(findings)]


def summary_of(findings: Sequence[Finding]) -> str:
    """All of it in one line."""
    counts = {verdict: sum(one.verdict == verdict for one in findings) for verdict in get_args(Judgement)}
    if not counts["problem"] and not counts["warning"]:
        return "nothing stands in the way of a peer here"
    parts = [counted(counts[kind], kind) for kind in ("problem", "warning") if counts[kind]]
    return ", ".join(parts) + ("" if counts["problem"] else ": a peer can run here, though not as well as it could")


def object_of(findings: Sequence[Finding]) -> dict[str, Any]:
    """What `--json` prints."""
    return {"ok": not is_blocked(findings), "checks": [asdict(one) for one in findings]}


def is_blocked(findings: Iterable[Finding]) -> bool:
    """Whether something cannot work as it is."""
    return any(one.verdict == "problem" for one in findings)


def judge_clock(now_s: float, issued_s: Sequence[float]) -> Finding:
    """Our clock against the times at which peers made their newest records."""
    if not issued_s:
        return Finding("clock", "ok", "cannot tell: no peer to compare with")
    newest = max(issued_s)
    behind_s = newest - now_s
    set_it = "let the system set it: timedatectl set-ntp true, or the settings of date and time"
    if behind_s > OFF_S:
        found = f"this clock is at least {behind_s:.0f} s behind the peers'"
        return Finding("clock", "problem" if behind_s > FAR_OFF_S else "warning", found, set_it)
    if -behind_s > OLD_RECORD_S:
        return Finding(
            "clock", "warning", f"this clock may be ahead: no peer said anything for {-behind_s:.0f} s", set_it
        )
    return Finding("clock", "ok", f"agrees with {counted(len(issued_s), 'peer')}")


def judge_disk(directory: str, free_bytes: int, *, is_writable: bool) -> Finding:
    """The place for models, identities and logs."""
    if not is_writable:
        return Finding(
            "disk", "problem", f"cannot write in {directory}", "change its owner, or name another --data-dir"
        )
    found = f"{gibibytes(free_bytes)} free in {directory}"
    if free_bytes < NO_BYTES:
        return Finding("disk", "problem", found, "make room, or name another --data-dir")
    if free_bytes < FEW_BYTES:
        return Finding("disk", "warning", found, "enough to serve what is there; models that are pulled need more")
    return Finding("disk", "ok", found)


def judge_memory(device: str, free_bytes: int) -> Finding:
    """What a peer could offer."""
    found = f"{gibibytes(free_bytes)} free on {device}"
    if free_bytes < LITTLE_MEMORY:
        return Finding("memory", "warning", found, "few layers fit: close what else uses it")
    return Finding("memory", "ok", found)


def judge_reach(reach: dict[str, Any]) -> Finding:
    """How others reach this machine, from a peer's status."""
    found = "; ".join((reach["verdict"], *reach["tried"]))
    is_ok = reach["verdict"] in ("public", "punchable") and not reach["withheld"]
    return Finding("reach", "ok" if is_ok else "warning", found, reach["advice"])


def judge_upnp(reach: dict[str, Any], *, is_public: bool) -> Finding:
    """Whether the router gives a port; who is reached without it needs none."""
    if reach["upnp"] is None:
        return Finding("upnp", "ok", "not needed: no home router before this machine, or none is to be asked")
    if "sends port" in reach["upnp"] or is_public:
        return Finding("upnp", "ok", reach["upnp"])
    return Finding("upnp", "warning", reach["upnp"], "without it, peers outside come over a relay, or a forwarded port")


def judge_peers(asked: int, reasons: Sequence[str]) -> Finding:
    """Whether the peers that were named answer."""
    if not asked:
        return Finding("peers", "ok", "none was named: --peer MULTIADDR or --join TOKEN tries to reach them")
    if len(reasons) < asked:
        found = f"{asked - len(reasons)} of {asked} answer"
        return Finding("peers", "ok", found) if not reasons else Finding("peers", "warning", f"{found}; {reasons[0]}")
    advice = "see whether they run, and whether this network lets TCP connections out; ask for a newer token"
    return Finding("peers", "problem", "; ".join(reasons), advice)


def counted(count: int, thing: str) -> str:
    """So many of a thing, in words that agree."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
