"""`outboxkit doctor` on SQLite; tests/integration/test_doctor*.py have what only a server knows."""

import json
from pathlib import Path

from tests.unit.cli.conftest import Run

SECRET = "postgresql+psycopg://shop:hunter2@127.0.0.1:1/shop"
DATABASE = ("--only", "database")


def test_a_healthy_file_ends_with_0(run: Run, sqlite_url: str) -> None:
    ended = run("doctor", *DATABASE, "--database-url", sqlite_url)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[:2] == [f"database  {sqlite_url}", "broker    amqp://localhost:5672/"]
    assert lines[-1] == "0 problems, 0 warnings, 0 notes"


def test_a_problem_ends_with_1_and_has_its_cure(run: Run, tmp_path: Path) -> None:
    ended = run("doctor", *DATABASE, "--database-url", f"sqlite:///{tmp_path}/none.db")
    assert (ended.code, ended.err) == (1, "")
    assert "PROBLEM tables-missing (database)" in ended.out
    assert "\n           outboxkit migrate\n" in ended.out
    assert not (tmp_path / "none.db").exists()


def test_a_warning_alone_ends_with_3(run: Run, sqlite_url: str) -> None:
    ended = run("doctor", *DATABASE, "--database-url", sqlite_url, inbox_retention="90m")
    assert ended.code == 3
    assert "WARNING retention-short (database)" in ended.out


def test_a_server_that_is_away_is_a_finding_without_a_secret(run: Run) -> None:
    ended = run("doctor", *DATABASE, "--json", "--database-url", SECRET)
    assert ended.code == 1
    report = json.loads(ended.out)
    assert report["database"] == "postgresql://127.0.0.1:1/shop"
    assert [finding["code"] for finding in report["findings"]] == ["database-away"]
    assert (report["problems"], report["warnings"], report["passed"]) == (1, 0, [])
    assert "hunter2" not in ended.out + ended.err


def test_a_file_that_is_no_database_has_a_cure_of_its_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("hello " * 1000)
    ended = run("doctor", *DATABASE, "--json", "--database-url", f"sqlite:///{tmp_path}/text.db")
    (finding,) = json.loads(ended.out)["findings"]
    assert (finding["code"], "SQLite: the path must lead to one of its files" in finding["cure"]) == (
        "database-away",
        True,
    )


def test_wrong_usage_ends_with_2(run: Run, sqlite_url: str) -> None:
    for arguments, retention in ((("--only", "disk"), "1d"), (("no.such.module",), "1d"), ((), "soon")):
        ended = run("doctor", *arguments, "--database-url", sqlite_url, inbox_retention=retention)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.count("\n") == 1


def test_handlers_are_compared_with_the_retention(run: Run, sqlite_url: str) -> None:
    module = "tests.unit.cli.one_handler"
    ended = run("doctor", module, *DATABASE, "--database-url", sqlite_url, inbox_retention="10m")
    assert ended.code == 1
    assert "PROBLEM retention-short (database)" in ended.out
    assert "OUTBOXKIT_INBOX_RETENTION=1d" in ended.out
