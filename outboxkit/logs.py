"""The log of a process: JSON or lines for people, and in neither what a message carries or what a stranger made up."""

import asyncio
import logging
import sys
from typing import Any

from outboxkit.failures import printable, traceback_of

SILENCED = ("aio_pika", "aiormq", "httpcore", "httpx", "pamqp")
"""What they report of an outage is in our own line about it, and some log headers with all that is in them."""
LONGEST = 500
"""Characters of a library's line that are kept."""


def configure_log(*, level: str, format: str) -> None:  # noqa: A002 - the setting's name
    """Log to standard error: lines for people on a terminal, JSON elsewhere.

    Tracebacks have no SQL parameters and no row. What libraries log through `logging` becomes a line of the same kind,
    unless the application has configured `logging`.
    """
    import structlog  # noqa: PLC0415 - slow to import, and `migrate` and `status` log nothing

    as_text = format == "console" or (format == "auto" and sys.stderr.isatty())
    rendering: list[Any] = [structlog.processors.JSONRenderer()]
    if as_text:
        rendering = [_in_its_line, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(_traceback),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # a line in one write: several processes may share it
    )
    for library in SILENCED:
        logging.getLogger(library).setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # below that: each failed write to a peer that is gone
    logging.lastResort = _Foreign(logging.WARNING)


def logger() -> Any:
    """The logger of what concerns the process as a whole."""
    import structlog  # noqa: PLC0415 - as above

    return structlog.get_logger("outboxkit")


def is_configured() -> bool:
    """Whether this process has set up a log."""
    import structlog  # noqa: PLC0415 - as above

    return structlog.is_configured()


def unretrieved(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody waited for: an event loop's exception handler that does not show what the error carries."""
    logger().error("an error that nobody waited for", what=context.get("message"), exc_info=context.get("exception"))


def _traceback(exc_info: Any) -> str:
    error = exc_info[1]
    return traceback_of(error) if error is not None else ""


def _in_its_line(_: Any, __: str, entry: Any) -> Any:
    """What a stranger has named stays in its line, and no escape sequence reaches a terminal."""
    return {printable(name): _printable(name, value) for name, value in entry.items()}


def _printable(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return "\n".join(map(printable, value.split("\n"))) if name == "exception" else printable(value)


class _Foreign(logging.Handler):
    """Writes the first line of what a library logs as a line of ours; further lines may show what is worked on."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it."""
        try:
            lines = record.getMessage().splitlines() or [""]
        except Exception:  # noqa: BLE001 - a library's wrong format string is no reason to stop
            lines = [str(record.msg)]
        log = logger().bind(logger=record.name)
        log.log(record.levelno, printable(lines[0], LONGEST), exc_info=record.exc_info or None)
