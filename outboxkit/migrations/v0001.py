"""Version 1: every table, index, default partition and trigger of the first release.

A step is never edited once it is released, and never reads `outboxkit.tables`, which moves on.
"""

from importlib.resources import files
from typing import Any

import sqlalchemy as sa

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_TIME = sa.DateTime(timezone=True)
_NOW = sa.func.current_timestamp()
_PAUSED = "the relay's destination, or the consumer's queue"
_UNTIL = "the relay listens until then, unless it says so again"

NOTIFY = (files("outboxkit") / "migrations" / "notify_v1.sql").read_text()
"""The function and the trigger by which an insert notifies the relays that listen."""
GUARD = (files("outboxkit") / "migrations" / "guard_v1.sql").read_text()
"""The function and the trigger by which a handler's COMMIT fails."""


def upgrade(op: Any) -> None:
    """Create all tables with their indexes; on PostgreSQL also the default partitions and the triggers."""
    _create_outbox(op)
    _create_inbox(op)
    _create_dead_letter(op)
    _create_published(op)
    _create_listener(op)
    _create_idempotency(op)
    _create_effect(op)
    _create_operations(op)
    _create_shards(op)
    is_server = op.get_context().dialect.name == "postgresql"
    unique = sa.text("(gen_random_uuid())::text" if is_server else "(lower(hex(randomblob(16))))")
    op.create_table(
        "outboxkit_schema_version",
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("installation", sa.String(36), nullable=False, server_default=unique),
    )
    if is_server:
        op.execute("CREATE TABLE outboxkit_inbox_default PARTITION OF outboxkit_inbox DEFAULT")
        op.create_index("outboxkit_inbox_processed", "outboxkit_inbox_default", ["processed_at"])
        op.execute("CREATE TABLE outboxkit_published_default PARTITION OF outboxkit_published DEFAULT")
        op.execute("ALTER TABLE outboxkit_listener SET UNLOGGED")
        op.execute(NOTIFY)
        op.execute(GUARD)


def downgrade(op: Any) -> None:
    """Drop all tables with everything in them, and the triggers."""
    for name in (
        *(
            "schema_version",
            "shard_member",
            "sharding",
            "audit",
            "pause",
            "effect",
            "idempotency",
            "listener",
            "published",
        ),
        *("dead_letter", "handler", "attempt", "inbox", "outbox"),
    ):
        op.drop_table(f"outboxkit_{name}")
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION outboxkit_notify()")
        op.execute("DROP FUNCTION outboxkit_guard()")


def _create_outbox(op: Any) -> None:
    op.create_table(
        "outboxkit_outbox",
        sa.Column("position", _BIG, sa.Identity(), primary_key=True),
        sa.Column("message_id", sa.String(255), nullable=False),
        sa.Column("type", sa.String(255), nullable=False),
        *_envelope(),
        _queue(),
        sa.Column("due_at", _TIME, comment="not before this; null: at once"),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", sa.Text),
        _flag("held", "a retry, or behind one of its key"),
        sa.Column("first_failed_at", _TIME),
        sa.Column("expires_at", _TIME, comment="not published after this"),
        _flag("discard_unroutable"),
        _flag("dedup", "one row for an id at a time"),
        *_route(),
        sqlite_autoincrement=True,  # no position is given twice
    )
    ready, delayed, key = sa.text("due_at IS NULL"), sa.text("due_at IS NOT NULL"), ["key", "destination", "position"]
    _index(op, "outbox_ready", ["destination", "position"], where=ready)
    _index(op, "outbox_due", ["destination", "due_at", "position"], where=delayed)
    _index(op, "outbox_key", key, where=sa.and_(sa.column("key").is_not(None), ready))
    _index(op, "outbox_held", key, where=sa.column("held", sa.Boolean))
    _index(op, "outbox_delayed", ["message_id"], where=delayed)
    _index(op, "outbox_dedup", ["message_id"], where=sa.column("dedup", sa.Boolean), unique=True)


def _create_inbox(op: Any) -> None:
    op.create_table(
        "outboxkit_inbox",
        sa.Column("handler", sa.String(255), primary_key=True),
        sa.Column("message_id", sa.String(255, collation="C").with_variant(sa.String(255), "sqlite"), primary_key=True),
        sa.Column("type", sa.String(255), nullable=False),
        sa.Column("processed_at", _TIME, nullable=False, server_default=_NOW),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="1"),
        sa.Column("payload_crc", sa.Integer, comment="CRC-32 of the payload's bytes, signed; null: not known"),
        sa.Column("duration_ms", sa.Integer, comment="of handlers that took longer than 100 ms; null: they did not"),
        postgresql_partition_by="RANGE (message_id)",
    )
    op.create_table(
        "outboxkit_attempt",
        sa.Column("queue", sa.String(255), primary_key=True),
        sa.Column("message_id", sa.String(255), primary_key=True),
        _count("starts", "that have not ended: crashes, it may be"),
        _count("failures", "if no broker counts them"),
        sa.Column("first_failed_at", _TIME),
        sa.Column("touched_at", _TIME, nullable=False, server_default=_NOW),
    )
    op.create_table(
        "outboxkit_handler",
        sa.Column("handler", sa.String(255), primary_key=True),
        sa.Column("queue", sa.String(255), primary_key=True),
        sa.Column("function", sa.String(255), comment="module and name, for people who look"),
        sa.Column("types", sa.Text, comment="of the messages that it handles, as a JSON array; null: not known"),
        sa.Column("first_seen", _TIME, nullable=False, server_default=_NOW),
        sa.Column("last_seen", _TIME, nullable=False, server_default=_NOW),
        sa.Column("retention", sa.BigInteger, comment="of the consumer's inbox, in seconds; null: not known"),
        sa.Column(
            "long_message_id",
            sa.String(255),
            comment="the last message that it worked on for over a minute; null: none",
        ),
        sa.Column("long_since", _TIME, comment="when that began"),
    )


def _create_dead_letter(op: Any) -> None:
    op.create_table(
        "outboxkit_dead_letter",
        sa.Column("id", _BIG, sa.Identity(), primary_key=True),
        sa.Column("side", sa.String(10), nullable=False, comment="outbox or inbox"),
        sa.Column("queue", sa.String(255), comment="the consumer's, or the one queue that the message is for"),
        sa.Column("handler", sa.String(255)),
        sa.Column("message_id", sa.String(255)),
        sa.Column("type", sa.String(255)),
        *_envelope(),
        sa.Column("reason", sa.String(50), nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("dead_at", _TIME, nullable=False, server_default=_NOW),
        sa.Column("position", sa.BigInteger, comment="the place that it had in the outbox"),
        _flag("parked", "later messages of its key wait"),
        sa.Column("first_failed_at", _TIME),
        _flag("discard_unroutable"),
        sa.Column("resolution", sa.String(10), comment="replayed or discarded; null: open"),
        sa.Column("resolved_at", _TIME),
        sa.Column("resolved_by", sa.String(255)),
        *_route(),
        sa.Column("traceback", sa.Text, comment="of the handler's last failure, its end"),
    )
    _index(op, "dead_letter_open", ["id"], where=sa.text("resolution IS NULL"))
    _index(op, "dead_letter_parked", ["key"], where=sa.column("parked", sa.Boolean))
    op.create_index("outboxkit_dead_letter_message", "outboxkit_dead_letter", ["message_id"])
    burial, is_open = ["message_id", "queue"], "resolution IS NULL AND side = 'inbox'"
    _index(op, "dead_letter_once", [*burial, "handler"], where=sa.text(is_open), unique=True)
    _index(op, "dead_letter_unhandled", burial, where=sa.text(f"{is_open} AND handler IS NULL"), unique=True)


def _create_published(op: Any) -> None:
    op.create_table(
        "outboxkit_published",
        sa.Column("published_at", _TIME, primary_key=True),
        sa.Column("position", _BIG, primary_key=True, autoincrement=False),
        sa.Column("message_id", sa.String(255), nullable=False),
        sa.Column("type", sa.String(255), nullable=False),
        *_envelope(),
        _queue(),
        *_route(),
        postgresql_partition_by="RANGE (published_at)",
    )


def _create_listener(op: Any) -> None:
    op.create_table(
        "outboxkit_listener",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("until", _TIME, nullable=False, comment=_UNTIL),
    )
    op.create_index("outboxkit_listener_until", "outboxkit_listener", ["until"])


def _create_idempotency(op: Any) -> None:
    op.create_table(
        "outboxkit_idempotency",
        sa.Column("scope", sa.String(255), primary_key=True, comment="the operation, such as POST /orders"),
        sa.Column("principal", sa.String(255), primary_key=True, comment="the caller; empty: the key is nobody's own"),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False, comment="SHA-256 of the request"),
        sa.Column("state", sa.String(10), nullable=False, comment="processing or done"),
        sa.Column("token", sa.String(36), nullable=False, comment="of the run that may write the response"),
        sa.Column("steps", sa.LargeBinary, comment="results of finished steps, as a JSON object"),
        sa.Column("response_status", sa.Integer),
        sa.Column("response_headers", sa.LargeBinary, comment="a JSON array of pairs"),
        sa.Column("response_body", sa.LargeBinary),
        sa.Column("locked_until", _TIME, comment="of a run in steps: until then nobody else runs"),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False, comment="after this the key is new again"),
    )
    op.create_index("outboxkit_idempotency_expires", "outboxkit_idempotency", ["expires_at"])


def _create_effect(op: Any) -> None:
    op.create_table(
        "outboxkit_effect",
        sa.Column("key", sa.String(600), primary_key=True),
        sa.Column("state", sa.String(10), nullable=False, comment="started, done, repeated or skipped"),
        sa.Column("token", sa.String(36), nullable=False, comment="of the run that may record the result"),
        sa.Column("result", sa.LargeBinary, comment="JSON"),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("finished_at", _TIME),
        sa.Column("locked_until", _TIME, nullable=False, comment="until then a start without an end is a running one"),
        sa.Column(
            "used_at", _TIME, nullable=False, comment="its last run, or the time of its message if that is later"
        ),
        sa.Column("handler", sa.String(255)),
        sa.Column("message_id", sa.String(255), comment="of a message without a time: kept until it was handled"),
    )
    op.create_index("outboxkit_effect_used", "outboxkit_effect", ["used_at"])
    _index(op, "effect_open", ["locked_until"], where=sa.text("state = 'started'"))


def _create_operations(op: Any) -> None:
    op.create_table(
        "outboxkit_pause",
        sa.Column("process", sa.String(10), primary_key=True, comment="relay or consumer"),
        sa.Column("name", sa.String(255), primary_key=True, comment=_PAUSED),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("until", _TIME, comment="null: until an operator resumes it"),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("paused_by", sa.String(255), nullable=False),
    )
    op.create_table(
        "outboxkit_audit",
        sa.Column("id", _BIG, sa.Identity(), primary_key=True),
        sa.Column("action", sa.String(50), nullable=False, comment="such as dead replay"),
        sa.Column("operator", sa.String(255), nullable=False),
        sa.Column("filter", sa.Text, nullable=False, comment="what was asked for, as a JSON object"),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME, comment="null: it is running, or was killed"),
        sa.Column("affected", sa.BigInteger, nullable=False, server_default="0", comment="messages, rows or pauses"),
        sa.Column("result", sa.Text, comment="done, stopped, or what went wrong"),
    )
    op.create_index("outboxkit_audit_started", "outboxkit_audit", ["started_at", "id"])


def _envelope() -> list[sa.Column[Any]]:
    return [
        sa.Column("topic", sa.String(255)),
        sa.Column("key", sa.String(255)),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("headers", sa.LargeBinary, nullable=False),
        sa.Column("correlation_id", sa.String(255)),
        sa.Column("causation_id", sa.String(255)),
        sa.Column("content_type", sa.String(255), nullable=False),
        sa.Column("content_encoding", sa.String(255)),
        sa.Column("version", sa.Integer, nullable=False, server_default="1", comment="of the event's fields"),
        sa.Column("created_at", _TIME),
    ]


def _queue() -> sa.Column[Any]:
    return sa.Column(
        "queue", sa.String(255), comment="the one queue that the message is for; null: those that are bound"
    )


def _route() -> list[sa.Column[Any]]:
    return [
        sa.Column("destination", sa.String(255), nullable=False, server_default="default"),
        sa.Column("reply", sa.String(255), comment="the type of the message that the destination's answer becomes"),
    ]


def _flag(name: str, comment: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false(), comment=comment)


def _count(name: str, comment: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer, nullable=False, server_default="0", comment=comment)


def _index(op: Any, name: str, columns: list[str], *, where: Any, unique: bool = False) -> None:
    """A partial index, whose name begins with the table's."""
    table = f"outboxkit_{name.rpartition('_')[0]}"
    op.create_index(f"outboxkit_{name}", table, columns, postgresql_where=where, sqlite_where=where, unique=unique)


def _create_shards(op: Any) -> None:
    op.create_table(
        "outboxkit_sharding",
        sa.Column("queue", sa.String(255), primary_key=True),
        sa.Column("shards", sa.Integer, nullable=False, comment="queues that get its messages; 1: the queue itself"),
        sa.Column(
            "draining", sa.Text, comment="queues of before with messages, and their keys, as a JSON object; null: none"
        ),
        sa.Column("moved_from", sa.Integer, comment="the shards of before, until markers are sent; null: none"),
        sa.Column("move", sa.BigInteger, nullable=False, server_default="0", comment="the number of the latest change"),
    )
    op.create_table(
        "outboxkit_shard_member",
        sa.Column("queue", sa.String(255), primary_key=True),
        sa.Column("member", sa.String(36), primary_key=True, comment="a process"),
        sa.Column("shards", sa.Integer, nullable=False, comment="that it was started for"),
        sa.Column("seen_at", _TIME, nullable=False),
    )
