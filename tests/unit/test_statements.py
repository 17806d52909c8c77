"""Every statement as plain SQL, kept beside this test so that a reviewer reads it in the diff.

A public function of a module in `outboxkit/statements/` or `outboxkit/operators/sql/` that says it returns one is a
statement. After adding or changing one:

* run `UPDATE_SQL=1 python -m pytest tests/unit/test_statements.py`, which rewrites `tests/unit/sql/`: a file
  `<module>.<function>.sql` with PostgreSQL's text. The tests that run on both databases show what SQLite does;
* a parameter of the function called `dialect` is given the dialect's name; for every other one there must be a value in
  `EXAMPLES`. What `bindparam` names needs nothing;
* a statement that is executed with a dict of columns names them in `GIVEN`;
* the docstring says which locks it takes, and "PostgreSQL only" where that is so.
"""

import importlib
import inspect
import os
import pkgutil
import re
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_origin

import pytest
from sqlalchemy import ClauseElement, Dialect
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import psycopg2

from outboxkit import statements, tables
from outboxkit.operators import sql

FOLDER = Path(__file__).with_name("sql")
UPDATE = "UPDATE_SQL=1 python -m pytest tests/unit/test_statements.py"
PACKAGES = (statements, sql)
HOMES = {found.name: package.__name__ for package in PACKAGES for found in pkgutil.iter_modules(package.__path__)}
"""The package of each module with statements."""


def statements_of(module: str) -> dict[str, Callable[..., ClauseElement]]:
    """The public functions of a module that are defined there, by the name of their golden file."""
    found = vars(importlib.import_module(f"{HOMES[module]}.{module}")).items()
    return {
        f"{module}.{name}": function
        for name, function in found
        if inspect.isfunction(inspect.unwrap(function))
        and function.__module__ == f"{HOMES[module]}.{module}"
        and not name.startswith("_")
        and issubclass(returned_by(function), ClauseElement)
    }


def returned_by(function: Callable[..., Any]) -> type:
    """The class that the function says it returns, without the brackets."""
    said = inspect.signature(function).return_annotation
    found = get_origin(said) or said
    return found if isinstance(found, type) else object


FUNCTIONS = {
    name: function
    for module in HOMES
    if module != "dialects"  # it has parts of statements
    for name, function in statements_of(module).items()
}
MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)
EXAMPLES: dict[str, Any] = {
    "later": True,
    "limit": 31337,
    "filter_": sql.listing.Choice(type="OrderConfirmed", state="delayed", prefix="019c", since=MOMENT),
    "walk": sql.listing.LATER,
    "after": ("payments", MOMENT, 7),
    "newest_first": True,
    "now": MOMENT,
    "before": MOMENT,
    "day": MOMENT.date(),
    "channel": "outboxkit_1",
    "column": "error",
    "guarded": True,
    "handler": "SendReceipt",
    "names": ["SendReceipt"],
    "seen_since": MOMENT,
    "key": "order-7",
    "message_id": "m-1",
    "owner": "shop_owner",
    "partitioned": statements.partitions.INBOX,
    "schema": "messages",
    "selection": statements.dead.Selection(
        numbers=(7,),
        message_ids=("m-1",),
        type="OrderConfirmed",
        key="order-7",
        reason="rejected",
        side="outbox",
        destination="payments",
        handler="SendReceipt",
        error="refused",
        before=MOMENT,
        since=MOMENT,
    ),
    "table": tables.outbox,
    "waiting": sql.waiting.WaitingSelection(message_ids=("m-1",), type="OrderConfirmed", key="order-7", after=MOMENT),
    "type_": "OrderConfirmed",
    "unless_there": True,
}
"""An argument for every parameter name; `dialect` is the dialect's own name."""

DIALECTS: dict[str, Dialect] = {"postgresql": psycopg2.dialect(), "sqlite": sqlite.dialect()}
"""The elder of PostgreSQL's drivers: the younger one adds a cast to every parameter, which only hides the statement."""

_NEW_ROW = [column.name for column in statements.write.WRITTEN]
GIVEN = {"write.insert_one": _NEW_ROW}
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
    keys = {"column_keys": GIVEN[name]} if name in GIVEN else {}
    compiled = build(name, dialect).compile(dialect=type(dialect)(paramstyle="named"), **keys)
    text = re.sub(r"\(__\[POSTCOMPILE_(\w+)\]\)", r"(:\1, …)", str(compiled))
    lines: list[str] = []
    depth = 0
    for clause in CLAUSES.split(text.strip()):
        indent = "    " * depth
        lines += textwrap.wrap(clause, 120, initial_indent=indent, subsequent_indent=indent + "    ")
        depth += clause.count("(") - clause.count(")")
    return "\n".join(lines) + ";\n"


def dialects_of(name: str) -> list[str]:
    """The dialects that the statement is for."""
    return ["postgresql"] if "PostgreSQL only" in (inspect.getdoc(FUNCTIONS[name]) or "") else list(DIALECTS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_sql_is_the_one_that_was_reviewed(name: str):
    file, text = FOLDER / f"{name}.sql", plain_sql(name, DIALECTS["postgresql"])
    if os.environ.get("UPDATE_SQL"):
        file.write_text(text)
    assert file.exists(), f"{file.name} is missing; run: {UPDATE}"
    assert file.read_text() == text, f"{file.name} is not what statements.{name} says; if it should, run: {UPDATE}"


def test_every_file_belongs_to_a_statement():
    left_over = {file for file in FOLDER.iterdir() if file.stem not in FUNCTIONS}
    if os.environ.get("UPDATE_SQL"):
        for file in left_over:
            file.unlink()
        return
    assert left_over == set()


def test_the_package_names_every_module():
    assert sorted([*statements.__all__, *sql.__all__]) == sorted(HOMES)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_statement_says_what_it_locks(name: str):
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    assert "Lock" in text, f"the docstring of statements.{name} does not say which locks it takes"


@pytest.mark.parametrize(
    "name", [name for name, function in FUNCTIONS.items() if "day" not in inspect.signature(function).parameters]
)
def test_no_value_is_ever_part_of_the_text(name: str):
    for kind in dialects_of(name):
        text = plain_sql(name, DIALECTS[kind])
        assert [value for value in ("2026", "SendReceipt", "order-7", "OrderConfirmed", "31337") if value in text] == []


def test_both_claims_read_the_same_columns():
    ready, due = (
        [column.name for column in claim().selected_columns]
        for claim in (statements.claim.claim_ready, statements.claim.claim_due)
    )
    assert ready == due == [column.name for column in statements.claim.CLAIMED]
    assert {column.name for column in tables.published.columns} - {"published_at", "destination"} <= set(ready)
