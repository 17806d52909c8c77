"""The tables of operators: pauses, the audit trail, operations in the background, and the workers that are there."""

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, String, Table, Text, false

from outboxkit.tables.types import UtcDateTime, big_identity, metadata

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
    Column("form", String(36), comment="of the console, which began it; null: no form did"),
)
"""The actions of operators. Nothing deletes a row."""

Index("outboxkit_audit_started", audit.c.started_at, audit.c.id)
Index("outboxkit_audit_form", audit.c.form, unique=True)

operation = Table(
    "outboxkit_operation",
    metadata,
    Column("action", BigInteger, primary_key=True, autoincrement=False, comment="its row of the audit trail"),
    Column("plan", Text, nullable=False, comment="what is to be done, as a JSON object"),
    Column("total", BigInteger, comment="messages, as they were counted at its start; null: they are not counted yet"),
    Column("place", Text, comment="up to where it has come, as JSON; null: at its start, or its rows tell"),
    Column("stops", Boolean, nullable=False, server_default=false(), comment="an operator has stopped it"),
    Column("worker", String(36), comment="the one who works at it, or did"),
    Column("leased_until", UtcDateTime, comment="the end of its lease: anybody may go on from then; null: at once"),
)
"""Operations that go on in the background, and have not ended: a row each, beside that of the audit trail."""

worker = Table(
    "outboxkit_worker",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("kind", String(10), nullable=False, comment="relay, consumer or retention"),
    Column("name", String(255), nullable=False, comment="the relay's destination, or the consumer's queue; else empty"),
    Column("release", String(50), nullable=False, comment="of outboxkit"),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("broker", Text, comment="its address, without user and password"),
    Column("exchange", String(255)),
    Column("started_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
    Column("skew", Float, comment="seconds by which the clock of its machine is ahead; null: not known"),
    Column("places", Integer, comment="messages that a consumer handles at once; null: not known"),
    Column("taken", Integer, comment="those of its places in which a handler runs"),
    Column("rate", Float, comment="messages that it publishes or handles a second; null: not known"),
    Column("rests", Boolean, nullable=False, server_default=false(), comment="it keeps a pause: nothing is in flight"),
    Column("sessions", Text, comment="process ids of its sessions in the database, as a JSON array"),
    Column("queues", Text, comment="lengths of the consumer's queues, as a JSON object"),
)
"""Relays, consumers and retentions that are there. Each says so every five seconds, and deletes its row at its end."""
