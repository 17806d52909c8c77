"""Version 1: every table, index, default partition and trigger, as `outboxkit.tables` has them until the first release.

With the release it is frozen: the second step brings its own changes, and this one no longer reads the tables.
"""

from operator import attrgetter
from typing import Any

from outboxkit import tables
from outboxkit.errors.extras import needs_extra
from outboxkit.tables.postgresql import ANSWERED, GUARD, TRIGGER

with needs_extra(__name__):
    from alembic.operations.ops import CreateIndexOp, CreateTableOp


def upgrade(op: Any) -> None:
    """Create all tables with their indexes; on PostgreSQL also the default partitions and the triggers."""
    for table in tables.metadata.sorted_tables:
        op.invoke(CreateTableOp.from_table(table))
        for index in sorted(table.indexes, key=attrgetter("name")):
            op.invoke(CreateIndexOp.from_index(index))
    if op.get_context().dialect.name == "postgresql":
        for _, statement in tables.ON_SERVER:
            op.execute(statement)


def downgrade(op: Any) -> None:
    """Drop all tables with everything in them, and the triggers."""
    for table in reversed(tables.metadata.sorted_tables):
        op.drop_table(table.name)
    if op.get_context().dialect.name == "postgresql":
        op.execute(f"DROP FUNCTION {TRIGGER}()")
        op.execute(f"DROP FUNCTION {GUARD}()")
        op.execute(f"DROP FUNCTION {ANSWERED}()")
