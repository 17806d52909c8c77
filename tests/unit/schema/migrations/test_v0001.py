"""The first step. From its release on it must never change: databases out there have run it."""

import io
import os
import re
from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations

from outboxkit.schema.migrations import LATEST, v0001

GOLDEN = Path(__file__).with_name("v0001.postgresql.sql")


def test_the_released_ddl_is_as_it_was():
    text = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql", opts={"as_sql": True, "output_buffer": text, "literal_binds": True}
    )
    v0001.upgrade(Operations(context))
    v0001.downgrade(Operations(context))
    found = re.sub(r"[ \t]+$", "", text.getvalue(), flags=re.MULTILINE)
    if os.environ.get("UPDATE_SQL"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text(), (
        f"a released step never changes; before its release: UPDATE_SQL=1 pytest {__file__}"
    )


def test_it_is_frozen_before_there_is_a_second_step():
    assert LATEST == 1 or not hasattr(v0001, "tables"), "v0001.py needs the tables of its release for itself"
