"""Processes of a ring that are killed, stopped or interrupted: who is blamed, who goes on, and what is left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.cli_ring import describe, endless, slow_talker
from tests.support.processes import (
    Shardp2p,
    StageProcess,
    handles_signals,
    has_ended,
    running,
    running_stages,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slow_talker(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def ring(tiny: Path, data_dir: Path) -> Iterator[list[StageProcess]]:
    """Two stages that outlive every test here."""
    with running_stages(data_dir, (tiny, "0:2", "float32"), (tiny, "2:4", "float32")) as stages:
        yield stages


@pytest.fixture(scope="module")
def victims(tiny: Path, data_dir: Path) -> Iterator[list[StageProcess]]:
    """Two more that hold the same layers, for tests that kill."""
    with running_stages(data_dir, (tiny, "0:2", "float32"), (tiny, "2:4", "float32")) as stages:
        yield stages


def asking(
    tiny: Path, data_dir: Path, *stages: StageProcess, is_forked: bool = True
) -> AbstractContextManager[Shardp2p]:
    """A client whose answer goes on until somebody ends it."""
    peers = [f"--peer={stage.address}" for stage in stages]
    arguments = ("generate", tiny, "Tell me", "--data-dir", data_dir, *peers, *endless(tiny))
    return running(*arguments, is_forked=is_forked)


def assert_serves(tiny: Path, data_dir: Path, *stages: StageProcess) -> None:
    """The stages answer a new request, and no earlier one holds any of their cache."""
    peers = [f"--peer={stage.address}" for stage in stages]
    options = ("--data-dir", data_dir, "--raw", "--max-tokens", 4, "--json")
    with running("generate", tiny, "Tell me", *options, *peers, is_forked=True) as client:
        code, out = client.wait()
    assert code == 0, client
    assert '"finish_reason"' in out
    assert_cache_is_free(*stages)


def assert_cache_is_free(*stages: StageProcess) -> None:
    for stage in stages:
        stage.process.wait_until(lambda _, stage=stage: describe([stage.address])[0].free_cache_rows == 16384)


@pytest.mark.parametrize("place", [0, 1])
def test_killed_stage_is_named_and_the_others_go_on(
    tiny: Path, data_dir: Path, ring: list[StageProcess], victims: list[StageProcess], place: int
) -> None:
    victim, other = victims[place], ring[1 - place]
    stages = (victim, other) if place == 0 else (other, victim)
    with asking(tiny, data_dir, *stages) as client:
        client.read_bytes(3)
        victim.process.send_signal(signal.SIGKILL)
        code, _ = client.wait()
        assert code == 3
        layers = ("0:2", "2:4")[place]
        role = ", which drives the request," if place == 0 else ""
        assert client.error_line.startswith(
            f"stage {place + 1} of 2 (layers {layers}, peer {victim.peer_id}){role} went away"
        )
    assert_serves(tiny, data_dir, *ring)


def test_stopped_stage_is_named_and_serves_again_once_it_goes_on(
    tiny: Path, data_dir: Path, ring: list[StageProcess]
) -> None:
    with asking(tiny, data_dir, *ring) as client:
        client.read_bytes(3)
        ring[1].process.send_signal(signal.SIGSTOP)
        try:
            code, _ = client.wait()
        finally:
            ring[1].process.send_signal(signal.SIGCONT)
        assert code == 3
        assert client.error_line.startswith(f"stage 2 of 2 (layers 2:4, peer {ring[1].peer_id}) went away")
    assert_serves(tiny, data_dir, *ring)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_client_that_ends_in_the_middle_leaves_the_stages_serving(
    tiny: Path, data_dir: Path, ring: list[StageProcess], number: signal.Signals
) -> None:
    with asking(tiny, data_dir, *ring) as client:
        client.read_bytes(3)
        assert describe([ring[0].address])[0].free_cache_rows < 16384
        client.send_signal(number)
        code, _ = client.wait()
        assert code == (-number if number == signal.SIGKILL else 128 + number)
        assert client.stderr == ""
        assert has_ended(client.pid)
    assert_cache_is_free(*ring)
    assert_serves(tiny, data_dir, *ring)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_client_that_is_interrupted_at_its_start_ends_quietly(
    tiny: Path, data_dir: Path, ring: list[StageProcess], number: signal.Signals
) -> None:
    with asking(tiny, data_dir, *ring, is_forked=False) as client:
        client.wait_until(handles_signals)
        client.send_signal(number)
        assert client.wait() == (128 + number, "")
        assert client.stderr == ""


def test_stage_that_is_interrupted_in_the_middle_ends_with_0_and_is_named(
    tiny: Path, data_dir: Path, ring: list[StageProcess]
) -> None:
    with (
        running_stages(data_dir, (tiny, "2:4", "float32")) as (leaving,),
        asking(tiny, data_dir, ring[0], leaving) as client,
    ):
        client.read_bytes(3)
        leaving.process.send_signal(signal.SIGINT)
        assert leaving.process.wait() == (0, "")
        assert client.wait()[0] == 3
        assert client.error_line.startswith(f"stage 2 of 2 (layers 2:4, peer {leaving.peer_id}) went away")
    assert_serves(tiny, data_dir, *ring)
