"""A second step of the migrations, such as the next release may bring: tests need one, and there is none yet."""

import sys
from typing import Any

import pytest
import sqlalchemy as sa

from outboxkit import schema, tables
from outboxkit.schema import migrations

VERSION = 2


def upgrade(op: Any) -> None:
    op.add_column("outboxkit_dead_letter", _label())
    op.create_index("outboxkit_dead_letter_label", "outboxkit_dead_letter", ["label"])
    op.create_table("outboxkit_label", *_columns())


def downgrade(op: Any) -> None:
    op.drop_table("outboxkit_label")
    op.drop_index("outboxkit_dead_letter_label", table_name="outboxkit_dead_letter")
    op.drop_column("outboxkit_dead_letter", "label")


def register(monkeypatch: pytest.MonkeyPatch) -> sa.MetaData:
    """Have this process be the next release, until the test ends; returns the tables of that release."""
    monkeypatch.setitem(migrations.STEPS, VERSION, sys.modules[__name__])
    monkeypatch.setattr(migrations, "LATEST", VERSION)
    monkeypatch.setattr(schema, "NEEDED", VERSION)
    monkeypatch.setattr(tables, "SCHEMA_VERSION", VERSION)
    metadata = sa.MetaData()
    for table in tables.metadata.sorted_tables:
        copy = table.to_metadata(metadata)
        copy.dispatch._update(table.dispatch, only_propagate=False)  # what follows each CREATE TABLE
    label = _label()
    metadata.tables["outboxkit_dead_letter"].append_column(label)
    sa.Index("outboxkit_dead_letter_label", label)
    sa.Table("outboxkit_label", metadata, *_columns())
    return metadata


def _label() -> sa.Column[Any]:
    return sa.Column("label", sa.String(255), nullable=False, server_default="none", comment="of an operator")


def _columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.current_timestamp()),
    ]
