"""How `bench wan` and `lab simulate` show the schemes that they compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe_arms(measured: Mapping[str, Any]) -> str:
    """A line for each scheme, and what the pipelined tree gains."""
    arms = measured["arms"]
    width = max(map(len, arms))
    lines = [f"{measured['profile']}, {measured['runtime']}, first guesses right {measured['accept']:.2f}", ""]
    for name, arm in arms.items():
        line = f"{name:{width}}  {arm['tok_s']:7.2f} tokens/s  {arm['accepted_per_lap']:6.2f} a lap"
        if "tok_s_min" in arm:
            line += f"  ({arm['tok_s_min']:.2f} to {arm['tok_s_max']:.2f})"
        lines.append(line + ("" if arm["exact"] else "  NOT EXACT"))
    lines += [
        "",
        f"a lap takes {measured['lap_ms']:.1f} ms; the best that the simulation finds: {measured['bound_tok_s']:.2f}",
    ]
    if "tree" in arms:
        lines += [
            f"tree against {name}: x {arms['tree']['tok_s'] / arm['tok_s']:.2f}"
            for name, arm in arms.items()
            if name != "tree"
        ]
    return "".join(line + "\n" for line in lines)
