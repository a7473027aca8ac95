"""`shardp2p bench loopback`: every arm runs and is reported. How fast they are is for the bench itself to say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardp2p.cli.main import run
from tests.support.models import tiny_llama
from tests.support.processes import running

MEASURED = {
    "single_tok_s", "ring_tok_s", "ratio", "hop_overhead_ms_p50", "hop_overhead_ms_p99", "repeat_tok_s",
    "lookup_tok_s", "lookup_ratio", "lookup_accepted_per_lap",
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny", layers=4, context_tokens=1024)


def test_every_arm_is_measured_and_the_ring_answers_like_one_process(tiny: Path, tmp_path: Path) -> None:
    options = ("--model", tiny, "--data-dir", tmp_path, "--rounds", 2, "--tokens", 12, "--threads", 1)
    with running("bench", "loopback", *options, "--json") as process:
        exit_code, out = process.wait()
        assert exit_code == 0, process.stderr
    report = json.loads(out)
    assert (report["model"], report["dtype"], report["stages"]) == ("tiny", "bfloat16", 2)
    assert (report["rounds"], report["tokens"]) == (2, 12)
    assert report["identical"] is True
    assert report.keys() >= MEASURED
    assert all(report[name] > 0 for name in MEASURED)
    assert report["hop_overhead_ms_p99"] >= report["hop_overhead_ms_p50"]
    assert report["lookup_accepted_per_lap"] >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rounds", "0"), "--rounds is 0; it must be at least 1"),
        (("--tokens", "1"), "--tokens is 1; it must be at least 8"),
        (("--threads", "-1"), "threads is -1"),
        (("--dtype", "int4"), "dtype is 'int4'"),
        (("--stages", "9"), "9 stages are asked for"),
    ],
)
def test_value_that_cannot_be_is_named(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert run(["bench", "loopback", "--model", str(tiny), "--data-dir", str(tmp_path), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_sessions_are_measured_and_answer_at_once_as_they_do_alone(tiny: Path, tmp_path: Path) -> None:
    options = ["--model", tiny, "--data-dir", tmp_path, "--rounds", 1, "--tokens", 8, "--stages", 2]
    options += ["--sessions", 2, "--queued", 3, "--prompt-tokens", 200, "--rtt-ms", 4]
    with running("bench", "sessions", *options, "--json") as process:
        exit_code, out = process.wait()
        assert exit_code == 0, process.stderr
    report = json.loads(out)
    assert (report["model"], report["sessions"], report["wire"], report["rtt_ms"]) == ("tiny", 2, "raw", 4)
    assert report["identical"] is True
    assert report["queue_least_tokens"] > 0
    figures = {
        "ratio",
        "fairness",
        "gap_ratio",
        "gap_usual_ms",
        "ttft_s",
        "ttft_ratio",
        "ttft_beside_s",
        "queue_fairness",
    }
    assert all(report[name] > 0 for name in figures)


@pytest.mark.parametrize("runtime", ["emulated", "real"])
def test_an_answer_without_tokens_is_refused(runtime: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "wan", "--runtime", runtime, "--tokens", "0"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "shardp2p: error: --tokens is 0; it must be at least 32\n")


@pytest.mark.parametrize(
    ("runtime", "options", "said"),
    [
        ("emulated", ("--temperature", "0.8"), "--temperature is for --runtime real; this ring is emulated"),
        ("emulated", ("--fast-layout",), "--fast-layout is for --runtime real"),
        ("real", ("--accept", "0.74"), "--accept is for --runtime emulated; this ring is real"),
        ("emulated", ("--accept", "1"), "--accept is 1; it must be above 0 and below 1"),
        ("emulated", ("--tokens", "100000"), "--tokens is 100000; it must be at most 16384"),
    ],
)
def test_an_option_that_means_nothing_is_refused(
    runtime: str, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "wan", "--runtime", runtime, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("runtime", ["emulated", "real"])
def test_an_empty_profile_is_not_the_usual_one(runtime: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "wan", "--runtime", runtime, "--profile", ""]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("shardp2p: error: an empty name is neither a shipped network")
