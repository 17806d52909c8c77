"""The examination: what it runs, what it leaves out, and that it never fails."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.operators.doctor import broker
from outboxkit.operators.doctor import examine as module
from outboxkit.operators.doctor.examine import SideReport, examine, examine_database, worst_first
from outboxkit.operators.doctor.installation import Check, Database, Installation
from outboxkit.operators.findings import Diagnosis, Limits, finding
from outboxkit.runtime import process
from outboxkit.runtime.settings import Settings, load


def settings(url: str) -> Settings:
    return load({"database_url": url, "broker_url": "amqp://guest:hunter2@localhost:1/"})


@pytest.fixture
def installation(async_engine: AsyncEngine, database_url: str) -> Installation:
    return Installation(settings(database_url), async_engine)


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def one_of_each(_: Database) -> Iterator[Diagnosis]:
    yield finding("due-far", to="", due="2027", days=90)
    yield finding("effect-unknown", calls="1 call")
    yield finding("paused", pause="p")
    yield finding("slot-unused", slot="s", size="2 MB")


def nothing(_: Database) -> Iterator[Diagnosis]:
    yield from ()


def half(_: Database) -> Iterator[Diagnosis]:
    yield finding("effect-unknown", calls="1 call")
    raise ZeroDivisionError("a fault of the check itself")


def run(installation: Installation, *finds: object) -> SideReport:
    checks = [Check(find.__name__, find, needs_server=False) for find in finds]  # type: ignore[arg-type, attr-defined]
    return asyncio.run(examine_database(installation, checks))


def test_the_worst_comes_first(installation: Installation) -> None:
    report = run(installation, one_of_each, nothing)
    assert [each.severity for each in worst_first(report.findings)] == ["problem", "warning", "warning", "note"]
    assert {(each.side, each.check) for each in report.findings} == {("database", "one_of_each")}
    assert report.passed == ["database: connection", "database: tables", "database: nothing"]


def test_a_check_that_fails_is_a_finding(installation: Installation) -> None:
    report = run(installation, half, nothing)
    assert [each.code for each in report.findings] == ["effect-unknown", "not-checked"]
    assert "ZeroDivisionError: a fault of the check itself" in report.findings[1].what
    assert "database: nothing" in report.passed


def test_a_check_that_does_not_end_is_a_finding(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(database: Database) -> Iterator[Diagnosis]:
        while True:
            database.rows(module.messages.doctor.oldest_dead())
            yield from ()

    brief = replace(installation, limits=Limits(check_seconds=1.0))
    report = run(brief, endless, nothing)
    (found,) = report.findings
    assert (found.code, found.check) == ("not-checked", "endless")
    assert "had not ended after 1 s" in found.what
    assert "database: nothing" in report.passed


def test_a_broker_that_takes_too_long_is_a_finding(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(_: Installation) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(broker, "read_snapshot", endless)
    report = asyncio.run(examine(replace(installation, limits=Limits(check_seconds=0.2)), ("broker",)))
    (found,) = report.findings
    assert found.what == "The check of connection could not be done: it had not ended after 0.4 s."


async def test_a_file_is_told_what_does_not_apply(installation: Installation) -> None:
    report = await examine(installation, ["database"])
    assert report.findings == ()
    assert {"database: rights", "database: durability"} <= set(report.left_out)
    assert "database: relays" in report.passed


async def test_without_a_database_nothing_else_is_asked(tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/none.db"
    report = await examine(Installation(settings(url), process.engine(url, name="test")), ["database"])
    assert [each.code for each in report.findings] == ["tables-missing"]
    assert "database: relays" in report.left_out
    assert report.passed == ()


async def test_nothing_secret_is_shown(installation: Installation) -> None:
    assert "hunter2" not in repr(await examine(installation))
