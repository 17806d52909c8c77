"""The second step: the DDL that takes tables of version 1 to version 2, and back."""

import io
import os
import re
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import create_engine, text

from outboxkit.migrations import v0001, v0002

GOLDEN = Path(__file__).parent
ADD = """
INSERT INTO outboxkit_outbox (message_id, type, payload, headers, content_type)
VALUES ('m', 'T', '', '', 'application/json')
"""


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_the_released_ddl_is_as_it_was(dialect: str):
    output = io.StringIO()
    context = MigrationContext.configure(
        dialect_name=dialect, opts={"as_sql": True, "output_buffer": output, "literal_binds": True}
    )
    v0002.upgrade(Operations(context))
    v0002.downgrade(Operations(context))
    found = re.sub(r"[ \t]+$", "", output.getvalue(), flags=re.MULTILINE)
    golden = GOLDEN / f"v0002.{dialect}.sql"
    if os.environ.get("UPDATE_SQL"):
        golden.write_text(found)
    assert found == golden.read_text(), (
        f"a released step never changes; before its release: UPDATE_SQL=1 pytest {__file__}"
    )


def test_on_sqlite_no_position_is_given_twice():
    """A dead letter keeps its place, behind which later messages of its key wait."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        v0001.upgrade(operations)
        connection.execute(text(ADD))
        v0002.upgrade(operations)
        connection.execute(text(ADD))
        assert list(connection.execute(text("SELECT position FROM outboxkit_outbox")).scalars()) == [1, 2]
        connection.execute(text("DELETE FROM outboxkit_outbox"))
        connection.execute(text(ADD))
        assert connection.execute(text("SELECT position FROM outboxkit_outbox")).scalar_one() == 3
    engine.dispose()
