"""Version 1: outbox, inbox, dead letters, and the version itself.

A step is never edited once it is released, and never reads `outboxkit.tables`, which moves on.
"""

from typing import Any

import sqlalchemy as sa

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_TIME = sa.DateTime(timezone=True)
_NOW = sa.func.current_timestamp()


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
        sa.Column("created_at", _TIME),
    ]


def outbox_columns() -> list[sa.Column[Any]]:
    """The columns of the outbox in this version."""
    return [
        sa.Column("position", _BIG, sa.Identity(), primary_key=True),
        sa.Column("message_id", sa.String(255), nullable=False),
        sa.Column("type", sa.String(255), nullable=False),
        *_envelope(),
        sa.Column("due_at", _TIME, comment="not before this; null: at once"),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", sa.Text),
    ]


def upgrade(op: Any) -> None:
    """Create the four tables and the two indexes of the outbox."""
    op.create_table("outboxkit_outbox", *outbox_columns())
    for name, column, condition in (("ready", "position", "due_at IS NULL"), ("due", "due_at", "due_at IS NOT NULL")):
        where = sa.text(condition)
        op.create_index(
            f"outboxkit_outbox_{name}", "outboxkit_outbox", [column], postgresql_where=where, sqlite_where=where
        )
    op.create_table(
        "outboxkit_inbox",
        sa.Column("handler", sa.String(255), primary_key=True),
        sa.Column("message_id", sa.String(255), primary_key=True),
        sa.Column("type", sa.String(255), nullable=False),
        sa.Column("processed_at", _TIME, nullable=False, server_default=_NOW),
    )
    op.create_table(
        "outboxkit_dead_letter",
        sa.Column("id", _BIG, sa.Identity(), primary_key=True),
        sa.Column("side", sa.String(10), nullable=False, comment="outbox or inbox"),
        sa.Column("queue", sa.String(255)),
        sa.Column("handler", sa.String(255)),
        sa.Column("message_id", sa.String(255)),
        sa.Column("type", sa.String(255)),
        *_envelope(),
        sa.Column("reason", sa.String(50), nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("dead_at", _TIME, nullable=False, server_default=_NOW),
    )
    op.create_table("outboxkit_schema_version", sa.Column("version", sa.Integer, primary_key=True, autoincrement=False))


def downgrade(op: Any) -> None:
    """Drop the four tables with everything in them."""
    for name in ("schema_version", "dead_letter", "inbox", "outbox"):
        op.drop_table(f"outboxkit_{name}")
