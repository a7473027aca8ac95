"""Settings: a file, then flags; what is wrong is named."""

from __future__ import annotations

import os
from dataclasses import FrozenInstanceError
from pathlib import Path

import platformdirs
import pytest

from shardp2p.config import Settings, UpSettings, default_paths, load_settings, prepare_compute, with_flags
from shardp2p.errors import ConfigError
from shardp2p.vocabulary import LayerRange, ModelId

FULL = """
data_dir = "data"
log_level = "debug"

[up]
model = "smollm2"
layers = "0:15"
listen = ["/ip4/127.0.0.1/tcp/4001"]
peers = ["/ip4/127.0.0.1/tcp/4002/p2p/12D3KooW"]
dtype = "bfloat16"
device = "cuda:1"
threads = 2
cache_rows = 4096
identity = "/keys/second.key"
draft_model = "/models/small"
remembers = false
fast_layout = true
"""


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_every_key_of_the_file_is_read(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, FULL))
    assert settings == Settings(
        paths=default_paths(tmp_path / "data"),
        log_level="debug",
        up=UpSettings(
            model=ModelId("smollm2"),
            layers=LayerRange(0, 15),
            listen=("/ip4/127.0.0.1/tcp/4001",),
            peers=("/ip4/127.0.0.1/tcp/4002/p2p/12D3KooW",),
            dtype="bfloat16",
            device="cuda:1",
            threads=2,
            cache_rows=4096,
            identity=Path("/keys/second.key"),
            draft_model=Path("/models/small"),
            remembers=False,
            fast_layout=True,
        ),
    )


def test_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, "")) == Settings(paths=default_paths())


def test_users_own_file_is_read_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_config_path", lambda _name: tmp_path)
    assert load_settings().up == UpSettings()
    write(tmp_path, "[up]\nthreads = 3")
    assert load_settings().up == UpSettings(threads=3)


def test_named_data_directory_replaces_that_of_the_file(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, 'data_dir = "/elsewhere"'), data_dir=tmp_path / "here")
    assert settings.paths.models_dir == tmp_path / "here" / "models"
    assert settings.paths.identity_file == tmp_path / "here" / "identity.key"


def test_home_directories_are_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = write(tmp_path, "data_dir = '~/models'\n[up]\nidentity = '~/keys/one.key'")
    settings = load_settings(file)
    assert settings.paths.data_dir == tmp_path / "home" / "models"
    assert settings.up.identity == tmp_path / "home" / "keys" / "one.key"
    assert default_paths(Path("~/here")).data_dir == tmp_path / "home" / "here"


def test_data_directory_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'~nobody-has-this-name/x' is no path: there is no such user"):
        load_settings(data_dir=Path("~nobody-has-this-name/x"))


def test_relative_path_from_a_directory_that_is_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="'here' is no path"):
        default_paths(Path("here"))


def test_place_of_the_users_own_file_may_be_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(platformdirs, "user_config_path", lambda _name: tmp_path / "file")
    assert load_settings() == Settings(paths=default_paths())


def test_naming_paths_creates_nothing(tmp_path: Path) -> None:
    default_paths(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[up]\nlayrs = '0:15'", ["up.layrs", "up.layers"]),
        ("[upp]\nmodel = 'smollm2'", ["upp", "did you mean up?"]),
        ("model = 'smollm2'", ["unknown setting model", "did you mean up.model?"]),
        ("up = 3", ["up is 3", "a table"]),
        ("[up]\nthreads = '2'", ["up.threads", "a whole number"]),
        ("[up]\nthreads = true", ["up.threads", "a whole number"]),
        ("[up]\nthreads = -1", ["threads is -1"]),
        ("[up]\nlayers = 15", ["up.layers", "a text"]),
        ("[up]\nlayers = '15'", ["no layer range"]),
        ("[up]\nlisten = '/ip4/127.0.0.1/tcp/1'", ["up.listen", "a list of texts"]),
        ("[up]\nlisten = [1]", ["up.listen", "a list of texts"]),
        ("[up]\nlisten = []", ["listen is empty"]),
        ("[up]\npeers = ['127.0.0.1:4001']", ["peers has '127.0.0.1:4001'"]),
        ("[up]\ndtype = 'float64'", ["dtype is 'float64'", "bfloat16"]),
        ("[up]\ndevice = 'tpu'", ["device is 'tpu'"]),
        ("log_level = 'loud'", ["log_level is 'loud'"]),
        ("[up\n", ["not TOML", "line 1"]),
        ("a = " + "[" * 100_000, ["not TOML"]),
        ("data_dir = '~nobody-has-this-name/x'", ["data_dir: ", "no path: there is no such user"]),
        ('data_dir = "a\\u0000b"', ["data_dir: ", "no path: it has a NUL in it"]),
        ("[up]\nidentity = '~nobody-has-this-name/x'", ["up.identity: ", "no path"]),
        ('[up]\nidentity = "a\\u0000b"', ["up.identity: ", "no path"]),
    ],
)
def test_mistake_in_the_file_is_named(tmp_path: Path, text: str, named: list[str]) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    for part in [str(file), *named]:
        assert part in caught.value.message
    assert caught.value.message.count(str(file)) == 1


def test_bytes_that_are_no_text_are_no_settings(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_settings(file)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no settings file .*absent\.toml"):
        load_settings(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot read the settings file"):
        load_settings(tmp_path)


def test_flag_replaces_the_file_and_a_flag_not_given_does_not() -> None:
    from_file = UpSettings(threads=2, listen=("/ip4/127.0.0.1/tcp/1",), device="cuda")
    settings = with_flags(from_file, threads=4, listen=[], device=None, peers=["/ip4/127.0.0.1/tcp/2"])
    assert settings == UpSettings(
        threads=4, listen=("/ip4/127.0.0.1/tcp/1",), device="cuda", peers=("/ip4/127.0.0.1/tcp/2",)
    )


def test_zero_is_a_flag_that_was_given() -> None:
    assert with_flags(UpSettings(threads=2), threads=0).threads == 0


def test_flag_is_checked_as_the_file_is() -> None:
    with pytest.raises(ConfigError, match="dtype is 'int4'"):
        with_flags(UpSettings(), dtype="int4")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        UpSettings().threads = 3  # type: ignore[misc]


def test_waiting_compute_threads_sleep_unless_the_user_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    prepare_compute()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    prepare_compute()
    assert os.environ["OMP_WAIT_POLICY"] == "active"


@pytest.mark.parametrize(
    ("field", "option", "example"),
    [("peers", "--peer", "/p2p/PEER-ID"), ("listen", "--listen", "/tcp/4001"), ("announce", "--announce", "/tcp/4001")],
)
def test_an_address_that_is_none_is_told_by_its_option_with_an_example(field: str, option: str, example: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_flags(UpSettings(), **{field: ["foo"]})
    assert caught.value.message.startswith(f"{option} has 'foo'; a multiaddr looks like /ip4/")
    assert caught.value.message.endswith(example)
