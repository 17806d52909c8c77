"""The fifth step: the DDL that takes tables of version 4 to version 5, and back."""

import io
import os
import re
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations

from outboxkit.migrations import v0005

GOLDEN = Path(__file__).parent


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_the_released_ddl_is_as_it_was(dialect: str):
    output = io.StringIO()
    context = MigrationContext.configure(
        dialect_name=dialect, opts={"as_sql": True, "output_buffer": output, "literal_binds": True}
    )
    v0005.upgrade(Operations(context))
    v0005.downgrade(Operations(context))
    found = re.sub(r"[ \t]+$", "", output.getvalue(), flags=re.MULTILINE)
    golden = GOLDEN / f"v0005.{dialect}.sql"
    if os.environ.get("UPDATE_SQL"):
        golden.write_text(found)
    assert found == golden.read_text(), (
        f"a released step never changes; before its release: UPDATE_SQL=1 pytest {__file__}"
    )
