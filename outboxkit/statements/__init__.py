"""Every SQL statement that outboxkit runs on its tables, as small named functions, a module for each concept.

Plain SQL of each is kept beside the tests (`tests/unit/sql/`). A docstring names the index that the statement relies
on and the locks it takes; a test explains the plans on PostgreSQL.
"""

from outboxkit.statements import (
    activity,
    audit,
    broker,
    claim,
    dead,
    dialects,
    effects,
    idempotency,
    inbox,
    lives,
    notifier,
    overdue,
    partitions,
    pauses,
    published,
    reconciliation,
    resolve,
    server,
    settle,
    status,
    storage,
    write,
)

__all__ = [
    "activity",
    "audit",
    "broker",
    "claim",
    "dead",
    "dialects",
    "effects",
    "idempotency",
    "inbox",
    "lives",
    "notifier",
    "overdue",
    "partitions",
    "pauses",
    "published",
    "reconciliation",
    "resolve",
    "server",
    "settle",
    "status",
    "storage",
    "write",
]
