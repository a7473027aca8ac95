"""Lines with colours on stdout: once, or again and again in place until Ctrl-C."""

from __future__ import annotations

import io
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import typer

from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.output import printable

if TYPE_CHECKING:
    from rich.text import Text

Draw = Callable[[int, int], "Sequence[Text]"]
"""The lines for a screen of so many columns and rows."""

REFRESH_S: Final = 1.0
PLAIN_COLUMNS: Final = 120
"""Where stdout is no terminal."""
PLAIN_ROWS: Final = 64


def show(draw: Draw) -> None:
    """Write the lines to stdout, in colours where it is a terminal."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    size = Console().size
    columns, rows = (size.width, max(PLAIN_ROWS, size.height)) if is_terminal else (PLAIN_COLUMNS, PLAIN_ROWS)
    if not is_terminal:
        typer.echo("\n".join(printable(line.plain) for line in draw(columns, rows)))
    else:
        painted = Console(file=io.StringIO(), force_terminal=True, width=columns)
        with painted.capture() as captured:
            for line in draw(columns, rows):
                painted.print(line, overflow="crop", no_wrap=True, soft_wrap=False)
        typer.echo(captured.get(), nl=False)
    sys.stdout.flush()


async def watch(look: Callable[[], Awaitable[Draw]]) -> None:
    """Look and show once a second until Ctrl-C, which is the normal way out; the terminal is as before then.

    Where stdout is no terminal each view follows the last one.
    """
    import trio
    from rich.console import Console, Group
    from rich.live import Live

    interrupts.is_serving = True
    if not sys.stdout.isatty():
        while True:
            show(await look())
            await trio.sleep(REFRESH_S)
    draw = await look()
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            size = live.console.size
            live.update(Group(*draw(size.width, size.height)), refresh=True)
            await trio.sleep(REFRESH_S)
            draw = await look()
