"""The examination: what it runs, what it leaves out, and that it never fails."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit.operators.doctor import examine as module
from outboxkit.operators.doctor.examine import Examined, examine
from outboxkit.operators.doctor.installation import Check, Installation, Thresholds
from outboxkit.operators.findings import Diagnosis, Severity
from outboxkit.runtime import process
from tests.unit.operators.doctor.checks import half, nothing, one_of_each, settings


@pytest.fixture
def installation(async_engine: AsyncEngine, database_url: str) -> Installation:
    return Installation(settings(database_url), async_engine)


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def run(installation: Installation, *checks: Check, monkeypatch: pytest.MonkeyPatch) -> Examined:
    monkeypatch.setattr(module, "BROKER", checks)
    return asyncio.run(examine(installation, ["broker"]))


def test_the_worst_comes_first(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(installation, Check("all", one_of_each), Check("fine", nothing), monkeypatch=monkeypatch)
    assert [finding.severity for finding in report.findings] == list(Severity)
    assert {(finding.side, finding.check) for finding in report.findings} == {("broker", "all")}
    assert (report.problems, report.warnings, report.passed) == (1, 1, ("broker: fine",))


def test_a_check_that_fails_is_a_finding(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(installation, Check("half", half), Check("fine", nothing), monkeypatch=monkeypatch)
    assert [finding.code for finding in report.findings] == ["first", "not-checked"]
    assert "ZeroDivisionError: a fault of the check itself" in report.findings[1].what
    assert report.passed == ("broker: fine",)


def test_a_check_that_does_not_end_is_a_finding(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    async def for_ever(_: Installation) -> AsyncGenerator[Diagnosis]:
        await asyncio.Event().wait()
        yield None  # type: ignore[misc]

    brief = replace(installation, thresholds=Thresholds(check_seconds=0.01))
    report = run(brief, Check("slow", for_ever), Check("fine", nothing), monkeypatch=monkeypatch)
    (finding,) = report.findings
    assert (finding.code, finding.check, report.passed) == ("not-checked", "slow", ("broker: fine",))
    assert "had not ended after 0.01 s" in finding.what


def test_names_of_checks_are_unique() -> None:
    for checks in (module.DATABASE, module.BROKER):
        names = [check.name for check in checks]
        assert len(set(names)) == len(names)


async def test_a_file_is_told_what_does_not_apply(installation: Installation) -> None:
    report = await examine(installation, ["database"])
    (finding,) = report.findings
    assert (finding.code, finding.severity) == ("file-database", Severity.NOTE)
    assert "rights, version, durability" in finding.what
    assert report.left_out == ()
    assert "database: relays" in report.passed


async def test_without_a_database_nothing_else_is_asked(tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/none.db"
    report = await examine(Installation(settings(url), process.engine(url, name="test")), ["database"])
    assert [finding.code for finding in report.findings] == ["database-missing"]
    assert "database: relays" in report.left_out
    assert report.passed == ("database: retention",)


async def test_nothing_secret_is_shown(installation: Installation) -> None:
    assert "hunter2" not in repr(await examine(installation, ["database"]))
