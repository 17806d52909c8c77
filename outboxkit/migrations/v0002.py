"""Version 2: order by key, parked keys, expiry, dedup, the dead letters' story, published rows, and sleeping relays."""

from typing import Any

import sqlalchemy as sa

from outboxkit.migrations import v0001

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_TIME = sa.DateTime(timezone=True)


def _flag(name: str, comment: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false(), comment=comment)


def _outbox_columns() -> list[sa.Column[Any]]:
    return [
        _flag("held", "a retry, or behind one of its key"),
        sa.Column("first_failed_at", _TIME),
        sa.Column("expires_at", _TIME, comment="not published after this"),
        _flag("discard_unroutable"),
        _flag("dedup", "one row for an id at a time"),
    ]


def _dead_letter_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("position", sa.BigInteger, comment="the place that it had in the outbox"),
        _flag("parked", "later messages of its key wait"),
        sa.Column("first_failed_at", _TIME),
        _flag("discard_unroutable"),
        sa.Column("resolution", sa.String(10), comment="replayed or discarded; null: open"),
        sa.Column("resolved_at", _TIME),
        sa.Column("resolved_by", sa.String(255)),
    ]


_PARTIAL_INDEXES = (
    ("outbox", "due", ["due_at", "position"], sa.text("due_at IS NOT NULL")),
    ("outbox", "key", ["key", "position"], sa.and_(sa.column("key").is_not(None), sa.text("due_at IS NULL"))),
    ("outbox", "held", ["key", "position"], sa.column("held", sa.Boolean)),
    ("outbox", "delayed", ["message_id"], sa.text("due_at IS NOT NULL")),
    ("outbox", "dedup", ["message_id"], sa.column("dedup", sa.Boolean)),
    ("dead_letter", "open", ["id"], sa.text("resolution IS NULL")),
    ("dead_letter", "parked", ["key"], sa.column("parked", sa.Boolean)),
)


_RING = """
DO $make$
DECLARE place text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'outboxkit_outbox'::regclass);
BEGIN
    EXECUTE replace($bell$
        CREATE OR REPLACE FUNCTION <place>.outboxkit_ring() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $ring$
        DECLARE moment pg_catalog.timestamptz := pg_catalog.clock_timestamp();
        BEGIN
            IF EXISTS (SELECT FROM <place>.outboxkit_sleeper WHERE until OPERATOR(pg_catalog.>) moment) THEN
                IF pg_catalog.current_setting('max_prepared_transactions') OPERATOR(pg_catalog.=) '0'
                    AND pg_catalog.pg_notification_queue_usage() OPERATOR(pg_catalog.<) 0.5 THEN
                    PERFORM pg_catalog.pg_notify(pg_catalog.concat('outboxkit_', TG_RELID), '');
                END IF;
            END IF;
            RETURN NULL;
        EXCEPTION WHEN OTHERS THEN
            RETURN NULL;
        END $ring$;
        CREATE TRIGGER outboxkit_ring AFTER INSERT ON <place>.outboxkit_outbox
        FOR EACH STATEMENT EXECUTE FUNCTION <place>.outboxkit_ring();
    $bell$, '<place>', place);
END $make$
"""


def upgrade(op: Any) -> None:
    """Widen outbox and dead letters, create the two new tables, and hang up the bell. No row is lost."""
    _widen_outbox(op)
    for column in _dead_letter_columns():
        op.add_column("outboxkit_dead_letter", column)
    op.execute("UPDATE outboxkit_outbox SET held = true WHERE due_at IS NOT NULL AND attempts > 0")
    for table, name, indexed, where in _PARTIAL_INDEXES:
        op.create_index(
            f"outboxkit_{table}_{name}",
            f"outboxkit_{table}",
            indexed,
            postgresql_where=where,
            sqlite_where=where,
            unique=name == "dedup",
        )
    op.create_index("outboxkit_dead_letter_message", "outboxkit_dead_letter", ["message_id"])
    _create_published(op)
    op.create_table(
        "outboxkit_sleeper",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("until", _TIME, nullable=False, comment="after this the relay has gone without a word"),
    )
    op.create_index("outboxkit_sleeper_until", "outboxkit_sleeper", ["until"])
    if op.get_context().dialect.name == "postgresql":
        op.execute("CREATE TABLE outboxkit_published_default PARTITION OF outboxkit_published DEFAULT")
        op.execute("ALTER TABLE outboxkit_sleeper SET UNLOGGED")
        op.execute(_RING)


def _widen_outbox(op: Any) -> None:
    """On SQLite it is a new table: only one that is made so never gives a position twice."""
    op.drop_index("outboxkit_outbox_due", table_name="outboxkit_outbox")
    if op.get_context().dialect.name != "sqlite":
        for column in _outbox_columns():
            op.add_column("outboxkit_outbox", column)
        return
    before, kept = v0001.outbox_columns(), sa.text("due_at IS NULL")
    op.drop_index("outboxkit_outbox_ready", table_name="outboxkit_outbox")
    op.rename_table("outboxkit_outbox", "outboxkit_outbox_v1")
    op.create_table("outboxkit_outbox", *before, *_outbox_columns(), sqlite_autoincrement=True)
    names = ", ".join(f'"{column.name}"' for column in before)
    op.execute(f"INSERT INTO outboxkit_outbox ({names}) SELECT {names} FROM outboxkit_outbox_v1")  # noqa: S608
    op.drop_table("outboxkit_outbox_v1")
    op.create_index("outboxkit_outbox_ready", "outboxkit_outbox", ["position"], sqlite_where=kept)


def _create_published(op: Any) -> None:
    op.create_table(
        "outboxkit_published",
        sa.Column("published_at", _TIME, primary_key=True),
        sa.Column("position", _BIG, primary_key=True, autoincrement=False),
        sa.Column("message_id", sa.String(255), nullable=False),
        sa.Column("type", sa.String(255), nullable=False),
        sa.Column("topic", sa.String(255)),
        sa.Column("key", sa.String(255)),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("headers", sa.LargeBinary, nullable=False),
        sa.Column("correlation_id", sa.String(255)),
        sa.Column("causation_id", sa.String(255)),
        sa.Column("content_type", sa.String(255), nullable=False),
        sa.Column("content_encoding", sa.String(255)),
        sa.Column("created_at", _TIME),
        postgresql_partition_by="RANGE (published_at)",
    )


def downgrade(op: Any) -> None:
    """Back to version 1: published rows are dropped, parked messages are due at once, delays and dead letters stay."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP TRIGGER outboxkit_ring ON outboxkit_outbox")
        op.execute("DROP FUNCTION outboxkit_ring()")
    for name in ("sleeper", "published"):
        op.drop_table(f"outboxkit_{name}")
    op.drop_index("outboxkit_dead_letter_message", table_name="outboxkit_dead_letter")
    for table, name, _, _ in _PARTIAL_INDEXES:
        op.drop_index(f"outboxkit_{table}_{name}", table_name=f"outboxkit_{table}")
    where = sa.text("due_at IS NOT NULL")
    op.execute("UPDATE outboxkit_outbox SET due_at = NULL WHERE held")
    op.create_index("outboxkit_outbox_due", "outboxkit_outbox", ["due_at"], postgresql_where=where, sqlite_where=where)
    for table, columns in (("outbox", _outbox_columns()), ("dead_letter", _dead_letter_columns())):
        for column in reversed(columns):
            op.drop_column(f"outboxkit_{table}", column.name)
