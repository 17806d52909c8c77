"""PostgreSQL's own plans of statements on large tables: by indexes, and of a bounded number of rows."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from outboxkit import statements
from tests.servers import Server, create_database, drop_database

STATISTICS = [pytest.param("without statistics", marks=pytest.mark.night), "with statistics"]
"""What the planner knows of the tables that operators' tools read."""


@contextmanager
def filled(
    server: Server, template: str, statistics: str, quiet: Sequence[str], *fill: tuple[str, dict[str, Any]]
) -> Iterator[Engine]:
    """A database for a module, with the rows of these statements; tables that are `quiet` have no autovacuum."""
    name = f"outboxkit_{secrets.token_hex(6)}"
    engine = create_engine(create_database(server.url, name, template=template))
    with engine.begin() as connection:
        for table in quiet:
            connection.execute(text(f"ALTER TABLE outboxkit_{table} SET (autovacuum_enabled = false)"))
        for statement, parameters in fill:
            connection.execute(text(statement), parameters)
    if statistics == "with statistics":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    yield engine
    engine.dispose()
    drop_database(server.url, name)


def explain(connection: Connection, statement: Any, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The nodes of the plan by which a statement was executed."""
    made = statement.compile(connection)
    query = f"EXPLAIN (ANALYZE, FORMAT JSON) {made}"
    return list(_walk(connection.exec_driver_sql(query, made.params | (parameters or {})).scalar_one()[0]["Plan"]))


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _walk(child)


def indexes_in(nodes: Sequence[dict[str, Any]]) -> set[str]:
    return {node["Index Name"] for node in nodes if "Index Name" in node}


def assert_bounded(
    engine: Engine, statement: Any, parameters: dict[str, Any], *, most: int, doc: str
) -> list[dict[str, Any]]:
    """The nodes of a plan, which reads no more rows than `most`, by indexes that the documentation names."""
    with engine.connect() as connection:
        connection.execute(statements.status.forbid_sorting())
        nodes = explain(connection, statement, parameters)
    assert not {"Seq Scan", "Bitmap Heap Scan"} & {node["Node Type"] for node in nodes}
    scans = [node for node in nodes if node.get("Relation Name", "").startswith("outboxkit")]
    assert scans
    for scan in scans:
        assert (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"] <= most, scan
    for index in indexes_in(nodes):
        assert ("primary key" if index.endswith("_pkey") else index) in " ".join(doc.split())
    return nodes
