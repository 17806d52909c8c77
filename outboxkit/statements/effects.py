"""Effects: the intention to make a call, its state, and its result.

Each statement repeats the condition under which it may write. So it is correct even if others commit in between. The
database's clock decides.
"""

from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Update,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    type_coerce,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from outboxkit.statements.dialects import clock_time, insert_into, interval, latest_of
from outboxkit.tables import UtcDateTime, effect

_STARTED: ColumnElement[str] = literal_column("'started'")
_IS_STARTED = effect.c.state == _STARTED
_THIS = effect.c.key == bindparam("at_key", type_=effect.c.key.type)
_MADE = bindparam("made", type_=UtcDateTime)
_MINE = and_(_THIS, effect.c.token == bindparam("at_token", type_=effect.c.token.type), _IS_STARTED)


@cache
def intend(dialect: str) -> ReturningInsert[str]:
    """Record that the call is about to be made; returns the key if it is new, otherwise no row.

    Parameters: key, token, lease (how long the call may take). Also made, the time of its message; or handler and
    message_id, if that has no time. Index: the primary key. Locks: if an open transaction has inserted the same
    key, this one waits for its end.
    """
    row = {
        "key": bindparam("key"),
        "state": _STARTED,
        "token": bindparam("token"),
        "started_at": clock_time(dialect),
        "locked_until": clock_time(dialect, interval("lease")),
        "used_at": latest_of(dialect, clock_time(dialect), _MADE),
        "handler": bindparam("handler"),
        "message_id": bindparam("message_id"),
    }
    statement: ReturningInsert[str] = (
        insert_into(dialect, effect)
        .values(row)
        .on_conflict_do_nothing(index_elements=[effect.c.key])
        .returning(effect.c.key)
    )
    return statement


@cache
def use_effect(dialect: str) -> ReturningUpdate[Any]:
    """Note that a run asks for an effect; returns its state, and the time.

    Parameters: at_key; made, by_handler and by_message_id as of `intend`. Index: the primary key. Locks: the row.
    """
    used = {
        "used_at": latest_of(dialect, effect.c.used_at, clock_time(dialect), _MADE),
        "handler": func.coalesce(effect.c.handler, bindparam("by_handler", type_=effect.c.handler.type)),
        "message_id": func.coalesce(effect.c.message_id, bindparam("by_message_id", type_=effect.c.message_id.type)),
    }
    columns = (effect.c.state, effect.c.token, effect.c.result, effect.c.started_at, effect.c.locked_until)
    now = type_coerce(clock_time(dialect), UtcDateTime).label("now")
    statement: ReturningUpdate[Any] = update(effect).where(_THIS).values(used).returning(*columns, now)
    return statement


@cache
def take_over_effect(dialect: str) -> Update:
    """Begin a call again that another run has begun; that run can record nothing from now on.

    It changes no row if the effect's token is another one by now. Parameters: at_key; at_token: the token that was
    read; new_token; lease. Index: the primary key. Locks: the row.
    """
    return (
        update(effect)
        .where(_MINE)
        .values(token=bindparam("new_token"), locked_until=clock_time(dialect, interval("lease")))
    )


@cache
def skip(dialect: str) -> Update:
    """Record that it is unknown whether the call was made, and that it will not be made again.

    It changes no row if the effect's token is another one by now. Parameters: at_key; at_token: the token that was
    read; new_token. Index: the primary key. Locks: the row.
    """
    skipped = {
        "state": literal_column("'skipped'"),
        "token": bindparam("new_token"),
        "finished_at": clock_time(dialect),
    }
    return update(effect).where(_MINE).values(skipped)


@cache
def record_result(dialect: str) -> Update:
    """Record that the call was made; it changes no row if another run has taken over.

    Parameters: at_key, at_token; new_state: done or repeated; new_result. Index: the primary key. Locks: the row.
    """
    return (
        update(effect)
        .where(_MINE)
        .values(state=bindparam("new_state"), result=bindparam("new_result"), finished_at=clock_time(dialect))
    )


@cache
def withdraw() -> Delete:
    """Delete the intention: the call was not made. Parameters: at_key, at_token.

    Index: the primary key. Locks: the row.
    """
    return delete(effect).where(_MINE)


@cache
def end_effect_lease(dialect: str) -> Update:
    """Record that the run is over, and that it is unknown whether its call was made. Parameters: at_key, at_token.

    Index: the primary key. Locks: the row.
    """
    return update(effect).where(_MINE).values(locked_until=clock_time(dialect))
