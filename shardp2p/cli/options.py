"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Keep everything there, not in the user's own place.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error; logs go to stderr.")]
