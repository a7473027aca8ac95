"""What doctor makes of what it measured."""

from __future__ import annotations

from typing import Any

import pytest

from shardp2p.cli.doctor_findings import (
    Finding,
    Judgement,
    is_blocked,
    judge_clock,
    judge_disk,
    judge_memory,
    judge_peers,
    judge_reach,
    judge_upnp,
    lines_of,
    object_of,
    summary_of,
)

NOW_S = 1_800_000_000.0
OK = Finding("port", "ok", "free")
WARNING = Finding("upnp", "warning", "none", "forward a port")
PROBLEM = Finding("disk", "problem", "full", "make room")


@pytest.mark.parametrize(
    ("issued_s", "verdict", "found"),
    [
        ((), "ok", "cannot tell"),
        ((NOW_S - 20,), "ok", "agrees with 1 peer"),
        ((NOW_S - 900, NOW_S + 5), "ok", "agrees with 2 peers"),
        ((NOW_S - 900, NOW_S + 60), "warning", "at least 60 s behind"),
        ((NOW_S + 4000,), "problem", "at least 4000 s behind"),
        ((NOW_S - 8000, NOW_S - 7300), "warning", "may be ahead"),
    ],
)
def test_the_clock(issued_s: tuple[float, ...], verdict: Judgement, found: str) -> None:
    finding = judge_clock(NOW_S, issued_s)
    assert (finding.verdict, found in finding.found) == (verdict, True)
    assert bool(finding.advice) == (verdict != "ok")


@pytest.mark.parametrize(
    ("free_bytes", "is_writable", "verdict"),
    [(2**36, True, "ok"), (2**30, True, "warning"), (2**20, True, "problem"), (2**36, False, "problem")],
)
def test_the_disk(free_bytes: int, is_writable: bool, verdict: Judgement) -> None:
    assert judge_disk("/data", free_bytes, is_writable=is_writable).verdict == verdict


def test_memory() -> None:
    assert judge_memory("cpu", 2**34) == Finding("memory", "ok", "16 GiB free on cpu")
    assert judge_memory("cuda", 2**29).verdict == "warning"


def test_peers() -> None:
    assert judge_peers(0, ()).verdict == "ok"
    assert judge_peers(2, ()) == Finding("peers", "ok", "2 of 2 answer")
    assert judge_peers(2, ("a: refused",)) == Finding("peers", "warning", "1 of 2 answer; a: refused")
    none = judge_peers(2, ("a: refused", "b: no answer"))
    assert (none.verdict, none.found) == ("problem", "a: refused; b: no answer")


def reach(verdict: str, upnp: str | None = None) -> dict[str, Any]:
    tried, advice = (["45.45.0.7:4001: no answer for 2 peers"], "forward the port") if verdict != "public" else ([], "")
    return {"verdict": verdict, "tried": tried, "advice": advice, "upnp": upnp, "withheld": []}


def test_how_others_reach_it() -> None:
    assert judge_reach(reach("public")) == Finding("reach", "ok", "public")
    assert judge_reach(reach("punchable")).verdict == "ok"
    assert judge_reach(reach("unreachable")) == Finding(
        "reach", "warning", "unreachable; 45.45.0.7:4001: no answer for 2 peers", "forward the port"
    )
    refuted = reach("public") | {"withheld": ["45.45.0.7:4001"], "advice": "check the port forwarding"}
    assert judge_reach(refuted) == Finding("reach", "warning", "public", "check the port forwarding")


def test_the_router() -> None:
    assert judge_upnp(reach("unknown"), is_public=False).verdict == "ok"
    assert judge_upnp(reach("unknown", "no router answers"), is_public=False).verdict == "warning"
    assert judge_upnp(reach("public", "no router answers"), is_public=True).verdict == "ok"
    assert judge_upnp(reach("unknown", "the router sends port 1 of 45.45.0.7"), is_public=False).verdict == "ok"


def test_each_check_has_a_line_and_what_to_do_below_it() -> None:
    assert lines_of([OK, WARNING, PROBLEM]) == [
        "ok       port  free",
        "warning  upnp  none",
        "               forward a port",
        "problem  disk  full",
        "               make room",
        "1 problem, 1 warning",
    ]
    assert summary_of([OK]) == "nothing stands in the way of a peer here"
    assert summary_of([OK, WARNING, WARNING]).startswith("2 warnings: a peer can run here")


def test_a_line_is_safe_to_show_and_not_endless() -> None:
    (line, _) = lines_of([Finding("peers", "ok", "\x1b[31mred\n" + "x" * 1000)])
    assert "\x1b" not in line
    assert len(line) < 430


def test_only_a_problem_blocks() -> None:
    assert not is_blocked([OK, WARNING])
    assert is_blocked([OK, PROBLEM])
    assert object_of([OK, PROBLEM]) == {
        "ok": False,
        "checks": [
            {"check": "port", "verdict": "ok", "found": "free", "advice": ""},
            {"check": "disk", "verdict": "problem", "found": "full", "advice": "make room"},
        ],
    }
