"""The ledger of requests: taking a key, reading it, the steps of a run, and its answer.

An expired row counts as none. The database's clock decides; on PostgreSQL it is the time at which the statement
arrived.
"""

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Integer,
    Select,
    String,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
    type_coerce,
    update,
)
from sqlalchemy.sql.dml import ReturningDelete, ReturningInsert, ReturningUpdate

from outboxkit.statements.dialects import IN_THIS_DATABASE, LOCKS, insert_into, interval, statement_time
from outboxkit.tables import UtcDateTime, idempotency, readable

_KEY = (idempotency.c.scope, idempotency.c.principal, idempotency.c.key)
_THIS = and_(*(each == bindparam(f"at_{each.name}", type_=each.type) for each in _KEY))
_IS_DONE = idempotency.c.state == literal_column("'done'")
_IS_OPEN = idempotency.c.state == literal_column("'processing'")
_MINE = and_(_THIS, idempotency.c.token == bindparam("at_token", type_=idempotency.c.token.type), _IS_OPEN)
_REQUEST = bindparam("asked", type_=idempotency.c.fingerprint.type)
_ANSWER = {"response_status": "status", "response_headers": "headers", "response_body": "body"}


@cache
def take_key(dialect: str) -> ReturningInsert[Any]:
    """Take a key that is new or expired, or whose run has lost its lease; returns a row if it did, otherwise none.

    A run that takes over gets the finished steps of the previous one. A key that is in use is only read.

    Parameters: at_scope, at_principal, at_key, asked (the fingerprint), token_now, retention, lease (None: none).
    Index: the primary key. Locks: the row that it writes; if an open transaction writes it too, this one waits. On
    SQLite the writer lock, even if nothing is written.
    """
    return _take(dialect, ~_in_use(dialect))


@cache
def take_alone(dialect: str) -> ReturningInsert[Any]:
    """`take_key`, but no row, and at once, if another transaction is busy with the key. PostgreSQL only.

    Parameters: those of `take_key`; request_lock; request_part and asked_part, the halves of a second lock. Index: the
    primary key. Locks: the row that it writes. Before that, if the key is not in use, two transaction-level advisory
    locks. The first is shared and encodes the fingerprint, the second is the key's exclusive one. A holder of the
    second has therefore always published the first.
    """
    published = func.pg_try_advisory_xact_lock_shared(_part("request_part"), _part("asked_part"), type_=Boolean)
    exclusive = func.pg_try_advisory_xact_lock(_request_lock(), type_=Boolean)
    return _take(dialect, case((_in_use(dialect), false()), (published, exclusive), else_=false()))


@cache
def look_up(dialect: str) -> Select[Any]:
    """The row of a key that has not expired, and the time.

    Parameters: at_scope, at_principal, at_key. Index: the primary key. Locks: none.
    """
    names = ("fingerprint", "state", "token", "locked_until", "expires_at", *_ANSWER)
    now = type_coerce(statement_time(dialect), UtcDateTime).label("now")
    return select(*(idempotency.c[name] for name in names), now).where(
        _THIS, idempotency.c.expires_at > statement_time(dialect)
    )


@cache
def held_locks() -> Select[Any]:
    """The holder of a key's lock (`subid` 1), and the requests that were published (2, with `part`). PostgreSQL only.

    Transactions have the names of `pg_locks`, since a prepared one has no process. All of it is of one moment.

    Parameters: request_lock, request_part. Index: none. Locks: none.
    """
    high, low = cast(LOCKS.c.classid, BigInteger), cast(LOCKS.c.objid, BigInteger)
    holds = and_(
        LOCKS.c.objsubid == literal_column("1"),
        LOCKS.c.mode == literal_column("'ExclusiveLock'"),
        high.bitwise_lshift(literal_column("32")).bitwise_or(low) == _request_lock(),
    )
    tells = and_(LOCKS.c.objsubid == literal_column("2"), high == bindparam("request_part", type_=BigInteger))
    return select(LOCKS.c.virtualtransaction.label("holder"), LOCKS.c.objsubid.label("subid"), low.label("part")).where(
        LOCKS.c.locktype == literal_column("'advisory'"),
        LOCKS.c.granted,
        IN_THIS_DATABASE,
        or_(holds, tells),
    )


@cache
def keep_steps(dialect: str) -> ReturningUpdate[Any]:
    """Store a run's finished steps and extend its lease, if the run still has the key; returns a row if it has.

    Parameters: at_scope, at_principal, at_key, at_token, finished, lease. Index: the primary key. Locks: the row.
    """
    finished = bindparam("finished", type_=idempotency.c.steps.type)
    return (
        update(idempotency)
        .where(_MINE)
        .values(steps=finished, locked_until=statement_time(dialect, interval("lease")))
        .returning(idempotency.c.token)
    )


@cache
def record_answer() -> ReturningUpdate[Any]:
    """Store the answer, if the run still has the key; returns a row if it has.

    Parameters: at_scope, at_principal, at_key, at_token, status, headers, body. Index: the primary key. Locks: the row;
    a run that takes over waits for it, and then sees the answer.
    """
    answer: dict[str, Any] = {
        name: bindparam(parameter, type_=idempotency.c[name].type) for name, parameter in _ANSWER.items()
    }
    return (
        update(idempotency)
        .where(_MINE)
        .values(state=literal_column("'done'"), steps=null(), locked_until=null(), **answer)
        .returning(idempotency.c.token)
    )


@cache
def end_key_lease(dialect: str) -> ReturningUpdate[Any]:
    """Let the next run of the request begin at once, if the run still has the key; returns a row if it has.

    Parameters: at_scope, at_principal, at_key, at_token. Index: the primary key. Locks: the row.
    """
    freed = update(idempotency).where(_MINE).values(locked_until=statement_time(dialect))
    return freed.returning(idempotency.c.token)


@cache
def forget_key() -> ReturningDelete[Any]:
    """Delete a key, if the run still has it; returns a row if it has. Parameters: those of `end_key_lease`.

    Index: the primary key. Locks: the row.
    """
    return delete(idempotency).where(_MINE).returning(idempotency.c.token)


_SHOWN = ("scope", "principal", "key", "state", "response_status", "locked_until", "created_at", "expires_at")
"""The columns that operators see: nothing of a request, nor of its answer but the status."""


def newest_requests() -> Select[Any]:
    """Requests with a key, of a scope and in a state, or of any, among the `window` whose keys expire last. No body.

    Parameters: of_key, of_scope, of_state (null: any), window, limit. Index: outboxkit_idempotency_expires, from its
    end. Locks: none.
    """
    newest = _shown().order_by(idempotency.c.expires_at.desc()).limit(bindparam("window", type_=BigInteger))
    read = newest.subquery("newest")
    wanted = {"key": "of_key", "scope": "of_scope", "state": "of_state"}
    matches = [
        or_(bindparam(name, type_=String).is_(None), read.c[column] == bindparam(name, type_=String))
        for column, name in wanted.items()
    ]
    return select(read).where(*matches).order_by(read.c.expires_at.desc()).limit(bindparam("limit", type_=BigInteger))


def requests_with_key() -> Select[Any]:
    """The requests with a key, in every scope.

    Parameters: of_key, limit. Index: the primary key, all of it. Locks: none.
    """
    ours = idempotency.c.key == bindparam("of_key", type_=String)
    return _shown().where(ours).order_by(*_KEY).limit(bindparam("limit", type_=BigInteger))


def _shown() -> Select[Any]:
    return select(*(readable(idempotency.c[name]) for name in _SHOWN))


def _take(dialect: str, free: ColumnElement[bool]) -> ReturningInsert[Any]:
    now = statement_time(dialect)
    row = {
        **{each.name: bindparam(f"at_{each.name}", type_=each.type) for each in _KEY},
        "fingerprint": _REQUEST,
        "state": literal_column("'processing'"),
        "token": bindparam("token_now", type_=idempotency.c.token.type),
        "locked_until": statement_time(dialect, interval("lease")),
        "created_at": now,
        "expires_at": statement_time(dialect, interval("retention")),
    }
    insert = insert_into(dialect, idempotency).from_select(
        list(row), select(*row.values()).where(free), include_defaults=False
    )
    expired, old = idempotency.c.expires_at <= now, idempotency.c
    replaced = {name: insert.excluded[name] for name in row if name not in ("scope", "principal", "key", "created_at")}
    lease_over = and_(_IS_OPEN, old.locked_until <= now, old.fingerprint == insert.excluded.fingerprint)
    statement: ReturningInsert[Any] = insert.on_conflict_do_update(
        index_elements=_KEY,
        set_={
            **replaced,
            **dict.fromkeys(_ANSWER, null()),
            "created_at": case((expired, insert.excluded.created_at), else_=old.created_at),
            "steps": case((expired, null()), else_=old.steps),
        },
        where=or_(expired, lease_over),
    ).returning(old.expires_at, old.steps)
    return statement


def _in_use(dialect: str) -> ColumnElement[bool]:
    """Whether a row exists that no other run may take over."""
    is_held = or_(_IS_DONE, idempotency.c.locked_until.is_(None), idempotency.c.locked_until > statement_time(dialect))
    in_use = or_(is_held, idempotency.c.fingerprint != _REQUEST)
    return exists().where(_THIS, idempotency.c.expires_at > statement_time(dialect), in_use)


def _part(name: str) -> ColumnElement[int]:
    return bindparam(name, type_=Integer)


def _request_lock() -> ColumnElement[Any]:
    """The number of a key's lock, which differs in each schema that has the table."""
    place = literal_column(f"'{idempotency.name}'::regclass::oid::bigint", type_=BigInteger)
    return bindparam("request_lock", type_=BigInteger).bitwise_xor(place)
