"""Short words for what peers say, and lines of aligned columns that fit a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from shardp2p.cli.output import one_line

if TYPE_CHECKING:
    from rich.text import Text

SHORT_CHARACTERS: Final = 8
GAP: Final = "  "


def short_peer(peer_id: str) -> str:
    """The end of a peer id: all begin alike."""
    return "…" + peer_id[-SHORT_CHARACTERS:]


def milliseconds(seconds: float | None) -> str:
    """A time with three digits that count; empty where nothing was measured."""
    if not seconds:
        return ""
    ms = 1e3 * seconds
    return f"{ms:.{0 if ms >= 100 else 1 if ms >= 10 else 2}f} ms"


def gibibytes(count: int) -> str:
    """A size with two or three digits that count."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.{0 if count >= 10 * size else 1}f} {unit}"
    return f"{count / 2**10:.0f} KiB"


def clipped(text: str, width: int) -> str:
    """`text` as one safe line of at most `width` characters."""
    safe = one_line(text)
    return safe if len(safe) <= width else safe[: width - 1] + "…"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, right: frozenset[str]) -> list[Text]:
    """`head` and `rows` as lines of at most `width` characters; columns named in `right` are numbers.

    Columns that are empty in every row are left out, and so are the last ones that no longer fit.
    """
    from rich.text import Text

    widths = [max([len(name), *(len(row[at]) for row in rows)]) for at, name in enumerate(head)]
    shown: list[int] = []
    used = 0
    for at in range(len(head)):
        if rows and not any(row[at] for row in rows):
            continue
        used += widths[at] + (len(GAP) if shown else 0)
        if used > width:
            break
        shown.append(at)

    def line(cells: Sequence[str], style: str = "") -> Text:
        put = [cells[at].rjust(widths[at]) if head[at] in right else cells[at].ljust(widths[at]) for at in shown]
        return Text(GAP.join(put).rstrip(), style=style, no_wrap=True)

    return [line(head, "dim"), *(line(row) for row in rows)]
