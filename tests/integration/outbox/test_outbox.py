"""`outbox.add` in every kind of session: the row is there after the commit, and only then."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, event, select, text
from sqlalchemy.orm import Session

import outboxkit
from outboxkit import ids, outbox, tables


@outboxkit.event("Ordered")
@dataclass(frozen=True)
class Ordered:
    number: int


def numbers(engine: Engine) -> list[bytes]:
    with engine.connect() as connection:
        return list(connection.scalars(select(tables.outbox.c.payload).order_by(tables.outbox.c.position)))


def test_positions_follow_the_calls_whatever_is_added(engine: Engine):
    later = datetime.now(UTC) + timedelta(days=1)
    with Session(engine) as session:
        outbox.add(session, Ordered(0))
        outbox.add_all(session, [Ordered(number) for number in range(1, 1200)], deliver_at=later)
        outbox.add(session, Ordered(1200), message_id=ids.derive(1200), dedup=True)
        session.flush()
        outbox.add(session, Ordered(1201), expires_at=later)
        with session.begin_nested():
            outbox.add_all(session, [Ordered(number) for number in range(1202, 1205)])
        outbox.add(session, Ordered(1205))
        session.commit()
    assert numbers(engine) == [b'{"number":%d}' % number for number in range(1206)]


def test_a_thousand_rows_are_one_statement(pg_engine: Engine):
    """Counted where they arrive: a statement trigger in the database, whose sequence no rollback takes back."""
    with pg_engine.begin() as connection:
        connection.execute(text("CREATE SEQUENCE inserts"))
        connection.execute(
            text(
                "CREATE FUNCTION count_insert() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN PERFORM nextval(''inserts''); RETURN NULL; END'"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER count_insert AFTER INSERT ON outboxkit_outbox "
                "FOR EACH STATEMENT EXECUTE FUNCTION count_insert()"
            )
        )
    sent: list[str] = []
    event.listen(pg_engine, "before_cursor_execute", lambda _, __, statement, *___: sent.append(statement))
    with Session(pg_engine) as session, session.begin():
        outbox.add_all(session, [Ordered(number) for number in range(1000)])
    assert len(sent) == 1
    with pg_engine.connect() as connection:
        assert connection.execute(text("SELECT last_value FROM inserts")).scalar_one() == 1
