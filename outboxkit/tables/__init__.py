"""The tables, as SQLAlchemy Core objects on one public `metadata`.

They carry no schema name: a role's or a URL's `search_path` chooses one, for the user's session, the relay and the
consumer alike.
"""

from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    and_,
    event,
    false,
    func,
    literal_column,
)

from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.tables.operations import audit, operation, pause, worker
from outboxkit.tables.postgresql import (
    ANSWER_REQUESTS,
    ANSWERED,
    GUARD,
    GUARD_INBOX,
    INDEX_PROCESSED,
    NOTIFY,
    TRIGGER,
    default_partition,
)
from outboxkit.tables.types import (
    PARKED,
    UtcDateTime,
    big_identity,
    metadata,
    plus_zero,
    random_text,
    readable,
)

__all__ = [
    "ON_SERVER",
    "PARKED",
    "SCHEMA_VERSION",
    "UtcDateTime",
    "attempt",
    "audit",
    "dead_letter",
    "effect",
    "handler",
    "idempotency",
    "inbox",
    "listener",
    "metadata",
    "operation",
    "outbox",
    "pause",
    "published",
    "readable",
    "schema_version",
    "worker",
]

SCHEMA_VERSION = 1
"""The version of the tables below; the last step in `outboxkit.schema.migrations` leads to it."""


def _envelope(*, headers: str | None = None, content_type: str | None = None) -> list[Column[Any]]:
    """The columns of a message's own properties, in every table that holds messages, with these defaults."""
    return [
        Column("topic", String(255)),
        Column("key", String(255)),
        Column("payload", LargeBinary, nullable=False),
        Column("headers", LargeBinary, nullable=False, server_default=headers),
        Column("correlation_id", String(255)),
        Column("causation_id", String(255)),
        Column("content_type", String(255), nullable=False, server_default=content_type),
        Column("content_encoding", String(255)),
        Column("version", Integer, nullable=False, server_default="1", comment="of the event's fields"),
        Column("created_at", UtcDateTime),
    ]


def _queue() -> Column[Any]:
    return Column("queue", String(255), comment="the one queue that the message is for; null: those that are bound")


def _route() -> list[Column[Any]]:
    """The columns of a message's destination, and of the reply that its answer becomes."""
    return [
        Column("destination", String(255), nullable=False, server_default=DEFAULT_DESTINATION),
        Column("reply", String(255), comment="the type of the message that the destination's answer becomes"),
    ]


outbox = Table(
    "outboxkit_outbox",
    metadata,
    big_identity("position"),
    Column("message_id", String(255), nullable=False),
    Column("type", String(255), nullable=False),
    *_envelope(headers="{}", content_type="application/json"),  # for an INSERT in another language
    _queue(),
    Column("due_at", UtcDateTime, comment="not before this; null: at once"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("last_error", Text),
    Column("held", Boolean, nullable=False, server_default=false(), comment="a retry, or behind one of its key"),
    Column("first_failed_at", UtcDateTime),
    Column("expires_at", UtcDateTime, comment="not published after this"),
    Column("discard_unroutable", Boolean, nullable=False, server_default=false()),
    Column("dedup", Boolean, nullable=False, server_default=false(), comment="one row for an id at a time"),
    *_route(),
    sqlite_autoincrement=True,
)
"""Messages that wait to be published. A row is deleted in the transaction that follows the broker's confirm."""


def _partial(name: str, *columns: ColumnElement[Any], where: ColumnElement[bool], unique: bool = False) -> None:
    is_flag = isinstance(where, Column) and not unique  # SQLite uses the index only for the words of its queries
    on_sqlite = where == literal_column("1") if is_flag else where
    Index(f"outboxkit_{name}", *columns, postgresql_where=where, sqlite_where=on_sqlite, unique=unique)


_partial("outbox_ready", outbox.c.destination, outbox.c.position, where=outbox.c.due_at.is_(None))
_partial("outbox_due", outbox.c.destination, outbox.c.due_at, outbox.c.position, where=outbox.c.due_at.is_not(None))
ready_place = plus_zero(outbox.c.position)
"""A ready row's position as outboxkit_outbox_key has it. With the bare position the planner may look for the rows of a
key among all ready rows, if its statistics are of an outbox that was empty."""
_KEY = (outbox.c.key, outbox.c.destination)
_partial("outbox_key", *_KEY, ready_place, where=and_(outbox.c.key.is_not(None), outbox.c.due_at.is_(None)))
_partial("outbox_held", *_KEY, outbox.c.position, where=outbox.c.held)
_partial("outbox_delayed", outbox.c.message_id, where=outbox.c.due_at.is_not(None))
_partial("outbox_dedup", outbox.c.message_id, where=outbox.c.dedup, unique=True)

inbox = Table(
    "outboxkit_inbox",
    metadata,
    Column("handler", String(255), primary_key=True),
    Column("message_id", String(255, collation="C").with_variant(String(255), "sqlite"), primary_key=True),
    Column("type", String(255), nullable=False),
    Column("processed_at", UtcDateTime, nullable=False, server_default=func.current_timestamp()),
    Column("attempts", Integer, nullable=False, server_default="1"),
    Column("payload_crc", Integer, comment="CRC-32 of the payload's bytes, signed; null: not known"),
    postgresql_partition_by="RANGE (message_id)",
)
"""Messages that have been handled: one row for each (handler, message), inserted before the handler runs.

`processed_at` is the message's own time if that is later, so that the row outlives every delivery that is not stale.
On PostgreSQL there is a partition for each day of UUIDv7 ids, and one for all other ids. The collation sorts ids by
their bytes, as the partitions' bounds need.
"""

attempt = Table(
    "outboxkit_attempt",
    metadata,
    Column("queue", String(255), primary_key=True),
    Column("message_id", String(255), primary_key=True),
    Column("starts", Integer, nullable=False, server_default="0", comment="that have not ended: crashes, it may be"),
    Column("failures", Integer, nullable=False, server_default="0", comment="if no broker counts them"),
    Column("first_failed_at", UtcDateTime),
    Column("touched_at", UtcDateTime, nullable=False, server_default=func.current_timestamp()),
    Column("handler", String(255), comment="that failed, or several; null: it has not failed twice"),
    Column("type", String(255), comment="of the message"),
    Column("key", String(255), comment="of the message"),
    Column("attempt", Integer, comment="the last one that failed, from the second on"),
    Column("error", Text, comment="of that one"),
    Column("next_at", UtcDateTime, comment="when the next attempt is due"),
)
"""Messages of a queue that may have killed their consumer, and those that are tried again after a second failure."""

handler = Table(
    "outboxkit_handler",
    metadata,
    Column("handler", String(255), primary_key=True),
    Column("queue", String(255), primary_key=True),
    Column("function", String(255), comment="module and name, for people who look"),
    Column("types", Text, comment="of the messages that it handles, as a JSON array; null: not known"),
    Column("first_seen", UtcDateTime, nullable=False, server_default=func.current_timestamp()),
    Column("last_seen", UtcDateTime, nullable=False, server_default=func.current_timestamp()),
    Column("retention", BigInteger, comment="of the consumer's inbox, in seconds; null: not known"),
)
"""The handlers of each queue's consumer: the inbox knows handlers by their name alone."""

dead_letter = Table(
    "outboxkit_dead_letter",
    metadata,
    big_identity("id"),
    Column("side", String(10), nullable=False, comment="outbox or inbox"),
    Column("queue", String(255), comment="the consumer's, or the one queue that the message is for"),
    Column("handler", String(255)),
    Column("message_id", String(255)),
    Column("type", String(255)),
    *_envelope(),
    Column("reason", String(50), nullable=False),
    Column("error", Text),
    Column("attempts", Integer, nullable=False),
    Column("dead_at", UtcDateTime, nullable=False, server_default=func.current_timestamp()),
    Column("position", BigInteger, comment="the place that it had in the outbox"),
    Column("parked", Boolean, nullable=False, server_default=false(), comment="later messages of its key wait"),
    Column("first_failed_at", UtcDateTime),
    Column("discard_unroutable", Boolean, nullable=False, server_default=false()),
    Column("resolution", String(10), comment="replayed or discarded; null: open"),
    Column("resolved_at", UtcDateTime),
    Column("resolved_by", String(255)),
    *_route(),
    Column("traceback", Text, comment="of the handler's last failure, its end"),
)
"""Dead letters with their reasons. A row stays when it is replayed or discarded, and names the operator."""

_OPEN = dead_letter.c.resolution.is_(None)
_partial("dead_letter_open", dead_letter.c.dead_at, dead_letter.c.id, where=_OPEN)
for _name in ("key", "handler", "type"):
    _partial(f"dead_letter_{_name}", dead_letter.c[_name], dead_letter.c.dead_at, dead_letter.c.id, where=_OPEN)
_partial("dead_letter_parked", dead_letter.c.key, where=dead_letter.c.parked)
Index("outboxkit_dead_letter_message", dead_letter.c.message_id)
_OPEN_INBOX = and_(_OPEN, dead_letter.c.side == literal_column("'inbox'"))
_BURIAL = (dead_letter.c.message_id, dead_letter.c.queue)
_partial("dead_letter_once", *_BURIAL, dead_letter.c.handler, where=_OPEN_INBOX, unique=True)
_NO_HANDLER = and_(_OPEN_INBOX, dead_letter.c.handler.is_(None))
_partial("dead_letter_unhandled", *_BURIAL, where=_NO_HANDLER, unique=True)

published = Table(
    "outboxkit_published",
    metadata,
    Column("published_at", UtcDateTime, primary_key=True),
    Column("position", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("message_id", String(255), nullable=False),
    Column("type", String(255), nullable=False),
    *_envelope(),
    _queue(),
    *_route(),
    postgresql_partition_by="RANGE (published_at)",
)
"""Published messages that are kept: on PostgreSQL a partition for each day, and one for all other rows."""

listener = Table(
    "outboxkit_listener",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("until", UtcDateTime, nullable=False, comment="the relay listens until then, unless it says so again"),
)
"""Relays that are idle and listen for the next insert. Unlogged: after a crash the table is empty."""

Index("outboxkit_listener_until", listener.c.until)

idempotency = Table(
    "outboxkit_idempotency",
    metadata,
    Column("scope", String(255), primary_key=True, comment="the operation, such as POST /orders"),
    Column("principal", String(255), primary_key=True, comment="the caller; empty: the key is nobody's own"),
    Column("key", String(255), primary_key=True),
    Column("fingerprint", LargeBinary, nullable=False, comment="SHA-256 of the request"),
    Column("state", String(10), nullable=False, comment="processing or done"),
    Column("token", String(36), nullable=False, comment="of the run that may write the response"),
    Column("steps", LargeBinary, comment="results of finished steps, as a JSON object"),
    Column("response_status", Integer),
    Column("response_headers", LargeBinary, comment="a JSON array of pairs"),
    Column("response_body", LargeBinary),
    Column("locked_until", UtcDateTime, comment="of a run in steps: until then nobody else runs"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False, comment="after this the key is new again"),
)
"""Requests with an idempotency key, and their answers: one row for each (scope, principal, key)."""

Index("outboxkit_idempotency_expires", idempotency.c.expires_at)

effect = Table(
    "outboxkit_effect",
    metadata,
    Column("key", String(600), primary_key=True),
    Column("state", String(10), nullable=False, comment="started, done, repeated or skipped"),
    Column("token", String(36), nullable=False, comment="of the run that may record the result"),
    Column("result", LargeBinary, comment="JSON"),
    Column("started_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("locked_until", UtcDateTime, nullable=False, comment="until then a start without an end is a running one"),
    Column("used_at", UtcDateTime, nullable=False, comment="its last run, or the time of its message if that is later"),
    Column("handler", String(255)),
    Column("message_id", String(255), comment="of a message without a time: kept until it was handled"),
)
"""Calls to systems that cannot recognise a repetition, such as mail: the intention, committed first, and the result."""

Index("outboxkit_effect_used", effect.c.used_at)
_partial("effect_open", effect.c.locked_until, where=effect.c.state == literal_column("'started'"))

sharding = Table(
    "outboxkit_sharding",
    metadata,
    Column("queue", String(255), primary_key=True),
    Column("shards", Integer, nullable=False, comment="queues that get its messages; 1: the queue itself"),
    Column("draining", Text, comment="queues of before with messages, and their keys, as a JSON object; null: none"),
    Column("moved_from", Integer, comment="the shards of before, until markers are sent; null: none"),
    Column("move", BigInteger, nullable=False, server_default="0", comment="the number of the latest change"),
)
"""Ordered queues that are split into shards, or were."""

shard_member = Table(
    "outboxkit_shard_member",
    metadata,
    Column("queue", String(255), primary_key=True),
    Column("member", String(36), primary_key=True, comment="a process"),
    Column("shards", Integer, nullable=False, comment="that it was started for"),
    Column("seen_at", UtcDateTime, nullable=False),
)
"""The consumers that share the shards of a queue. Each says every two seconds that it is there."""

ON_SERVER: tuple[tuple[Table, str], ...] = (
    (outbox, NOTIFY),
    (published, default_partition(published.name)),
    (listener, "ALTER TABLE outboxkit_listener SET UNLOGGED"),
    (inbox, default_partition(inbox.name)),
    (inbox, INDEX_PROCESSED),
    (inbox, GUARD_INBOX),
    (idempotency, ANSWER_REQUESTS),
)
"""Statements for PostgreSQL alone, each behind the creation of its table."""

for _table, _when, _statement in (
    *((table, "after_create", statement) for table, statement in ON_SERVER),
    (outbox, "after_drop", f"DROP FUNCTION IF EXISTS {TRIGGER}()"),
    (inbox, "after_drop", f"DROP FUNCTION IF EXISTS {GUARD}()"),
    (idempotency, "after_drop", f"DROP FUNCTION IF EXISTS {ANSWERED}()"),
):
    _ddl: Any = DDL(_statement)  # type: ignore[no-untyped-call]
    event.listen(_table, _when, _ddl.execute_if(dialect="postgresql"))

schema_version = Table(
    "outboxkit_schema_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("installation", String(36), nullable=False, server_default=random_text()),
)
"""One row: the version of the tables, and a text that no other tables have."""


@event.listens_for(schema_version, "after_create")
def _stamp(target: Table, connection: Any, **_: Any) -> None:
    """Write the version into tables that `metadata.create_all` has created."""
    connection.execute(target.insert().values(version=SCHEMA_VERSION))
