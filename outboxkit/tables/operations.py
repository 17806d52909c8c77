"""The tables of what operators do: pauses, and the audit trail."""

from sqlalchemy import BigInteger, Column, Index, String, Table, Text

from outboxkit.tables.columns import UtcDateTime, big_identity, metadata

pause = Table(
    "outboxkit_pause",
    metadata,
    Column("process", String(10), primary_key=True, comment="relay or consumer"),
    Column("name", String(255), primary_key=True, comment="the relay's destination, or the consumer's queue"),
    Column("since", UtcDateTime, nullable=False),
    Column("until", UtcDateTime, comment="null: until an operator resumes it"),
    Column("why", Text, nullable=False),
    Column("paused_by", String(255), nullable=False),
)
"""Relays and consumers that operators have paused. A row whose time is over counts no more."""

audit = Table(
    "outboxkit_audit",
    metadata,
    big_identity("id"),
    Column("action", String(50), nullable=False, comment="such as dead replay"),
    Column("operator", String(255), nullable=False),
    Column("filter", Text, nullable=False, comment="what was asked for, as a JSON object"),
    Column("started_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime, comment="null: it is running, or was killed"),
    Column("affected", BigInteger, nullable=False, server_default="0", comment="messages, rows or pauses"),
    Column("result", Text, comment="done, stopped, or what went wrong"),
)
"""The actions of operators. Nothing deletes a row."""

Index("outboxkit_audit_started", audit.c.started_at, audit.c.id)
