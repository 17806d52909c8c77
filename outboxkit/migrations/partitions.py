"""What Alembic's autogenerate must know: a partition of a table is no table that somebody forgot to declare."""

from typing import Any

from alembic.autogenerate import comparators
from alembic.operations.ops import UpgradeOps
from alembic.util import DispatchPriority, PriorityDispatchResult

from outboxkit import tables

_PARTITIONS = f"{tables.published.name}_", f"{tables.inbox.name}_"


@comparators.dispatch_for("schema", qualifier="postgresql", priority=DispatchPriority.LAST)
def leave_partitions_alone(
    context: Any,  # noqa: ARG001 - Alembic gives it
    operations: UpgradeOps,
    schemas: set[str | None],  # noqa: ARG001
) -> PriorityDispatchResult:
    """Take what Alembic wants to do to partitions, which come and go with the days, off its list."""
    operations.ops[:] = [
        operation for operation in operations.ops if not getattr(operation, "table_name", "").startswith(_PARTITIONS)
    ]
    return PriorityDispatchResult.CONTINUE
