"""Parameters of PostgreSQL that hold in every session of an engine of outboxkit's own."""

from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, event

_SETTINGS: WeakKeyDictionary[Engine, dict[str, str]] = WeakKeyDictionary()


def set_in_sessions(engine: Engine, **parameters: str) -> None:
    """Set these parameters of PostgreSQL in every session of the engine: at its start, and after each handler."""
    if engine in _SETTINGS:
        _SETTINGS[engine] |= parameters
        return
    _SETTINGS[engine] = parameters

    @event.listens_for(engine, "connect")
    def _set(connection: Any, _: Any) -> None:
        connection.cursor().execute(f"SELECT {', '.join(settings_of(engine) or ())}")
        connection.commit()


def settings_of(engine: Engine) -> list[str] | None:
    """The calls, in SQL, that set the parameters of `set_in_sessions`; None if this is an engine of somebody else."""
    parameters = _SETTINGS.get(engine)
    return None if parameters is None else [f"set_config('{name}', '{it}', false)" for name, it in parameters.items()]
