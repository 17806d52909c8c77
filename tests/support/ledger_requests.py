"""Requests with idempotency keys, for tests of the ledger."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, Row, func, select, text, update
from sqlalchemy.orm import Session

from outboxkit import tables
from outboxkit.http import ledger
from outboxkit.http.ledger import Response

ASKED: dict[str, Any] = {"scope": "POST /orders", "principal": "alice", "key": "k-1", "fingerprint": b"a" * 32}
OTHER = ASKED | {"fingerprint": b"b" * 32}
IN_STEPS = ASKED | {"lease": timedelta(minutes=1)}
CREATED = Response(201, (("content-type", "application/json"), ("x-who", "Zoë")), b'{"id": 7}\0\xff')
OK = Response(200)


def begun(engine: Engine, asked: dict[str, Any]) -> ledger.Judgement:
    """What `begin` says, committed: for requests in steps, and where it is not fresh."""
    with Session(engine) as session, session.begin():
        return ledger.begin(session, **asked)


def told(engine: Engine, asked: dict[str, Any] = ASKED) -> ledger.Judgement:
    """What `begin` says, and nothing of it stays."""
    with Session(engine) as session:
        return ledger.begin(session, **asked)


def done(engine: Engine, asked: dict[str, Any] = ASKED, response: Response = CREATED) -> ledger.Fresh:
    """A request that has its answer."""
    with Session(engine) as session, session.begin():
        fresh = ledger.begin(session, **asked)
        assert isinstance(fresh, ledger.Fresh)
        ledger.complete(session, fresh, response)
    return fresh


def row(engine: Engine, key: str = "k-1") -> Row[Any] | None:
    """What the table has."""
    with engine.connect() as connection:
        return connection.execute(select(tables.idempotency).where(tables.idempotency.c.key == key)).first()


def count(engine: Engine) -> int:
    """How many rows the table has."""
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(tables.idempotency)).scalar_one()


def change(engine: Engine, **values: Any) -> None:
    """Change every row."""
    with engine.begin() as connection:
        connection.execute(update(tables.idempotency).values(**values))


def database_time(engine: Engine) -> Any:
    """The database's clock."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            clock = text("SELECT strftime('%Y-%m-%d %H:%M:%f000', 'now') AS now").columns(now=tables.UtcDateTime)
        else:
            clock = text("SELECT clock_timestamp() AS now").columns(now=tables.UtcDateTime)
        return connection.execute(clock).scalar_one()


def expire(engine: Engine) -> None:
    """Every row is one that has just expired."""
    change(engine, expires_at=database_time(engine))


def end_leases(engine: Engine) -> None:
    """Every lease has just ended."""
    change(engine, locked_until=database_time(engine))


def waiting(engine: Engine) -> int:
    """How many wait for a lock of another; a transaction sees one state of this, so that it is asked anew each time."""
    found = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with engine.connect() as connection:
        return int(connection.execute(text(found)).scalar_one())
