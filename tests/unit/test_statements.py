"""Every statement as plain SQL, kept beside this test so that a reviewer reads it in the diff.

`UPDATE_SQL=1 pytest tests/unit/test_statements.py` rewrites the files in `tests/unit/sql/`.
"""

import inspect
import os
import re
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import ClauseElement, Dialect, insert
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import psycopg2

from outboxkit import statements, tables
from tests.unit.shop import NOW

FOLDER = Path(__file__).with_name("sql")
UPDATE = "UPDATE_SQL=1 python -m pytest tests/unit/test_statements.py"
FUNCTIONS = {
    name: function
    for name, function in vars(statements).items()
    if inspect.isfunction(function) and function.__module__ == statements.__name__ and not name.startswith("_")
}
MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)
EXAMPLES: dict[str, Any] = {
    "limit": 500,
    "now": MOMENT,
    "before": MOMENT,
    "positions": [1, 2, 3],
    "handler": "SendReceipt",
    "message_id": "m-1",
    "type_": "OrderConfirmed",
}
"""An argument for every parameter name; `dialect` is the dialect's own name."""

DIALECTS: dict[str, Dialect] = {"postgresql": psycopg2.dialect(), "sqlite": sqlite.dialect()}
"""The elder of PostgreSQL's drivers: the younger one adds a cast to every parameter, which only hides the statement."""

GIVEN = {"bury": [column.name for column in tables.dead_letter.columns if column.name not in ("id", "dead_at")]}
"""The columns of statements that are executed with a dict."""

CLAUSES = re.compile(
    r"\s*\n\s*|(?<!DELETE)\s+(?=(?:FROM|WHERE|ORDER BY|GROUP BY|LIMIT|VALUES|SET|ON CONFLICT|RETURNING|FOR UPDATE)\b)"
)


def build(name: str, dialect: Dialect) -> ClauseElement:
    """The statement that the function makes of the example arguments."""
    function = FUNCTIONS[name]
    given = {
        parameter: dialect.name if parameter == "dialect" else EXAMPLES[parameter]
        for parameter in inspect.signature(function).parameters
    }
    return function(**given)


def plain_sql(name: str, dialect: Dialect) -> str:
    """The statement with named parameters, a clause a line, deeper ones indented, long ones folded."""
    compiled = build(name, dialect).compile(dialect=type(dialect)(paramstyle="named"), column_keys=GIVEN.get(name))
    text = re.sub(r"\(__\[POSTCOMPILE_(\w+)\]\)", r"(:\1, …)", str(compiled))
    lines: list[str] = []
    depth = 0
    for clause in CLAUSES.split(text.strip()):
        indent = "    " * depth
        lines += textwrap.wrap(clause, 100, initial_indent=indent, subsequent_indent=indent + "    ")
        depth += clause.count("(") - clause.count(")")
    return "\n".join(lines) + ";\n"


def golden_files(name: str) -> dict[Path, str]:
    """What must be in which files: one for PostgreSQL, and one for SQLite where it reads otherwise."""
    texts = {kind: plain_sql(name, dialect) for kind, dialect in DIALECTS.items()}
    files = {FOLDER / f"{name}.sql": texts["postgresql"]}
    if texts["sqlite"] != texts["postgresql"]:
        files[FOLDER / f"{name}.sqlite.sql"] = texts["sqlite"]
    return files


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_sql_is_the_one_that_was_reviewed(name: str):
    wanted = golden_files(name)
    kept = set(FOLDER.glob(f"{name}.sql")) | set(FOLDER.glob(f"{name}.sqlite.sql"))
    if os.environ.get("UPDATE_SQL"):
        for file in kept - wanted.keys():
            file.unlink()
        for file, text in wanted.items():
            file.write_text(text)
        return
    assert kept == wanted.keys(), f"files are missing or left over; run: {UPDATE}"
    for file, text in wanted.items():
        assert file.read_text() == text, f"{file.name} is not what statements.{name} says; if it should, run: {UPDATE}"


def test_every_file_belongs_to_a_statement():
    assert {file.name.partition(".")[0] for file in FOLDER.iterdir()} == FUNCTIONS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_statement_says_what_it_locks(name: str):
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    if name != "alive":
        assert "Lock" in text, f"the docstring of statements.{name} does not say which locks it takes"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_value_is_ever_part_of_the_text(name: str):
    for dialect in DIALECTS.values():
        text = plain_sql(name, dialect)
        assert "2026" not in text
        assert "SendReceipt" not in text
        assert "500" not in text


def test_a_claim_reads_the_columns_that_a_message_is_made_of():
    claimed = [column.name for column in statements.claim_ready(1).selected_columns]
    assert claimed == [column.name for column in statements.claim_due(NOW, 1).selected_columns]
    assert set(claimed) == {column.name for column in tables.outbox.columns} - {"due_at", "last_error"}


def test_a_dead_letter_may_have_every_column():
    assert str(statements.bury()) == str(insert(tables.dead_letter))
