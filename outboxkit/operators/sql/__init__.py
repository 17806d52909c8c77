"""SQL statements of operators' tools alone, as small named functions. `outboxkit.statements` has those of the core."""

from outboxkit.operators.sql import actions, background, doctor, listing, reconciliation, resolve, trace, waiting

__all__ = ["actions", "background", "doctor", "listing", "reconciliation", "resolve", "trace", "waiting"]
