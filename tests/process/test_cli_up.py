"""`shardp2p up`: what it refuses, what it says when it is ready, and how it ends."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from shardp2p.cli.main import run
from shardp2p.weights.store import ModelStore
from tests.support.models import tiny_llama
from tests.support.processes import (
    StageProcess,
    handles_signals,
    has_ended,
    imports_torch,
    restored_logging,
    running,
    running_stages,
)

LAYERS = 4
CONTRACT = {
    "peer_id", "pid", "addresses", "model", "model_digest", "layers", "dtype", "device", "rss_bytes", "layer_bytes",
    "load_growth_bytes", "load_s",
}  # fmt: skip


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings file of this machine's user, and no log setup left for other tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with restored_logging():
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny", layers=LAYERS)


@pytest.fixture(scope="module")
def stage(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageProcess]:
    with running_stages(tmp_path_factory.mktemp("data"), (tiny, "1:3", "bfloat16")) as (only,):
        yield only


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `up` in this process, which must fail with exit code 2 (or `code`); gives the only line it writes."""

    def refuse(*arguments: object, code: int = 2) -> str:
        assert run(["up", "--data-dir", str(tmp_path / "data"), *map(str, arguments)]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("shardp2p: error: ")
        assert err.count("\n") == 1
        return err.removeprefix("shardp2p: error: ").rstrip()

    return refuse


def up(model: Path, data_dir: Path, *arguments: object, layers: str = "0:2") -> tuple[object, ...]:
    return ("up", "--model", model, "--layers", layers, "--data-dir", data_dir, "--threads", 1, *arguments)


def test_no_swarm_and_no_model_say_what_to_do(refused: Callable[..., str]) -> None:
    assert "shardp2p swarm create" in refused()
    assert "shardp2p model list" in refused("--layers", "0:1")


def test_unknown_model_and_wrong_path_are_named(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "there is no model 'frob'" in refused("--model", "frob", "--layers", "0:1")
    assert "nowhere" in refused("--model", tmp_path / "nowhere", "--layers", "0:1")
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in refused("--model", tmp_path / "empty", "--layers", "0:1")


def test_layers_left_out_tells_how_many_there_are(refused: Callable[..., str], tiny: Path) -> None:
    assert "--layers A:B; tiny has 4: 0:4 serves all of them, 0:2 leaves 2:4" in refused("--model", tiny)


@pytest.mark.parametrize(
    ("layers", "said"),
    [("2:5", "which has 4 layers"), ("3:3", "empty"), ("x", "write A:B"), ("2:1", "empty"), ("-1:2", "write A:B")],
)
def test_layers_outside_the_model_are_refused(refused: Callable[..., str], tiny: Path, layers: str, said: str) -> None:
    assert said in refused("--model", tiny, f"--layers={layers}")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--dtype", "int3", "must be one of float32"),
        ("--device", "tpu", "must be cpu, cuda"),
        ("--threads", "-1", "threads is -1"),
        ("--cache-rows", "0", "cache_rows is 0"),
        ("--listen", "localhost:80", "a multiaddr looks like"),
        ("--listen", "/ip4/127.0.0.1/udp/80", "is not plain TCP"),
        ("--listen", "/dns4/localhost/tcp/80", "cannot listen on"),
        ("--config", "nowhere.toml", "there is no settings file"),
        ("--log-level", "loud", "the log level is 'loud'"),
    ],
)
def test_setting_that_cannot_be_is_named(
    refused: Callable[..., str], tiny: Path, option: str, value: str, said: str
) -> None:
    assert said in refused("--model", tiny, "--layers", "0:2", option, value)


def test_truncated_weights_are_found_before_they_are_read(
    refused: Callable[..., str], tiny: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(tiny, tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    line = refused("--model", broken, "--layers", "0:2", code=4)
    assert "model.safetensors" in line
    assert "truncated" in line or "damaged" in line


def test_truncated_weights_of_a_stored_model_say_how_to_repair_it(
    refused: Callable[..., str], tiny: Path, tmp_path: Path
) -> None:
    store = ModelStore(tmp_path / "data" / "models")
    stored = store.import_model(shutil.copytree(tiny, tmp_path / "copy"), "mine")
    weights = stored.directory / "model.safetensors"
    data = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(data[:-1])
    assert "shardp2p model import" in refused("--model", "mine", "--layers", "0:2", code=4)


def test_altered_weights_are_found_while_they_are_read(tiny: Path, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "data" / "models")
    stored = store.import_model(shutil.copytree(tiny, tmp_path / "copy"), "mine")
    weights = stored.directory / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1  # the last tensor of the file: the last norm or a part of the last layer
    weights.unlink()
    weights.write_bytes(data)
    with running(*up(Path("mine"), tmp_path / "data", "--json", layers="0:4")) as process:
        assert process.wait() == (4, "")
        assert "is not what the manifest says" in process.error_line


def test_port_in_use_is_told(refused: Callable[..., str], tiny: Path, stage: StageProcess) -> None:
    listen = stage.address.partition("/p2p/")[0]
    line = refused("--model", tiny, "--layers", "0:2", "--listen", listen)
    assert line.startswith(f"cannot listen on {listen}: another program already uses this port")


def test_second_process_with_the_same_identity_is_refused(
    refused: Callable[..., str], tiny: Path, stage: StageProcess
) -> None:
    arguments = psutil.Process(stage.process.pid).cmdline()
    key = arguments[arguments.index("--identity") + 1]
    line = refused("--model", tiny, "--layers", "0:2", "--identity", key)
    assert f"another shardp2p process (pid {stage.process.pid}) already runs with the identity {key}" in line


def test_ready_stage_says_what_it_is_in_one_object(stage: StageProcess) -> None:
    ready = stage.ready
    assert set(ready) == CONTRACT
    assert ready["pid"] == stage.process.pid
    assert (ready["layers"], ready["dtype"], ready["device"]) == ([1, 3], "bfloat16", "cpu")
    assert ready["addresses"] == [stage.address]
    assert stage.address.endswith(f"/p2p/{stage.peer_id}")
    assert 0 < ready["layer_bytes"] < ready["rss_bytes"]
    assert ready["load_growth_bytes"] > 0


def test_stage_ends_with_0_once_its_stdin_is_closed(tiny: Path, tmp_path: Path) -> None:
    with running_stages(tmp_path, (tiny, "0:2", "float32")) as (only,):
        only.process.close_stdin()
        assert only.process.wait() == (0, "")
        assert has_ended(only.process.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serving_ends_with_0_when_told_to(tiny: Path, tmp_path: Path, number: signal.Signals) -> None:
    with running(*up(tiny, tmp_path)) as process:
        lines = [process.read_line()]
        while lines[-1] != "ready":
            lines.append(process.read_line())
        process.send_signal(number)
        assert process.wait() == (0, "")
        assert "rror" not in process.stderr
    shown = dict(line.split(maxsplit=1) for line in lines[:-1])
    assert shown["peer"].startswith("12D3KooW")
    assert shown["model"] == "tiny, layers 0:2 of 4, float32 on cpu"
    assert shown["client"].startswith(f'shardp2p generate {tiny} "Hello" --peer {shown["address"]}')
    assert shown["client"].endswith(" --peer ADDRESS-OF-LAYERS-2:4")


@pytest.mark.parametrize("is_reached", [handles_signals, imports_torch])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_starting_ends_it_quietly(
    tiny: Path, tmp_path: Path, number: signal.Signals, is_reached: Callable[[int], bool]
) -> None:
    with running(*up(tiny, tmp_path)) as process:
        process.wait_until(is_reached)
        process.send_signal(number)
        assert process.wait() == (128 + number, "")
        assert process.stderr == ""
        assert has_ended(process.pid)


def test_stdin_that_ends_while_starting_ends_it(tiny: Path, tmp_path: Path) -> None:
    with running(*up(tiny, tmp_path, "--json", "--exit-on-stdin-close")) as process:
        process.close_stdin()
        assert process.wait() == (0, "")
        assert process.stderr == ""
