"""What `shardp2p coverage` shows: a bar over the layers for each range that a peer holds. Pure.

Every cell has a letter beside its colour, so that it reads without colours, on paper and by the colour-blind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from shardp2p.cli.columns import GAP, clipped, milliseconds, short_peer
from shardp2p.scheduler.coverage import HeldPart, ModelCoverage, chosen_parts
from shardp2p.scheduler.holders import named
from shardp2p.vocabulary import LayerRange, PeerId

ID_CHARACTERS: Final = 9
MAX_CELLS_PER_LAYER: Final = 4
LEAST_BAR: Final = 16
TICK_CHARACTERS: Final = 6
LINES_BESIDE: Final = 8
"""What stands above and below the bars."""
MANY: Final = 9
"""More holders than a digit tells."""

GONE: Final = ("?", "dim")
MARKS: Final = {
    "serving": ("S", "black on green"),
    "loading": ("L", "black on yellow"),
    "placing": ("L", "black on yellow"),
    "draining": ("D", "white on magenta"),
}
MISSING: Final = ("-", "bold red")
LEGEND: Final = (
    (*MARKS["serving"], "serving"),
    (*MARKS["loading"], "loading"),
    (*MARKS["draining"], "draining"),
    (*GONE, "does not answer"),
    (*MISSING, "missing"),
)


def screen_lines(coverage: ModelCoverage, rtts_s: Mapping[PeerId, float], columns: int, rows: int) -> list[Text]:
    """The view for a screen of that size."""
    return coverage_lines(coverage, rtts_s, columns, max(1, rows - LINES_BESIDE))


def coverage_lines(coverage: ModelCoverage, rtts_s: Mapping[PeerId, float], width: int, most_rows: int) -> list[Text]:
    """The whole view in lines of at most `width` characters, with at most `most_rows` bars."""
    parts = chosen_parts(coverage, most_rows)
    details = [_details(part, rtts_s, width) for part in parts]
    widths = [max(map(len, column)) for column in zip(*details, strict=True)] if details else []
    detail_width = sum(len(GAP) + column for column in widths if column)
    bar = Bar(coverage.model.layers, max(LEAST_BAR, width - ID_CHARACTERS - len(GAP) - detail_width))
    lines = [*_head(coverage, width), Text()]
    lines.append(Text(" " * (ID_CHARACTERS + len(GAP)) + bar.scale(), style="dim"))
    lines.append(Text("holders".ljust(ID_CHARACTERS) + GAP).append_text(_sum(coverage, bar)))
    for part, cells in zip(parts, details, strict=True):
        line = Text(short_peer(part.seen.record.peer_id) + GAP)
        line.append_text(bar.draw(part.held.layers, *mark_of(part)))
        shown = [cell.rjust(column) for cell, column in zip(cells, widths, strict=True) if column]
        lines.append(line.append("".join(GAP + cell for cell in shown)))
    if len(parts) < len(coverage.parts):
        lines.append(Text(f"and {len(coverage.parts) - len(parts):,} more", style="dim"))
    lines += [Text(), _legend()]
    for line in lines:
        line.truncate(width)
    return lines


def coverage_object(coverage: ModelCoverage) -> dict[str, Any]:
    """What `--json` says of the same."""
    return {
        "model": coverage.model.name,
        "digest": coverage.model.digest,
        "layers": coverage.model.layers,
        "complete": coverage.is_complete,
        "missing": [[gap.start, gap.stop] for gap in coverage.missing],
        "min_holders": coverage.min_holders,
        "holders": [_part_object(part) for part in coverage.parts],
    }


def mark_of(part: HeldPart) -> tuple[str, str]:
    """The letter and the style of a bar."""
    return MARKS[part.state] if part.seen.is_live else GONE


class Bar:
    """Layers on a line: several cells for a layer where there is room, several layers in a cell where there is not."""

    def __init__(self, layers: int, room: int) -> None:
        self._layers = layers
        self._per_layer = min(MAX_CELLS_PER_LAYER, room // layers)
        self.width = self._per_layer * layers if self._per_layer else room

    def draw(self, held: LayerRange, letter: str, style: str) -> Text:
        """A bar over the cells of `held`, and nothing elsewhere; a cell that holds only part of it is drawn too."""
        start, stop = self._cell(held.start), self._cell(held.stop - 1, is_end=True)
        bar = Text(" " * start)
        bar.append(letter * (stop - start), style)
        return bar.append(" " * (self.width - stop))

    def layers_at(self, cell: int) -> range:
        """The layers that a cell stands for."""
        if self._per_layer:
            return range(cell // self._per_layer, cell // self._per_layer + 1)
        start = cell * self._layers // self.width
        return range(start, max(start + 1, (cell + 1) * self._layers // self.width))

    def scale(self) -> str:
        """Layer numbers above the cells where those layers begin."""
        steps = (factor * 10**power for power in range(5) for factor in (1, 2, 5))
        step = next(step for step in steps if step * self.width >= TICK_CHARACTERS * self._layers)
        line = ""
        for layer in range(0, self._layers, step):
            line = line.ljust(self._cell(layer)) + str(layer)
        return line[: self.width]

    def _cell(self, layer: int, *, is_end: bool = False) -> int:
        """The first cell of a layer, or the one after its last."""
        if self._per_layer:
            return (layer + is_end) * self._per_layer
        # The cell c stands for the layers from c × layers ÷ width on.
        return ((layer + 1) * self.width - 1) // self._layers + is_end


def _head(coverage: ModelCoverage, width: int) -> list[Text]:
    model = coverage.model
    line = Text(clipped(model.name, max(8, width - 40)), style="bold")
    line.append(f"  {model.layers} layers  {model.digest[:12]}", "not bold")
    if coverage.is_complete:
        peers = "1 peer" if coverage.min_holders == 1 else f"{coverage.min_holders} peers"
        return [line, Text(f"complete: every layer is served by {peers} or more", style="green")]
    gaps = coverage.missing
    shown, more = gaps[:4], len(gaps) - 4
    text = f"incomplete: nobody serves {named(shown)}" + (f" and {more} more ranges" if more > 0 else "")
    on_its_way = [layer for gap in gaps for layer in range(gap.start, gap.stop) if coverage.loading[layer]]
    if on_its_way:
        text += f"; {len(on_its_way)} of these layers are being loaded"
    return [line, Text(text, style="red")]


def _sum(coverage: ModelCoverage, bar: Bar) -> Text:
    """How many serve each layer; of the layers of one cell the scarcest counts."""
    line = Text()
    for cell in range(bar.width):
        layers = bar.layers_at(cell)
        scarcest = min(layers, key=lambda layer: (coverage.serving[layer], coverage.loading[layer]))
        count = coverage.serving[scarcest]
        if count:
            line.append(str(count) if count <= MANY else "+", "green")
        elif coverage.loading[scarcest]:
            line.append(*MARKS["loading"])
        elif coverage.draining[scarcest]:
            line.append(*MARKS["draining"])
        else:
            line.append(*MISSING)
    return line


def _details(part: HeldPart, rtts_s: Mapping[PeerId, float], width: int) -> Sequence[str]:
    record, held = part.seen.record, part.held
    cells = [str(held.layers), milliseconds(held.decode_layer_s), record.reachability]
    if width >= 100:
        cells += [milliseconds(rtts_s.get(record.peer_id)), f"{held.free_cache_rows}/{held.cache_rows} rows"]
        cells.append(clipped(record.region, 12))
    return cells


def _legend() -> Text:
    line = Text()
    for number, (letter, style, word) in enumerate(LEGEND):
        line.append(GAP if number else "").append(letter, style).append(f" {word}", "dim")
    return line


def _part_object(part: HeldPart) -> dict[str, Any]:
    record, held = part.seen.record, part.held
    return {
        "peer_id": record.peer_id,
        "layers": [held.layers.start, held.layers.stop],
        "state": part.state,
        "is_live": part.seen.is_live,
        "reachability": record.reachability,
        "region": record.region,
        "dtype": held.dtype,
        "decode_layer_ms": round(1e3 * held.decode_layer_s, 4),
        "prefill_layer_ms": round(1e3 * held.prefill_layer_s, 4),
        "cache_rows": held.cache_rows,
        "free_cache_rows": held.free_cache_rows,
        "addresses": list(record.addresses),
    }
