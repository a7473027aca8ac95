"""What `shardp2p demo` shows: the ring, the answer as it comes, and how it went. Plain text where it is piped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from shardp2p.cli.output import printable
from shardp2p.vocabulary import Token

if TYPE_CHECKING:
    from shardp2p.lab.reference_process import ReferenceAnswer
    from shardp2p.lab.ring_run import RingRun
    from shardp2p.runtime.tokenizer import Tokenizer
    from shardp2p.wire.messages import MemberInfo

COLUMNS = (("stage", 5), ("layers", 7), ("peer", 9), ("process", 8), ("weights", 10), ("memory", 10))


class Screen:
    """Standard output of the demo; `is_quiet` shows nothing."""

    def __init__(self, tokenizer: Tokenizer, *, is_quiet: bool) -> None:
        from shardp2p.runtime.tokenizer import TextStream

        self._text = TextStream(tokenizer)
        self._is_quiet = is_quiet

    def show_ring(self, model: str, dtype: str, members: Sequence[MemberInfo]) -> None:
        """The peers in ring order, with what they hold and what it takes."""
        peers = f"{len(members)} peers" if len(members) > 1 else "1 peer"
        self._line(f"{typer.style(model, bold=True)} in {dtype}, over {peers} on this machine")
        self._line()
        self._line(typer.style(_row([name for name, _ in COLUMNS]), dim=True))
        for number, info in enumerate(members, 1):
            weights, memory = _megabytes(info.layer_bytes), _megabytes(info.rss_bytes)
            self._line(_row([str(number), str(info.layers), _short(info.peer_id), str(info.pid), weights, memory]))
        self._line()

    def show_prompt(self, prompt: str) -> None:
        """What is asked."""
        self._line(typer.style(f"> {printable(prompt)}", fg=typer.colors.CYAN))
        self._line()

    def show_tokens(self, tokens: Iterable[Token]) -> None:
        """More of the answer."""
        self._write(printable(self._text.feed(tokens)))

    def end_tokens(self) -> None:
        """The answer is complete."""
        self._line(printable(self._text.finish()))
        self._line()

    def show_speed(self, run: RingRun) -> None:
        """How fast the answer came."""
        laps = f"{len(run.tokens)} tokens in {run.laps} laps of the ring, {run.accepted_per_lap:.2f} a lap"
        self._line(f"{run.tok_s:.1f} tokens/s, the first after {run.ttft_s:.2f} s; {laps}")

    def show_verdict(self, reference: ReferenceAnswer, *, is_identical: bool) -> None:
        """Whether the whole model in one process gives the same answer."""
        speed = f"({reference.tok_s:.1f} tokens/s)"
        if is_identical:
            self._line(typer.style(f"identical to the whole model in one process {speed}", fg=typer.colors.GREEN))
        else:
            self._line(typer.style(f"not identical to the whole model in one process {speed}", fg=typer.colors.YELLOW))

    def _line(self, text: str = "") -> None:
        self._write(text + "\n")

    def _write(self, text: str) -> None:
        if text and not self._is_quiet:
            typer.echo(text, nl=False)  # without colours where stdout is no terminal
            sys.stdout.flush()


def _row(cells: Sequence[str]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))


def _short(peer_id: str) -> str:
    """The end of a peer id: all begin alike."""
    return "…" + peer_id[-8:]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
