"""The single-process reference in a process of its own: asked in lines of JSON, and no burden while it is not asked.

`python -m shardp2p.lab.reference_process DIRECTORY DTYPE THREADS` is the process; `open_reference` starts it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from shardp2p.config import prepare_compute
from shardp2p.lab.children import Child, open_children
from shardp2p.vocabulary import DType, Token


@dataclass(frozen=True, slots=True)
class ReferenceAnswer:
    """What the whole model answers in one process, and how fast after the first token."""

    tokens: tuple[Token, ...]
    ttft_s: float
    tok_s: float


class ReferenceProcess:
    """The running process. Made by `open_reference`."""

    def __init__(self, child: Child) -> None:
        self._child = child

    async def generate(
        self, prompt_tokens: Sequence[Token], max_tokens: int, stop_tokens: frozenset[Token] = frozenset()
    ) -> ReferenceAnswer:
        """The greedy answer of transformers, up to `max_tokens` tokens or the first stop token."""
        question = {"prompt": list(prompt_tokens), "max_tokens": max_tokens, "stop_tokens": sorted(stop_tokens)}
        await self._child.write_line(json.dumps(question).encode())
        answer = json.loads(await self._child.read_line())
        return ReferenceAnswer(tuple(answer["tokens"]), answer["ttft_s"], answer["tok_s"])


@asynccontextmanager
async def open_reference(
    directory: Path, dtype: DType, *, threads: int = 0, environment: Mapping[str, str] | None = None
) -> AsyncIterator[ReferenceProcess]:
    """The whole model of `directory`, loaded in another process, which ends with the context."""
    command = [sys.executable, "-P", "-m", "shardp2p.lab.reference_process", str(directory), dtype, str(threads)]
    async with open_children() as children:
        child = await children.start("the single-process reference", command, environment)
        await child.read_line()
        yield ReferenceProcess(child)


def _serve(directory: Path, dtype: DType, threads: int) -> None:
    """Load, say that we are ready, and answer line by line."""
    prepare_compute()  # as the stages do, so that idle threads disturb nobody
    from shardp2p.runtime.device import set_threads
    from shardp2p.runtime.reference import Reference

    if threads:
        set_threads(threads)
    reference = Reference(directory, dtype)
    reference.generate((0,), 2)  # memory and threads taken on first use are taken now
    questions: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(questions,), daemon=True).start()
    _say({"pid": os.getpid()})
    while True:
        question = json.loads(questions.get())
        run = reference.generate(question["prompt"], question["max_tokens"], frozenset(question["stop_tokens"]))
        _say({"tokens": run.tokens, "ttft_s": run.ttft_s, "tok_s": run.tok_s})


def _read(questions: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        questions.put(line)
    os._exit(0)  # whoever asks is gone; nothing here needs a proper end


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))  # type: ignore[arg-type]
