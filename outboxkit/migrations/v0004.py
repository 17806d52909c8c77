"""Version 4: destinations and replies, idempotency keys, effects."""

from typing import Any

import sqlalchemy as sa

_TIME = sa.DateTime(timezone=True)
_MESSAGES = ("outboxkit_outbox", "outboxkit_dead_letter", "outboxkit_published")
_ANSWER = "the type of the message that the destination's answer becomes"


def _index(op: Any, name: str, columns: list[str], where: sa.ColumnElement[bool] | sa.TextClause) -> None:
    op.create_index(f"outboxkit_outbox_{name}", "outboxkit_outbox", columns, postgresql_where=where, sqlite_where=where)


def _index_anew(op: Any, *destination: str) -> None:
    """What relays claim by, and find what stands before a key by: with this column, or without it."""
    for name in ("ready", "due", "key", "held"):
        op.drop_index(f"outboxkit_outbox_{name}", table_name="outboxkit_outbox")
    ready, key = sa.text("due_at IS NULL"), ["key", *destination, "position"]
    _index(op, "ready", [*destination, "position"], ready)
    _index(op, "due", [*destination, "due_at", "position"], sa.text("due_at IS NOT NULL"))
    _index(op, "key", key, sa.and_(sa.column("key").is_not(None), ready))
    _index(op, "held", key, sa.column("held", sa.Boolean))


def upgrade(op: Any) -> None:
    """Every message that is there goes where it went before: to the destination `default`."""
    for table in _MESSAGES:
        op.add_column(table, sa.Column("destination", sa.String(255), nullable=False, server_default="default"))
        op.add_column(table, sa.Column("reply", sa.String(255), comment=_ANSWER))
    _index_anew(op, "destination")
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
    op.create_table(
        "outboxkit_effect",
        sa.Column("key", sa.String(600), primary_key=True),
        sa.Column("state", sa.String(10), nullable=False, comment="started, done, repeated or skipped"),
        sa.Column("token", sa.String(36), nullable=False, comment="of the run that may record the result"),
        sa.Column("result", sa.LargeBinary, comment="JSON"),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("finished_at", _TIME),
        sa.Column("locked_until", _TIME, nullable=False, comment="until then a start without an end is a running one"),
    )
    op.create_index("outboxkit_effect_started", "outboxkit_effect", ["started_at"])
    where = sa.text("state = 'started'")
    op.create_index(
        "outboxkit_effect_open", "outboxkit_effect", ["locked_until"], postgresql_where=where, sqlite_where=where
    )


def downgrade(op: Any) -> None:
    """Back to version 3: remembered requests and effects are dropped, and every message goes to the one broker."""
    op.drop_table("outboxkit_effect")
    op.drop_table("outboxkit_idempotency")
    _index_anew(op)
    for table in _MESSAGES:
        op.drop_column(table, "reply")
        op.drop_column(table, "destination")
