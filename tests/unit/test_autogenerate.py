"""What is taken off Alembic's list, and what stays on it. The real list is made in the integration tests."""

import subprocess
import sys

import pytest
from alembic.operations.ops import CreateTableOp, DropIndexOp, DropTableOp, ModifyTableOps, UpgradeOps
from sqlalchemy import Column, Integer

from outboxkit.autogenerate import drop_nothing, register
from tests.pages import ROOT


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


NOT_INSTALLED = """
import importlib.metadata
importlib.metadata.entry_points = lambda **_: []
if {alembic_first}:
    from alembic.autogenerate import compare
import outboxkit
from alembic.autogenerate import compare
from outboxkit.autogenerate import drop_nothing
entries = [each for functions in compare.comparators._registry.values() for each in functions]
print(sum(drop_nothing in each for each in entries))
"""


@pytest.mark.parametrize("alembic_first", [True, False])
def test_a_package_that_is_not_installed_is_registered_by_its_import(alembic_first: bool):
    """As the command `alembic` has it, which imports Alembic first."""
    program = NOT_INSTALLED.format(alembic_first=alembic_first)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == f"{int(alembic_first)}\n"


def test_without_alembic_there_is_nothing_to_register(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "alembic.autogenerate.compare")
    register()
    assert "alembic.autogenerate.compare" not in sys.modules
