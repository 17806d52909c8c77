"""The process's log: JSON or lines for people, without payloads, and with foreign text escaped."""

import asyncio
import io
import logging
import sys
from typing import Any

from outboxkit.errors.failures import printable, traceback_of
from outboxkit.message import current_handling
from outboxkit.runtime.supervised import supervised

SILENCED = ("aio_pika", "aiormq", "httpcore", "httpx", "pamqp")
"""Libraries that log nothing: their reports of an outage are in our own line, and some log all headers."""
LINE_CHARACTERS = 500
"""The maximum characters of a library's line."""
_ours: list[Any] = []
"""The processors of our own configuration: with others, the application has configured structlog."""


def configure_log(*, level: str) -> None:
    """Log to standard error: lines for people on a terminal, JSON elsewhere.

    Tracebacks have no SQL parameters and no row. If the application has configured structlog, it stays as it is, and
    our lines go there. Records that are logged through `logging` become lines of the same kind, unless the application
    has configured `logging`.
    """
    import structlog  # noqa: PLC0415 - slow to import, and `migrate` and `status` log nothing

    silence()
    if structlog.is_configured() and not _is_ours():
        return
    rendering: list[Any] = [structlog.processors.JSONRenderer()]
    if sys.stderr.isatty():
        rendering = [_escape, structlog.dev.ConsoleRenderer(colors=True)]
    number = logging.getLevelNamesMapping()[level.upper()]
    _ours[:] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _add_number,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(_traceback),
        *rendering,
    ]
    structlog.configure(
        processors=_ours,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(_STDERR),
    )
    logging.lastResort = _Foreign(max(number, logging.INFO))


def silence() -> None:
    """Have the libraries log nothing, unless the application has set their levels."""
    errors = dict.fromkeys(("asyncio", "psycopg"), logging.ERROR)  # below: each failed write to a closed peer
    for library, quiet in {**dict.fromkeys(SILENCED, logging.CRITICAL), **errors}.items():
        if logging.getLogger(library).level == logging.NOTSET:
            logging.getLogger(library).setLevel(quiet)


def show_records() -> None:
    """Show records of `logging` from our log's level on, or INFO, unless the application has configured something.

    Call it after the application's modules have been imported. Below INFO, libraries show values of rows.
    """
    root, last = logging.root, logging.lastResort
    if _is_ours() and isinstance(last, _Foreign) and not root.handlers and root.level == logging.WARNING:
        root.setLevel(last.level)


def _is_ours() -> bool:
    import structlog  # noqa: PLC0415 - as above

    return structlog.is_configured() and structlog.get_config()["processors"] is _ours


class MessageFilter(logging.Filter):
    """A filter that adds the message that is being handled to each record, for the formats of the application.

    It sets `message_id`, `type`, `handler` and `correlation_id`: None outside a handler. Add it to handlers of
    `logging`, and not to a logger, whose filters do not see what others pass on to it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes; what the record has already stays."""
        current = current_handling()
        message = current.message if current is not None else None
        fields = {
            "message_id": message and message.id,
            "type": message and message.type,
            "handler": current and current.handler,
            "correlation_id": message and (message.correlation_id or message.id),
        }
        record.__dict__.update(fields | record.__dict__)
        return True


def logger() -> Any:
    """The logger of the process as a whole."""
    import structlog  # noqa: PLC0415 - as above

    return structlog.get_logger("outboxkit")


def is_configured() -> bool:
    """Whether this process has configured a log."""
    import structlog  # noqa: PLC0415 - as above

    return structlog.is_configured()


def unretrieved(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task awaited: an event loop's exception handler that does not print the error's values."""
    logger().error("an error that no task awaited", what=context.get("message"), exc_info=context.get("exception"))


def _add_number(_: Any, __: str, entry: Any) -> Any:
    """Add the number of this process, if it is one of several of a command."""
    if (process := supervised()) is not None:
        entry["process_number"] = process.number
    return entry


def _traceback(exc_info: Any) -> str:
    error = exc_info[1]
    return traceback_of(error) if error is not None else ""


def _escape(_: Any, __: str, entry: Any) -> Any:
    """Escape line breaks and terminal sequences in foreign text, so that it stays in its line."""
    return {printable(name): _printable(name, value) for name, value in entry.items()}


def _printable(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return "\n".join(map(printable, value.split("\n"))) if name == "exception" else printable(value)


class _StandardError(io.TextIOBase):
    """Standard error as it is at the moment of a write: a progress bar puts itself below the lines of the log.

    Each line is one write, since several processes may share the stream.
    """

    def write(self, text: str) -> int:
        """Write a line."""
        return sys.stderr.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        sys.stderr.flush()


_STDERR: Any = _StandardError()


class _Foreign(logging.Handler):
    """A handler that logs the first line of a library's record as a line of ours. Further lines may have data."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record."""
        try:
            lines = record.getMessage().splitlines() or [""]
        except Exception:  # noqa: BLE001 - a library's wrong format string must not stop the process
            lines = [str(record.msg)]
        log = logger().bind(logger=record.name)
        log.log(record.levelno, printable(lines[0], LINE_CHARACTERS), exc_info=record.exc_info or None)
