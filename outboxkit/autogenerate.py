"""What Alembic's autogenerate must know: no table of outboxkit is to be dropped, and no partition, which come and go.

Alembic loads this as one of its plugins (`alembic.plugins` in pyproject.toml), whenever it is imported itself. A
package that is on the path without being installed has no plugins; for it `import outboxkit` registers this, if Alembic
was imported before, as it was by the command `alembic`.
"""

import re
import sys
from typing import TYPE_CHECKING, Any

from outboxkit import tables

if TYPE_CHECKING:
    from alembic.operations.ops import UpgradeOps
    from alembic.runtime.plugins import Plugin
    from alembic.util import PriorityDispatchResult

_PARTITION = re.compile(rf"({tables.inbox.name}|{tables.published.name})_(default|\d{{8}})")


def setup(plugin: "Plugin") -> None:
    """Add what is below to a plugin of Alembic, which is half imported when it calls this."""
    from alembic.util import DispatchPriority  # noqa: PLC0415 - only where Alembic is used

    plugin.add_autogenerate_comparator(drop_nothing, "schema", qualifier="postgresql", priority=DispatchPriority.LAST)


def register() -> None:
    """Add it to the autogenerate of an Alembic that is there already. Twice does no harm."""
    comparators = getattr(sys.modules.get("alembic.autogenerate.compare"), "comparators", None)
    if comparators is not None:
        from alembic.util import DispatchPriority  # noqa: PLC0415

        of_postgresql = {"qualifier": "postgresql", "priority": DispatchPriority.LAST}
        comparators.dispatch_for("schema", **of_postgresql)(drop_nothing)


def drop_nothing(
    context: Any,  # noqa: ARG001 - Alembic gives it
    operations: "UpgradeOps",
    schemas: set[str | None],  # noqa: ARG001
) -> "PriorityDispatchResult":
    """Take off Alembic's list what it wants to do to partitions, and the dropping of a table, in whichever schema."""
    from alembic.operations.ops import DropTableOp  # noqa: PLC0415
    from alembic.util import PriorityDispatchResult  # noqa: PLC0415

    kept = {
        _place(operation)
        for operation in operations.ops
        if isinstance(operation, DropTableOp) and operation.table_name in tables.metadata.tables
    }
    operations.ops[:] = [
        operation
        for operation in operations.ops
        if _place(operation) not in kept and not _PARTITION.fullmatch(_place(operation)[1])
    ]
    return PriorityDispatchResult.CONTINUE


def _place(operation: Any) -> tuple[str | None, str]:
    """Schema and table of an operation; an operation on something else has the name ''."""
    return getattr(operation, "schema", None), getattr(operation, "table_name", "")
