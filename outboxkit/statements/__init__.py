"""Every SQL statement that outboxkit runs on its tables, as small named functions, a module for each concept.

Plain SQL of each is kept beside the tests (`tests/unit/sql/`). A docstring names the index that the statement relies
on and the locks it takes; a test explains the plans on PostgreSQL.
"""

from outboxkit.statements import (
    activity,
    claim,
    dead,
    dialects,
    doctor,
    effects,
    idempotency,
    inbox,
    notifier,
    operations,
    partitions,
    published,
    reconciliation,
    resolve,
    server,
    settle,
    shards,
    status,
    trace,
    write,
)

__all__ = [
    "activity",
    "claim",
    "dead",
    "dialects",
    "doctor",
    "effects",
    "idempotency",
    "inbox",
    "notifier",
    "operations",
    "partitions",
    "published",
    "reconciliation",
    "resolve",
    "server",
    "settle",
    "shards",
    "status",
    "trace",
    "write",
]
