"""What `bench wan` and `lab simulate` share: which schemes of drafting on which ring, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shardp2p.errors import ConfigError

if TYPE_CHECKING:
    from shardp2p.lab.emulation.profile import Profile, Ways

MOST_TOKENS: Final = 16_384
"""Of an answer: an emulated cache has twice as many rows."""

PROFILE_HELP = "Who is how far apart: glm52, gpt-oss, or a file; with a real model three-50ms, or any."
ProfileName = Annotated[str, typer.Option("--profile", help="Who is how far apart: glm52, gpt-oss, or a file.")]
Accept = Annotated[float, typer.Option("--accept", help="How often the draft's first guess is right, between 0 and 1.")]
Schemes = Annotated[list[str] | None, typer.Option("--arm", help="Only plain, flush, sync_tree or tree; repeatable.")]
Rounds = Annotated[int, typer.Option("--rounds", help="Texts that every scheme answers, in turn.")]
Tokens = Annotated[int, typer.Option("--tokens", help="Length of each answer, from 32.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same texts.")]


def choose(
    profile: str, accept: float, names: Sequence[str] | None, rounds: int, tokens: int
) -> tuple[Profile, list[str]]:
    """The ring and the schemes that were asked for. Raises: ConfigError."""
    _check_lengths(rounds, tokens)
    if not 0 < accept < 1:
        raise ConfigError(f"--accept is {accept:g}; it must be above 0 and below 1")
    from shardp2p.lab.emulation.arms import choose_arms
    from shardp2p.lab.emulation.profile import parse_profile
    from shardp2p.lab.network.catalog import read_text

    chosen = choose_arms(names or (), accept)
    return parse_profile(profile, read_text(profile)), chosen


def choose_far(profile: str, names: Sequence[str] | None, rounds: int, tokens: int) -> tuple[Ways, list[str]]:
    """The ways and the schemes of a ring with a real model; without names plain and the tree. Raises: ConfigError."""
    _check_lengths(rounds, tokens)
    from shardp2p.lab.emulation.profile import parse_ways
    from shardp2p.lab.far_arms import choose_far_arms
    from shardp2p.lab.network.catalog import read_text

    chosen = choose_far_arms(names or ("tree",))
    return parse_ways(profile, read_text(profile)), chosen


def _check_lengths(rounds: int, tokens: int) -> None:
    for name, value, least in (("--rounds", rounds, 1), ("--tokens", tokens, 32)):
        if value < least:
            raise ConfigError(f"{name} is {value}; it must be at least {least}")
    if tokens > MOST_TOKENS:
        raise ConfigError(f"--tokens is {tokens}; it must be at most {MOST_TOKENS}")


def describe_arms(measured: Mapping[str, Any]) -> str:
    """A line for each scheme, and what the pipelined tree gains."""
    arms = measured["arms"]
    width = max(map(len, arms))
    drafts = "prompt lookup" if measured["accept"] is None else f"first guesses right {measured['accept']:.2f}"
    lines = [f"{measured['profile']}, {measured['runtime']}, {drafts}", ""]
    for name, arm in arms.items():
        line = f"{name:{width}}  {arm['tok_s']:7.2f} tokens/s  {arm['accepted_per_lap']:6.2f} a lap"
        if "tok_s_min" in arm:
            line += f"  ({arm['tok_s_min']:.2f} to {arm['tok_s_max']:.2f})"
        lines.append(line + ("" if arm["exact"] else "  NOT EXACT"))
    lines += [
        "",
        f"a plain lap takes {measured['lap_ms']:.1f} ms; the best that can be: {measured['bound_tok_s']:.2f} tokens/s",
        "every answer was exact" if all(arm["exact"] for arm in arms.values()) else "NOT EVERY ANSWER WAS EXACT",
    ]
    if "tree" in arms:
        lines += [
            f"tree against {name}: x {arms['tree']['tok_s'] / arm['tok_s']:.2f}"
            for name, arm in arms.items()
            if name != "tree" and arm["tok_s"]
        ]
        if "coordinator_ms" in arms["tree"]:
            lines.append(f"the coordinator takes {arms['tree']['coordinator_ms']:.2f} ms of CPU a token for it")
    if "sampled_over_plain" in measured:
        lines.append(f"the same sampled: x {measured['sampled_over_plain']:.2f}")
    if "worst_prompt_ratio" in measured:
        lines.append(f"on the prompt where it gains least: x {measured['worst_prompt_ratio']:.2f}")
    for kind, rates in measured.get("kinds", {}).items():
        lines.append(f"{kind}: " + ", ".join(f"{name} {rate:.2f}" for name, rate in rates.items()) + " tokens/s")
    return "".join(line + "\n" for line in lines)
