"""docs/nat-matrix.md from what `shardp2p lab run nat-matrix --json` prints, on stdin."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

HEAD = """\
# Which way two peers find
To make this page anew: `shardp2p lab run nat-matrix --json | python scripts/nat_matrix_table.py > docs/nat-matrix.md`.

Each cell is a swarm of its own: a public peer that holds no layers and relays, and two peers, behind routers of these
kinds ([lab.md](lab.md)), that hold half of the model each, so that every token passes between them. A client beside the
public peer asks. Everything runs on one machine: the times contain loading the model, computing, and whatever else the
machine does meanwhile.

`double` is a cone behind another one; `open` has a public address; `reset` answers unasked packets with RST.
"""


def main() -> None:
    """Write the page to stdout."""
    found = json.load(sys.stdin)
    sys.stdout.write("\n".join([HEAD, *_conditions(found["conditions"]), "", *_table(found["cells"]), ""]))


def _conditions(said: dict[str, Any]) -> Iterator[str]:
    line = f"{said['rtt_ms']:g} ms round trip, {said['jitter_ms']:g} ms jitter, {said['loss']:.0%} loss"
    yield f"Here, between any two sites: {line}; {said['model']}, {said['tokens']} tokens, greedy."
    yield "Times are seconds from the start of both peers: to the first whole answer, and to the path that stayed."


def _table(cells: list[dict[str, Any]]) -> Iterator[str]:
    yield "| a | b | path | must be | exact | answer | path found |"
    yield "|---|---|---|---|---|---|---|"
    for cell in cells:
        times = [f"{cell[name]:.1f}" if cell[name] is not None else "–" for name in ("answer_s", "final_path_s")]
        exact = "yes" if cell["exact"] else "**no**"
        path = cell["path"] if cell["path"] == cell["expected"] else f"**{cell['path']}**"
        row = [cell["a"], cell["b"].removesuffix("2"), path, cell["expected"], exact, *times]
        yield "| " + " | ".join(row) + " |"
    right = sum(cell["path"] == cell["expected"] and cell["exact"] for cell in cells)
    yield f"\n{right} of {len(cells)} found the way that there is and answered exactly."


if __name__ == "__main__":
    main()
