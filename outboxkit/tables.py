"""The tables, as SQLAlchemy Core objects on one public `metadata`.

They carry no schema name: a role's or a URL's `search_path` chooses one, for the user's session, the relay and the
consumer alike.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    event,
    func,
)

SCHEMA_VERSION = 1
"""The version of the tables below; the last step in `outboxkit.migrations` leads to it."""


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time: `timestamptz` on PostgreSQL, UTC text on SQLite, which has no zones. Always aware in Python."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC; without its zone on SQLite, so that texts of equal moments are equal."""
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """To an aware UTC datetime."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = MetaData()
"""Every table of outboxkit: add it to your Alembic `target_metadata`, or call `metadata.create_all` in a test."""


def _big_identity(name: str) -> Column[Any]:
    # SQLite numbers rows by itself only where the column is exactly INTEGER PRIMARY KEY.
    return Column(name, BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True)


def _envelope() -> list[Column[Any]]:
    """The columns that hold a message's own properties, in every table that holds messages."""
    return [
        Column("topic", String(255)),
        Column("key", String(255)),
        Column("payload", LargeBinary, nullable=False),
        Column("headers", LargeBinary, nullable=False),
        Column("correlation_id", String(255)),
        Column("causation_id", String(255)),
        Column("content_type", String(255), nullable=False),
        Column("content_encoding", String(255)),
        Column("created_at", UtcDateTime),
    ]


outbox = Table(
    "outboxkit_outbox",
    metadata,
    _big_identity("position"),
    Column("message_id", String(255), nullable=False),
    Column("type", String(255), nullable=False),
    *_envelope(),
    Column("due_at", UtcDateTime, comment="not before this; null: at once"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("last_error", Text),
)
"""Messages that wait to be published. A row leaves in the transaction that follows the broker's confirm."""

Index(
    "outboxkit_outbox_ready",
    outbox.c.position,
    postgresql_where=outbox.c.due_at.is_(None),
    sqlite_where=outbox.c.due_at.is_(None),
)
Index(
    "outboxkit_outbox_due",
    outbox.c.due_at,
    postgresql_where=outbox.c.due_at.is_not(None),
    sqlite_where=outbox.c.due_at.is_not(None),
)

inbox = Table(
    "outboxkit_inbox",
    metadata,
    Column("handler", String(255), primary_key=True),
    Column("message_id", String(255), primary_key=True),
    Column("type", String(255), nullable=False),
    Column("processed_at", UtcDateTime, nullable=False, server_default=func.current_timestamp()),
)
"""What has been handled: one row for each (handler, message), inserted before the handler runs."""

dead_letter = Table(
    "outboxkit_dead_letter",
    metadata,
    _big_identity("id"),
    Column("side", String(10), nullable=False, comment="outbox or inbox"),
    Column("queue", String(255)),
    Column("handler", String(255)),
    Column("message_id", String(255)),
    Column("type", String(255)),
    *_envelope(),
    Column("reason", String(50), nullable=False),
    Column("error", Text),
    Column("attempts", Integer, nullable=False),
    Column("dead_at", UtcDateTime, nullable=False, server_default=func.current_timestamp()),
)
"""Messages that were given up on, with the reason."""

schema_version = Table(
    "outboxkit_schema_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False)
)
"""One row: the version of the tables."""


@event.listens_for(schema_version, "after_create")
def _stamp(target: Table, connection: Any, **_: Any) -> None:
    """Tables that `metadata.create_all` made are as new as this code."""
    connection.execute(target.insert().values(version=SCHEMA_VERSION))
