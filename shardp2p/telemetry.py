"""Log setup: one line per event on stderr, pretty on a terminal and JSON elsewhere.

Every module that logs does it by `log = structlog.get_logger()` and `log.info("chunk_sent", session=…, seq=…)`.
What people say and what opens doors stays out of the log even where a caller forgets it: see WITHHELD.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import TextIO

import structlog

from shardp2p.errors import ConfigError

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

WITHHELD = frozenset(
    {"answer", "content", "join_token", "key", "password", "private_key", "prompt", "secret", "text", "token", "tokens"}
)
"""Fields whose value never reaches the log. A count has its unit in its name (`generated_tokens`) and passes."""

_DEBUG_ONLY = frozenset({"address", "addresses"})
_PLACEHOLDER = "[withheld]"

# Libraries, by the first part of their loggers' names, and what is heard of them: libp2p reports every normal close as
# an error.
_QUIET = {
    "libp2p": logging.CRITICAL,
    "multiaddr": logging.CRITICAL,
    "py": logging.ERROR,  # py.warnings: what Python's own warnings are logged as
    "torch": logging.ERROR,
    "transformers": logging.ERROR,
}


def configure_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Send every log line of `level` and above to `stream` (where None: what stderr is then). May be called again.

    At level debug the libraries' own warnings are heard too.

    Raises: ConfigError for a level that does not exist.
    """
    if level not in LEVELS:
        raise ConfigError(f"the log level is {level!r}; it must be one of {', '.join(LEVELS)}")
    target = sys.stderr if stream is None else stream
    is_terminal = target.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if is_terminal else "iso", utc=not is_terminal),
        withhold,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = _ToStderr() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(_formatter(is_terminal, shared))
    handler.addFilter(_is_heard_at_debug if level == "debug" else _is_heard)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    # libp2p, when it is imported, cuts its loggers off the root and leaves them to this one.
    logging.lastResort = handler
    logging.captureWarnings(True)


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at each line: while a progress bar is drawn, lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def withhold(logger: object, method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """`event` without the values that must not be logged: a structlog processor."""
    for name in event:
        if name in WITHHELD or (name in _DEBUG_ONLY and method != "debug"):
            event[name] = _PLACEHOLDER
    return event


def _is_heard(record: logging.LogRecord) -> bool:
    return record.levelno >= _QUIET.get(record.name.partition(".")[0], logging.NOTSET)


def _is_heard_at_debug(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] not in _QUIET


def _formatter(is_terminal: bool, shared: list[structlog.typing.Processor]) -> logging.Formatter:
    # Both renderings show plain tracebacks: richer ones print local variables, prompts and keys among them.
    renderers: list[structlog.typing.Processor]
    if is_terminal:
        renderers = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )
