"""What PostgreSQL is sent over an engine's connections, written down by libpq itself. Linux only."""

import re
import tempfile
from typing import IO, Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

_LINE = re.compile(r"^\d{4}-\d\d-\d\d [\d:.]+\t(?=[FB]\t)", re.MULTILINE)
_QUERY = re.compile(r'F\t\d+\tQuery\t "(.*)"\s*\Z', re.DOTALL)
_PARSE = re.compile(r'F\t\d+\tParse\t "([^"]*)" "(.*)" \d+[\d ]*\s*\Z', re.DOTALL)
_BIND = re.compile(r'F\t\d+\tBind\t "[^"]*" "([^"]*)"')
_ANSWERED = re.compile(r"\tB\t\d+\tReadyForQuery\t")
_EXECUTE = re.compile(r"F\t\d+\tExecute\t")


class StatementsSent:
    """Every statement of the connections that the engine opens from now on, BEGIN and COMMIT too.

    SQLAlchemy's own events do not see what is executed with the driver's cursor.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._written: list[IO[bytes]] = []

        @event.listens_for(engine.sync_engine, "connect")
        def _trace(connection: Any, _: Any) -> None:
            written = tempfile.TemporaryFile("w+b", buffering=0)  # noqa: SIM115 - open as long as the connection is
            connection.driver_connection.pgconn.trace(written.fileno())
            self._written.append(written)

    def texts(self) -> list[str]:
        """The statements, for each connection in their order; a prepared one with the text that it was prepared of."""
        return [text for written in self._written for text in _statements(_read(written))]

    def round_trips(self) -> int:
        """How often one of the connections has waited for an answer of the server."""
        return sum(len(_ANSWERED.findall(_read(written))) for written in self._written)

    def close(self) -> None:
        """Remove what was written, once the engine is disposed of."""
        for written in self._written:
            written.close()


def _read(written: IO[bytes]) -> str:
    position = written.tell()
    written.seek(0)
    text = written.read().decode(errors="replace")
    written.seek(position)  # libpq goes on from there
    return text


def _statements(trace: str) -> list[str]:
    found: list[str] = []
    prepared: dict[str, str] = {}
    bound = ""
    for message in _LINE.split(trace):
        if query := _QUERY.match(message):
            found.append(query[1])
        elif parse := _PARSE.match(message):
            prepared[parse[1]] = parse[2]
        elif bind := _BIND.match(message):
            bound = bind[1]
        elif _EXECUTE.match(message):
            found.append(prepared[bound])
    return found
