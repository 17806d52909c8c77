"""A plugin for Alembic's autogenerate: it keeps outboxkit's tables, and its partitions, which come and go.

Alembic loads it as one of its plugins (`alembic.plugins` in pyproject.toml) when it is imported itself.
"""

import re
from typing import TYPE_CHECKING, Any

from outboxkit import tables

if TYPE_CHECKING:
    from alembic.operations.ops import UpgradeOps
    from alembic.runtime.plugins import Plugin
    from alembic.util import PriorityDispatchResult

_PARTITION = re.compile(rf"({tables.inbox.name}|{tables.published.name})_(default|\d{{8}})")


def setup(plugin: "Plugin") -> None:
    """Add the comparator to a plugin of Alembic, which is half imported when it calls this."""
    from alembic.util import DispatchPriority  # noqa: PLC0415 - only if Alembic is used

    plugin.add_autogenerate_comparator(drop_nothing, "schema", qualifier="postgresql", priority=DispatchPriority.LAST)


def drop_nothing(
    context: Any,  # noqa: ARG001 - Alembic gives it
    operations: "UpgradeOps",
    schemas: set[str | None],  # noqa: ARG001
) -> "PriorityDispatchResult":
    """Remove operations on partitions, and drops of outboxkit's tables in any schema, from Alembic's list."""
    from alembic.operations.ops import DropTableOp  # noqa: PLC0415
    from alembic.util import PriorityDispatchResult  # noqa: PLC0415

    protected = {
        _target(operation)
        for operation in operations.ops
        if isinstance(operation, DropTableOp) and operation.table_name in tables.metadata.tables
    }
    operations.ops[:] = [
        operation
        for operation in operations.ops
        if _target(operation) not in protected and not _PARTITION.fullmatch(_target(operation)[1])
    ]
    return PriorityDispatchResult.CONTINUE


def _target(operation: Any) -> tuple[str | None, str]:
    """Schema and table of an operation; an operation on something else has the name ''."""
    return getattr(operation, "schema", None), getattr(operation, "table_name", "")
