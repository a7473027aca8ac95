"""What a person or a script reads: errors as one line, results on stdout, text from peers without escape sequences."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from shardp2p.cli.hints import hinted
from shardp2p.errors import LocalProtocolError, ShardError

BROKEN_PIPE = 141
"""The exit code where nobody reads stdout any more: 128 + SIGPIPE, as of a program that the signal ended."""

_C0 = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "\N{REPLACEMENT CHARACTER}")
_LINE = _C0 | dict.fromkeys((*b"\t\n\v\f\r",), " ")
_TEXT = {code: shown for code, shown in _C0.items() if chr(code) not in "\t\n"}


def one_line(text: str) -> str:
    """`text` as one line that is safe to show."""
    return text.strip().translate(_LINE)


def printable(text: str) -> str:
    """`text` without what a terminal would obey: it comes from a model, and through peers."""
    return text.translate(_TEXT)


def write(text: str) -> None:
    """Write to stdout at once. Raises: BrokenPipeError when nobody reads it; ConfigError when it has no room."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_json(value: Mapping[str, Any]) -> None:
    """Write one object on one line to stdout at once."""
    # What stdout has no character for is to be escaped as JSON does it.
    is_unicode = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    sys.stdout.write(json.dumps(value, ensure_ascii=not is_unicode) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a line to stderr."""
    print(text, file=sys.stderr, flush=True)


def report(error: BaseException) -> int:
    """Tell the user what went wrong, in one line unless it is our fault, and give the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    reasons = list(_leaves(error))
    if all(isinstance(reason, BrokenPipeError) for reason in reasons):
        return BROKEN_PIPE
    expected = [reason for reason in reasons if isinstance(reason, ShardError)]
    if len(expected) < len(reasons) or any(isinstance(reason, LocalProtocolError) for reason in expected):
        traceback.print_exception(error)
        note(f"shardp2p: error: this is a bug: {one_line(f'{type(error).__name__}: {error}')}")
        return 1
    note(f"shardp2p: error: {one_line(hinted(expected[0].message))}")
    return expected[0].exit_code


def flush_stdout() -> Exception | None:
    """Why not all that was written to stdout could be handed over. Afterwards Python's own last flush is quiet."""
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ShardError) as error:
        # What is still buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _leaves(member)
    else:
        yield error
