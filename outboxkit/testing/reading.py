"""The rows of a database as they are compared: outboxkit's own bookkeeping left out, messages as what they say."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from outboxkit import tables
from outboxkit.testing.database import TrialDatabase
from outboxkit.testing.differences import State

_OURS = {table.name for table in tables.metadata.tables.values()} - {tables.outbox.name}
SEQUENCES = "sequences"
"""The key of the state under which a server's sequences are."""
_NOT_COMPARED = {"position", "message_id", "created_at", "attempts", "last_error", "held", "first_failed_at"}


def read_state(database: TrialDatabase) -> State:
    """The rows of all tables but outboxkit's own, and the sequences. Messages in the outbox are effects, too."""
    contents = database.read()
    state: dict[str, list[Mapping[str, Any]]] = {
        SEQUENCES: [
            {"name": name, "last_value": value if called else None}
            for name, (value, called) in contents.sequences.items()
        ]
    }
    for name, rows in contents.rows.items():
        shown = database.shown(name)
        if shown.rpartition(".")[2] in _OURS:
            continue
        is_outbox = shown.rpartition(".")[2] == tables.outbox.name
        state[shown] = [_message(row.values) if is_outbox else row.values for row in rows]
    return state


def _message(values: Mapping[str, Any]) -> Mapping[str, Any]:
    row: dict[str, Any] = {}
    for name, value in values.items():
        if name in _NOT_COMPARED:
            continue
        if name in ("payload", "headers"):
            row.update(_flat(name, _document(value)))
        else:
            row[name] = value
    return row


def _document(value: Any) -> Any:
    raw = bytes.fromhex(value[2:]) if isinstance(value, str) and value.startswith("\\x") else value
    try:
        return json.loads(raw)
    except ValueError:
        return repr(raw)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, each in value.items():
        yield from _flat(f"{name}.{key}", each)
