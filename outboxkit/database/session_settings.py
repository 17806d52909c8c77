"""Parameters of PostgreSQL that hold in every session of an engine of outboxkit's own."""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, event

_SETTINGS: WeakKeyDictionary[Engine, dict[str, str]] = WeakKeyDictionary()
_RESET = (
    "RESET SESSION AUTHORIZATION",
    "RESET ALL",
    "RESET ROLE",  # which RESET ALL leaves
    "DISCARD TEMP",
    "CLOSE ALL",
    "UNLISTEN *",
)
"""Like DISCARD ALL, but for prepared statements, which the driver uses again."""


class GuardedEnd(NamedTuple):
    """The end of a handler's transaction on a connection of outboxkit's own, whose session is reset with it.

    Attributes:
        before: SQL before the COMMIT.
        refusal: turns an error of the end to the one that is raised.
    """

    before: str
    refusal: Callable[[Exception], Exception]


RESET_ALONE = GuardedEnd("", lambda error: error)
"""The end of a transaction that has no guard to lift."""


def set_in_sessions(engine: Engine, **parameters: str) -> None:
    """Set these parameters of PostgreSQL in every session of the engine: at its start, and after each handler."""
    if engine in _SETTINGS:
        _SETTINGS[engine] |= parameters
        return
    _SETTINGS[engine] = parameters

    @event.listens_for(engine, "connect")
    def _set(connection: Any, _: Any) -> None:
        calls = [f"set_config('{name}', '{value}', false)" for name, value in _SETTINGS[engine].items()]
        connection.cursor().execute(f"SELECT {', '.join(calls)}")
        connection.commit()
        driver = getattr(connection, "driver_connection", connection)
        driver.reset = "; ".join((*_RESET, f"SELECT {', '.join(('pg_advisory_unlock_all()', *calls))}"))
