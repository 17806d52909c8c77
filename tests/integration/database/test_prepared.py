"""The driver's record of prepared statements, which is not public, and connections without it."""

from collections.abc import Iterator
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy import make_url

from outboxkit.database.connections import ThreadConnection, _Statements, can_begin_along, name_apart
from outboxkit.database.session_settings import GuardedEnd

PARTS = ("validate", "clear", "_prepared_idx")
MOVED = (
    f"psycopg {psycopg.__version__} has not {{}} on its connections; 3.3.7 to 3.3.9 have. Workers are correct without, "
    "and {}: find the new place, and change {} in outboxkit/database/connections.py"
)
COUNT = "SELECT count(*) FROM pg_prepared_statements"


@pytest.fixture
def driver(postgresql_url: str) -> Iterator[ThreadConnection]:
    url = make_url(postgresql_url).set(drivername="postgresql")
    with ThreadConnection.connect(url.render_as_string(hide_password=False)) as connection:
        yield connection


def end(driver: ThreadConnection) -> None:
    driver.ending = GuardedEnd("", lambda error: error)
    driver.commit()


def test_this_psycopg_has_the_parts_that_are_not_public(postgresql_url: str):
    url = make_url(postgresql_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        missing = [part for part in PARTS if not hasattr(getattr(connection, "_prepared", None), part)]
        begins_along = can_begin_along(connection)
    assert begins_along, MOVED.format("what can_begin_along asks for", "send BEGIN alone", "_BeginsAlong")
    assert not missing, MOVED.format(f"_prepared with {missing}", "prepare nothing", "_Statements and name_apart")


def test_what_sql_prepares_ends_and_the_drivers_own_are_prepared_again(driver: ThreadConnection):
    for _ in range(2):
        assert driver.execute("SELECT 1", prepare=True).fetchone() == (1,)
        end(driver)
        assert driver.execute(COUNT).fetchone() == (1,), "the driver's own stays"
        driver.execute("PREPARE mine AS SELECT 2")
        end(driver)
        assert driver.execute(COUNT).fetchone() == (0,)


def test_without_the_record_nothing_is_prepared_and_what_sql_prepares_ends(driver: ThreadConnection):
    bare = SimpleNamespace(prepare_threshold=5)
    driver.statements = _Statements(bare)
    assert bare.prepare_threshold is None
    bare.prepare_threshold = 5
    name_apart(bare)
    assert bare.prepare_threshold is None
    driver.prepare_threshold = None
    for _ in range(2):
        for _ in range(9):
            driver.execute("SELECT 1")
        driver.execute("PREPARE mine AS SELECT 2")
        end(driver)
        assert driver.execute(COUNT).fetchone() == (0,)


def test_a_connection_that_is_left_in_autocommit_mode_is_closed_with_its_transaction(driver: ThreadConnection):
    driver.rollback()
    driver.autocommit = True
    end(driver)
    assert driver.closed
