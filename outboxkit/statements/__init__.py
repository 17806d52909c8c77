"""Every SQL statement that the core runs on its tables, as small named functions, a module for each concept.

Plain SQL of each is kept beside the tests (`tests/unit/sql/`). A docstring names the index that the statement relies
on and the locks it takes; a test explains the plans on PostgreSQL.
"""

from outboxkit.statements import (
    activity,
    attempts,
    claim,
    dead,
    dialects,
    effects,
    handlers,
    idempotency,
    inbox,
    notifier,
    partitions,
    pauses,
    published,
    retention,
    schema,
    server,
    settle,
    shards,
    status,
    workers,
    write,
)

__all__ = [
    "activity",
    "attempts",
    "claim",
    "dead",
    "dialects",
    "effects",
    "handlers",
    "idempotency",
    "inbox",
    "notifier",
    "partitions",
    "pauses",
    "published",
    "retention",
    "schema",
    "server",
    "settle",
    "shards",
    "status",
    "workers",
    "write",
]
