"""Commands that a text tells its reader to run here: they go on with the data directory that was given to this one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from shardp2p.errors import ConfigError

_COMMAND = re.compile(
    r"(?:(?<=: )|(?<=with `)|^)shardp2p (?:(?:swarm|model) [a-z]+|up|generate|chat|coverage|peers|plan|status)\b[^`;,]*"
)
_given: list[Path] = []
"""The data directory of the command that runs, where one was given."""


def parse_data_dir(given: str) -> Path:
    """What `--data-dir` says. Raises: ConfigError for a file, and for nothing: that would be the current directory."""
    if not given:
        raise ConfigError("--data-dir is empty; name a directory, or leave it out")
    path = Path(given)
    if path.is_file():
        raise ConfigError(f"--data-dir {given} is a file; name a directory, which may be new")
    return path


def note_data_dir(given: Path | None) -> Path | None:
    """Keep what `--data-dir` says, and give it back: as an option's callback does."""
    _given[:] = [] if given is None else [given]
    return given


def hinted(text: str) -> str:
    """`text` with --data-dir at the end of each command at its start, after `: `, or in backticks after `with`."""
    if not _given:
        return text
    option = f"--data-dir {shlex.quote(str(_given[0]))}"
    return _COMMAND.sub(lambda found: f"{found[0]} {option}", text)
