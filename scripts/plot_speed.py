"""Draw docs/plots from simulations: how fast each scheme of drafting is, over lap time and over acceptance.

    python scripts/plot_speed.py [DIRECTORY]

It needs matplotlib: pip install 'shardp2p[plots]'.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from matplotlib import pyplot as plt

from shardp2p.lab.emulation.arms import arms
from shardp2p.lab.emulation.comparison import prompt
from shardp2p.lab.emulation.language import Language
from shardp2p.lab.emulation.profile import Profile, parse_profile
from shardp2p.lab.emulation.simulation import simulate
from shardp2p.lab.network.catalog import read_text

TEXTS: Final = 3
TOKENS: Final = 200
ACCEPT: Final = 0.74
HOPS_MS: Final = (10, 25, 50, 100, 200, 400)
ACCEPTS: Final = (0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 0.95)
NAMES: Final = {"tree": "pipelined tree", "sync_tree": "synchronous tree", "flush": "flush", "plain": "plain"}


def rate(ring: Profile, accept: float, name: str) -> float:
    """Tokens a second of a scheme, the median over some texts."""
    language, arm = Language(accept), arms(accept)[name]
    runs = [simulate(ring, language, arm, prompt_tokens=prompt(0, at), max_tokens=TOKENS) for at in range(TEXTS)]
    return median(run.tok_s for run in runs)


def draw(file: Path, title: str, axis: str, values: Sequence[float], rate_at: Callable[[float, str], float]) -> None:
    """One picture: a line for each scheme."""
    figure, axes = plt.subplots(figsize=(7, 4.2), dpi=110)
    for name, label in NAMES.items():
        axes.plot(values, [rate_at(value, name) for value in values], marker="o", label=label)
    axes.set(title=title, xlabel=axis, ylabel="tokens a second", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    if axis.endswith("ms"):
        axes.set_xscale("log")
        axes.set_xticks(list(values), [f"{value:g}" for value in values])
        axes.xaxis.set_minor_locator(plt.NullLocator())
    figure.tight_layout()
    figure.savefig(file, metadata={"Software": None})
    plt.close(figure)


def main(directory: Path) -> None:
    """Both pictures."""
    directory.mkdir(parents=True, exist_ok=True)
    ring = parse_profile("gpt-oss", read_text("gpt-oss"))

    def at_lap(hops_ms: float, name: str) -> float:
        scale = hops_ms / 1e3 / ring.hops_s
        far = replace(ring, one_way_s={pair: way_s * scale for pair, way_s in ring.one_way_s.items()})
        return rate(far, ACCEPT, name)

    draw(
        directory / "speed-over-lap.png", f"Ring of gpt-oss, first guess right {ACCEPT}", "the way of a lap, ms",
        HOPS_MS, at_lap,
    )  # fmt: skip
    draw(
        directory / "speed-over-acceptance.png", f"Ring of gpt-oss, a lap's way {1e3 * ring.hops_s:.0f} ms",
        "how often the first guess is right", ACCEPTS, lambda accept, name: rate(ring, accept, name),
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/plots"))
