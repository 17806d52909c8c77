"""What unit tests share: an environment without settings, and SQLite databases in temporary folders."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event

from tests.unit import shop


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OUTBOXKIT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def empty_url(tmp_path: Path) -> str:
    """A SQLite file without tables."""
    return f"sqlite:///{tmp_path}/empty.db"


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Unit tests run on SQLite alone, with a table of the application's own."""
    made = create_engine(sqlite_url)
    shop.metadata.create_all(made)
    made.dispose()
    return sqlite_url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """A sync engine with true transactions."""
    yield from _transactional(database_url)


@pytest.fixture
def empty_engine(empty_url: str) -> Iterator[Engine]:
    """The same, without tables."""
    yield from _transactional(empty_url)


def _transactional(url: str) -> Iterator[Engine]:
    made = create_engine(url)

    @event.listens_for(made, "connect")
    def _settle_in(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late for savepoints and for DDL

    @event.listens_for(made, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    yield made
    made.dispose()


@pytest.fixture
def spans() -> Iterator[Any]:
    from tests.support.spans import recording  # which needs OpenTelemetry's SDK

    with recording() as made:
        yield made
