"""One frozen tree of settings, and the only reader of settings files and of the environment.

A TOML file is read first, then flags replace what it says; secrets, where there are any, come from the environment
in between. The file is `--config FILE`, or config.toml in the user's configuration directory where it exists:

    data_dir = "/srv/shardp2p"

    [up]
    model = "smollm2"
    layers = "0:15"
    listen = ["/ip4/127.0.0.1/tcp/4001"]

    [relay]
    bytes_per_s = 4000000
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, cast, get_args

import platformdirs

from shardp2p.errors import ConfigError
from shardp2p.vocabulary import DType, LayerRange, ModelId, parse_bytes, parse_region

LogLevel = Literal["debug", "info", "warning", "error"]
RelayMode = Literal["auto", "on", "off"]
"""Whether a peer relays for others: where anybody can dial it, always, never."""

COMPUTE_DEFAULTS: Mapping[str, str] = {"OMP_WAIT_POLICY": "passive"}
"""What `prepare_compute` sets."""

_OPTIONS: Mapping[str, str] = {"listen": "--listen", "peers": "--peer", "announce": "--announce"}
"""What the options are called whose fields hold multiaddrs."""
_EXAMPLES: Mapping[str, str] = {
    "listen": "/ip4/127.0.0.1/tcp/4001",
    "peers": "/ip4/192.0.2.7/tcp/4001/p2p/PEER-ID",
    "announce": "/ip4/192.0.2.7/tcp/4001",
}

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


@dataclass(frozen=True, slots=True)
class Paths:
    """Where this user's files lie. Nothing here is created by being named."""

    data_dir: Path
    models_dir: Path
    identity_file: Path
    swarms_dir: Path
    run_dir: Path


@dataclass(frozen=True, slots=True)
class UpSettings:
    """What `shardp2p up` serves and how. None means: not said.

    `listen`, `peers` and `announce` are multiaddrs; `threads` 0 leaves the number of compute threads to torch;
    `identity` is the key file that stands in for `Paths.identity_file`. `cache_rows` are token positions, for all
    requests together. `draft_model` drafts for what this peer drives; unless it `remembers`, it keeps no answers to
    guess later ones from. With a `fast_layout`, float32 results on the CPU may differ in their last bits.
    """

    model: ModelId | None = None
    layers: LayerRange | None = None
    listen: tuple[str, ...] | None = None
    peers: tuple[str, ...] = ()
    announce: tuple[str, ...] = ()
    dtype: DType = "float32"
    device: str = "cpu"
    threads: int = 0
    cache_rows: int = 16384
    memory_bytes: int | None = None
    region: str = ""
    relay: RelayMode = "auto"
    identity: Path | None = None
    draft_model: Path | None = None
    remembers: bool = True
    fast_layout: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in get_args(DType):
            raise ConfigError(f"dtype is {self.dtype!r}; it must be one of {', '.join(get_args(DType))}")
        if not _DEVICE.fullmatch(self.device):
            raise ConfigError(f"device is {self.device!r}; it must be cpu, cuda or cuda:N")
        if not 0 <= self.threads <= 1024:
            raise ConfigError(f"threads is {self.threads}; it must be between 0 (torch decides) and 1024")
        if not 1 <= self.cache_rows < 2**31:
            raise ConfigError(f"cache_rows is {self.cache_rows}; it must be at least 1, for all requests together")
        if self.relay not in get_args(RelayMode):
            raise ConfigError(f"relay is {self.relay!r}; it must be one of {', '.join(get_args(RelayMode))}")
        if self.listen == ():
            raise ConfigError("listen is empty; name at least one multiaddr, for example /ip4/127.0.0.1/tcp/0")
        for name in _EXAMPLES:
            _check_addresses(name, name, getattr(self, name) or ())

    def listen_addresses(self, *, in_swarm: bool) -> tuple[str, ...]:
        """Where to listen: as was said, else on every interface for a swarm, and for this machine alone without one."""
        return self.listen or ("/ip4/0.0.0.0/tcp/0" if in_swarm else "/ip4/127.0.0.1/tcp/0",)


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """What a peer that relays lends to others. `circuit_bytes` and `circuit_s` of 0 mean: no limit.

    `reservations_per_network` is per /24 (IPv6: /48), so that one place cannot take them all; `bytes_per_s` is for all
    circuits together, both directions counted, and shared fairly among them.
    """

    reservations: int = 128
    reservations_per_network: int = 32
    reservation_s: float = 3600.0
    circuits: int = 256
    circuits_per_peer: int = 32
    circuit_bytes: int = 0
    circuit_s: float = 0.0
    bytes_per_s: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("reservations", "reservations_per_network", "circuits", "circuits_per_peer"):
            if not 1 <= getattr(self, name) <= 65536:
                raise ConfigError(f"relay {name} is {getattr(self, name)}; it must be between 1 and 65536")
        if not 10 <= self.reservation_s <= 86400:
            raise ConfigError(f"relay reservation_s is {self.reservation_s}; it must be between 10 and 86400")
        if not self.bytes_per_s >= 65536:
            raise ConfigError(f"relay bytes_per_s is {self.bytes_per_s}; below 65536 no peer can work over it")
        if not (self.circuit_bytes >= 0 and self.circuit_s >= 0):
            raise ConfigError("relay circuit_bytes and circuit_s must be 0 (no limit) or more")


@dataclass(frozen=True, slots=True)
class ReachSettings:
    """How others reach a peer, and how it helps them to be reached. `announce` are multiaddrs that the user knows."""

    announce: tuple[str, ...] = ()
    relay: RelayMode = "auto"
    limits: RelayLimits = field(default_factory=RelayLimits)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set, read once and passed down in parts."""

    paths: Paths
    log_level: LogLevel = "info"
    up: UpSettings = field(default_factory=UpSettings)
    relay: RelayLimits = field(default_factory=RelayLimits)

    def __post_init__(self) -> None:
        if self.log_level not in get_args(LogLevel):
            raise ConfigError(f"log_level is {self.log_level!r}; it must be one of {', '.join(get_args(LogLevel))}")


def _check_addresses(name: str, field_name: str, addresses: Iterable[str]) -> None:
    """Raises: ConfigError for what cannot be a multiaddr, in what the user calls `name`."""
    for address in addresses:
        if not address.startswith("/"):
            raise ConfigError(f"{name} has {address!r}; a multiaddr looks like {_EXAMPLES[field_name]}")


def default_paths(data_dir: Path | None = None) -> Paths:
    """The paths under `data_dir`, or under the user's own data directory."""
    root = user_path(data_dir or platformdirs.user_data_path("shardp2p"))
    return Paths(
        data_dir=root,
        models_dir=root / "models",
        identity_file=root / "identity.key",
        swarms_dir=root / "swarms",
        run_dir=root / "run",
    )


def user_path(path: str | Path) -> Path:
    """The absolute path that a user means by `path`, with ~ and ~NAME in full.

    Raises: ConfigError where it cannot be a path, or stands for no place on this machine.
    """
    try:
        if "\0" in str(path):
            raise ValueError("it has a NUL in it")
        return Path(path).expanduser().absolute()
    except (OSError, RuntimeError, ValueError) as error:
        reason = "there is no such user" if isinstance(error, RuntimeError) else error
        raise ConfigError(f"{str(path)!r} is no path: {reason}") from error


def load_settings(file: Path | None = None, *, data_dir: Path | None = None) -> Settings:
    """The settings of `file`, or of the user's config.toml where there is one. A `data_dir` replaces the file's.

    Raises: ConfigError that names the file and the key: no such file, no TOML, an unknown key, a wrong type or value.
    """
    path = file or platformdirs.user_config_path("shardp2p") / "config.toml"
    top = _Table(_read_toml(path, may_be_absent=file is None), path)
    up, relay = top.table("up"), top.table("relay")
    file_data_dir = top.path("data_dir")
    paths = default_paths(data_dir or file_data_dir)
    try:
        settings = Settings(
            paths=paths,
            log_level=cast(LogLevel, top.text("log_level", "info")),
            up=_up_settings(up),
            relay=_relay_limits(relay),
        )
    except ConfigError as error:
        if str(path) in error.message:
            raise
        raise ConfigError(f"{path}: {error.message}") from error
    up.refuse_unknown_keys()
    relay.refuse_unknown_keys()
    top.refuse_unknown_keys()
    return settings


def prepare_compute() -> None:
    """Set what the compute libraries read from the environment when they are first imported; call it before that.

    Idle OpenMP threads sleep instead of spinning (OMP_WAIT_POLICY): a ring's stages compute in turn, often on one
    machine, and a stage that waits must not take the cores of the one that works. What the user set stays.
    """
    for name, value in COMPUTE_DEFAULTS.items():
        os.environ.setdefault(name, value)


def environment_now() -> dict[str, str]:
    """This process's environment, as another one is to have it."""
    return dict(os.environ)


def replace_environment(values: Mapping[str, str]) -> None:
    """Give this process `values` as its whole environment, as if it had been started with them."""
    os.environ.clear()
    os.environ.update(values)


def with_flags(settings: UpSettings, **flags: Any) -> UpSettings:
    """`settings` with each flag that was given in place of its field; None and an empty sequence are flags not given.

    Raises: ConfigError for a value that is not allowed.
    """
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in flags.items()
        if value is not None and value not in ((), [])
    }
    for name, option in _OPTIONS.items():
        _check_addresses(option, name, given.get(name, ()))
    return replace(settings, **given)


def _up_settings(table: _Table) -> UpSettings:
    defaults = UpSettings()
    model = table.text("model", "")
    layers = table.text("layers", "")
    memory = table.text("memory", "")
    return UpSettings(
        model=ModelId(model) if model else None,
        layers=LayerRange.parse(layers) if layers else None,
        listen=table.texts("listen", defaults.listen),
        peers=table.texts("peers", defaults.peers),
        announce=table.texts("announce", defaults.announce),
        dtype=cast(DType, table.text("dtype", defaults.dtype)),
        device=table.text("device", defaults.device),
        threads=table.number("threads", defaults.threads),
        cache_rows=table.number("cache_rows", defaults.cache_rows),
        memory_bytes=parse_bytes(memory) if memory else None,
        region=parse_region(table.text("region", "")),
        relay=cast(RelayMode, table.text("relay", defaults.relay)),
        identity=table.path("identity"),
        draft_model=table.path("draft_model"),
        remembers=table.switch("remembers", defaults.remembers),
        fast_layout=table.switch("fast_layout", defaults.fast_layout),
    )


def _relay_limits(table: _Table) -> RelayLimits:
    defaults = RelayLimits()
    return RelayLimits(
        reservations=table.number("reservations", defaults.reservations),
        reservations_per_network=table.number("reservations_per_network", defaults.reservations_per_network),
        reservation_s=table.number("reservation_s", int(defaults.reservation_s)),
        circuits=table.number("circuits", defaults.circuits),
        circuits_per_peer=table.number("circuits_per_peer", defaults.circuits_per_peer),
        circuit_bytes=table.number("circuit_bytes", defaults.circuit_bytes),
        circuit_s=table.number("circuit_s", int(defaults.circuit_s)),
        bytes_per_s=table.number("bytes_per_s", defaults.bytes_per_s),
    )


def _read_toml(path: Path, *, may_be_absent: bool) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        if may_be_absent:
            return {}
        raise ConfigError(f"there is no settings file {path}; create it, or leave --config out") from error
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


_Texts = TypeVar("_Texts", tuple[str, ...], None, tuple[str, ...] | None)


class _Table:
    """A TOML table that remembers which keys were asked for, so that a mistyped one is noticed."""

    def __init__(
        self, values: Mapping[str, object], file: Path, section: str = "", parent: _Table | None = None
    ) -> None:
        self._values = values
        self._file = file
        self._section = section
        self._known: list[str] = parent._known if parent else []  # full names, of all tables of the file

    def text(self, key: str, default: str) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            self._refuse(key, "a text")
        return value

    def number(self, key: str, default: int) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(key, "a whole number")
        return value

    def switch(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            self._refuse(key, "true or false")
        return value

    def texts(self, key: str, default: _Texts) -> tuple[str, ...] | _Texts:
        value = self._take(key, default)
        if value is default:
            return default
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._refuse(key, "a list of texts")
        return tuple(value)

    def path(self, key: str) -> Path | None:
        """The path under `key`; a relative one is meant from the settings file's own directory."""
        value = self.text(key, "")
        if not value:
            return None
        try:
            # ~ first: after the directory it would be a name like any other.
            return user_path(value if value.startswith("~") else self._file.absolute().parent / value)
        except ConfigError as error:
            raise ConfigError(f"{self._file}: {self._name(key)}: {error.message}") from error

    def table(self, key: str) -> _Table:
        value = self._take(key, {})
        if not isinstance(value, dict):
            self._refuse(key, "a table")
        return _Table(value, self._file, key, self)

    def refuse_unknown_keys(self) -> None:
        """Raise ConfigError for the first key that nobody asked for."""
        for key in self._values:
            if self._name(key) not in self._known:
                by_last_part = {name.rpartition(".")[2]: name for name in self._known}
                nearest = difflib.get_close_matches(key, by_last_part, n=1, cutoff=0.0)[0]
                hint = f"did you mean {by_last_part[nearest]}?"
                raise ConfigError(f"{self._file}: unknown setting {self._name(key)}; {hint}")

    def _take(self, key: str, default: object) -> object:
        self._known.append(self._name(key))
        return self._values.get(key, default)

    def _refuse(self, key: str, wanted: str) -> NoReturn:
        raise ConfigError(f"{self._file}: {self._name(key)} is {self._values[key]!r}; it must be {wanted}")

    def _name(self, key: str) -> str:
        return f"{self._section}.{key}" if self._section else key
