"""Missing or old tables, and an old server: every command says in one line what to do, and exits."""

import json
import sys

import pytest
from sqlalchemy.dialects.postgresql.base import PGDialect

from outboxkit import cli
from tests.servers.ports import free_ports
from tests.support import second_step
from tests.support.databases import migrate

COMMANDS = {
    "migrate --check": ["migrate", "--check"],
    "relay": ["relay"],
    "relay --drain": ["relay", "--drain"],
    "consume": ["consume", "tests.acceptance.shop"],
    "consume --drain": ["consume", "tests.acceptance.shop", "--drain"],
    "status": ["status"],
    "prune": ["prune"],
    "dead list": ["dead", "list"],
    "dead replay": ["dead", "replay", "1", "--yes"],
    "republish": ["republish", "--to-queue", "queue", "--since", "1h", "--yes"],
}


@pytest.fixture(autouse=True)
def _settings(empty_postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("OUTBOXKIT_DATABASE_URL", empty_postgresql_url)
    monkeypatch.setenv("OUTBOXKIT_BROKER_URL", f"amqp://127.0.0.1:{port}/")
    monkeypatch.setenv("OUTBOXKIT_QUEUE", "queue")


@pytest.mark.parametrize("command", [each for each in COMMANDS if each != "status"])
def test_missing_tables(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert failure(command, monkeypatch, capsys) == (
        "outboxkit: the outboxkit tables are missing: run `outboxkit migrate`, "
        "or add migrations.upgrade(op, to=1) to your Alembic history\n"
    )


@pytest.mark.parametrize("command", ["migrate --check", "relay", "consume --drain"])
def test_old_tables(
    command: str, empty_postgresql_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    migrate(empty_postgresql_url)
    second_step.register(monkeypatch)
    assert failure(command, monkeypatch, capsys) == (
        "outboxkit: the outboxkit tables have version 1, this code needs 2: run `outboxkit migrate`, "
        "or add migrations.upgrade(op, since=1, to=2) to your Alembic history\n"
    )


@pytest.mark.parametrize("command", ["migrate", *COMMANDS])
def test_an_old_server(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(PGDialect, "_get_server_version_info", lambda dialect, connection: (12, 22))
    assert failure(command, monkeypatch, capsys, code=2) == (
        "outboxkit: the database server is PostgreSQL 12.22; 13 to 18 and newer ones are accepted: upgrade the server, "
        "or name another one in the database URL\n"
    )


def failure(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, code: int = 1) -> str:
    monkeypatch.setattr(sys, "argv", ["outboxkit", *COMMANDS.get(command, [command])])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    printed = capsys.readouterr()
    assert printed.out == ""
    *log, error = printed.err.splitlines(keepends=True)
    assert {json.loads(line)["level"] for line in log} <= {"info"}
    return error
