"""What is taken off Alembic's list, and what stays on it. The real list is made in the integration tests."""

from alembic.operations.ops import CreateTableOp, DropIndexOp, DropTableOp, ModifyTableOps, UpgradeOps
from sqlalchemy import Column, Integer

from outboxkit.schema.autogenerate import drop_nothing


def test_only_what_is_done_to_partitions_and_the_dropping_of_tables_is_taken_off():
    partition = "outboxkit_published_20260301"
    stays = [
        DropTableOp("orders"),
        DropTableOp("outboxkit_inbox_notes"),
        ModifyTableOps("outboxkit_outbox", [DropIndexOp("by_hand", "outboxkit_outbox")]),
        CreateTableOp("receipts", [Column("id", Integer)]),
        ModifyTableOps("orders", [DropIndexOp("orders_by_day", "orders")]),
    ]
    operations = UpgradeOps(
        [
            *stays[:3],
            DropTableOp(partition),
            *stays[3:],
            ModifyTableOps(partition, [DropIndexOp("of_a_day", partition)]),
            DropTableOp("outboxkit_published_default"),
            DropTableOp("outboxkit_inbox_20260301"),
            DropTableOp("outboxkit_inbox_default"),
            DropTableOp("outboxkit_inbox_20260301", schema="tenant"),
            ModifyTableOps("outboxkit_outbox", [DropIndexOp("by_hand", "outboxkit_outbox")], schema="tenant"),
            DropTableOp("outboxkit_outbox", schema="tenant"),
        ]
    )
    drop_nothing(None, operations, {None})
    assert operations.ops == stays
