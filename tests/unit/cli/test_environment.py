"""Secrets in files, and variables that are not settings."""

import os
from pathlib import Path

import pytest

from outboxkit import ConfigurationError
from outboxkit.runtime import settings
from outboxkit.runtime.settings import SECRETS, variable
from tests.unit.cli.conftest import Run

WHSEC = "whsec_" + "aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg=="
VALUES = {
    "database_url": "postgresql+psycopg://app:hunter2@db/shop",
    "broker_url": "amqps://app:hunter2@mq/",
    "management_url": "https://app:hunter2@mq:15671",
    "http_secret": WHSEC,
    "http_authorization": "Bearer hunter2",
}


@pytest.fixture(autouse=True)
def _database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOXKIT_DATABASE_URL", "sqlite://")


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_secret_may_stand_in_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "secret"
    monkeypatch.delenv(variable(name), raising=False)
    monkeypatch.setenv(f"{variable(name)}_FILE", str(file))
    for ending in ("", "\n", "\r\n"):
        file.write_bytes((VALUES[name] + ending).encode())
        chosen = settings.load({"database_url": "sqlite://"} if name != "database_url" else {})
        assert getattr(chosen, name).get_secret_value() == VALUES[name]
        assert "hunter2" not in repr(chosen)
    assert not list(settings.unknown_variables())
    monkeypatch.setenv(variable(name), VALUES[name])
    named = {"database_url": "sqlite://", name: VALUES[name]}
    assert getattr(settings.load(named), name).get_secret_value() == VALUES[name]  # an option wins over both
    named.pop(name)
    with pytest.raises(ConfigurationError, match=f"{variable(name)} and {variable(name)}_FILE are both set"):
        settings.load(named)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "it cannot be read (No such file or directory)"),
        ("folder", "it cannot be read (Is a directory)"),
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\xff\xfe hunter2", "it is not text in UTF-8"),
        (b"amqp://u:hunter2@mq/\nhunter2", "it holds more than one line"),
        (b"hunter2\0", "it holds more than one line"),
        (b"h" * 100_000, "it holds more than one line"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_with_variable_and_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | str | None, said: str
):
    file = tmp_path / "secret"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        file.mkdir()
    monkeypatch.setenv("OUTBOXKIT_BROKER_URL_FILE", str(file))
    ended = run("status")
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith(f"outboxkit: OUTBOXKIT_BROKER_URL_FILE is '{file}': {said}")
    assert "hunter2" not in line


def test_a_value_in_the_file_that_is_not_accepted_names_the_file_and_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "url").write_text("mysql://u:hunter2@db/x\n")
    monkeypatch.delenv("OUTBOXKIT_DATABASE_URL")
    monkeypatch.setenv("OUTBOXKIT_DATABASE_URL_FILE", str(tmp_path / "url"))
    with pytest.raises(ConfigurationError) as raised:
        settings.load()
    assert str(raised.value).startswith("OUTBOXKIT_DATABASE_URL_FILE cannot be used: ")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("value", ["postgresql://u:hunter2@db/x", WHSEC, "Bearer hunter2"])
def test_a_secret_in_the_place_of_its_files_path_is_not_shown(value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTBOXKIT_HTTP_AUTHORIZATION_FILE", value)
    with pytest.raises(ConfigurationError, match=r"OUTBOXKIT_HTTP_AUTHORIZATION_FILE: it cannot be read") as raised:
        settings.load()
    assert value not in str(raised.value)


def test_an_unknown_variable_is_told_with_the_nearest_setting(
    run: Run, database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    others = ("TEST_DATABASE_URL", "SERVICE_HOST", "RELAY_PORT_8000_TCP_ADDR")
    for name in ("CONCURENCY", "XYZZY\n{}", *others):
        monkeypatch.setenv(f"OUTBOXKIT_{name}", "1")
    monkeypatch.setenv("outboxkit_log_level", "error")
    lines = [
        "OUTBOXKIT_CONCURENCY is not a setting: did you mean OUTBOXKIT_CONCURRENCY?",
        r"OUTBOXKIT_XYZZY\n{} is not a setting",
    ]
    assert list(settings.unknown_variables()) == lines
    ended = run("status", "--database-url", database_url)
    assert ended.code == 0
    assert ended.err.splitlines() == [f"outboxkit: {line}" for line in lines]
    monkeypatch.delenv("outboxkit_log_level")
    drained = run("republish", "--to-queue", "q", "--database-url", database_url)
    assert "did you mean OUTBOXKIT_CONCURRENCY?" in drained.err.splitlines()[0]
    assert drained.err.startswith("{")


def test_a_misspelt_database_url_is_told_beside_what_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTBOXKIT_DATABSE_URL", os.environ["OUTBOXKIT_DATABASE_URL"])
    monkeypatch.delenv("OUTBOXKIT_DATABASE_URL")
    ended = run("status")
    assert ended.code == 2
    missing, hint = ended.err.splitlines()
    assert missing.startswith("outboxkit: OUTBOXKIT_DATABASE_URL is not set")
    assert hint == "OUTBOXKIT_DATABSE_URL is not a setting: did you mean OUTBOXKIT_DATABASE_URL?"


def test_an_error_names_the_option_that_was_given_and_else_the_variable(run: Run):
    given = ("consume", "tests.unit.cli.one_handler", "--queue", "q", "--database-url", "sqlite://")
    by_option, by_variable = run(*given, "--concurrency", "none"), run(*given, concurrency="none")
    assert (by_option.code, by_variable.code) == (2, 2)
    assert "--concurrency is 'none'" in by_option.err
    assert "OUTBOXKIT_CONCURRENCY" not in by_option.err
    assert "OUTBOXKIT_CONCURRENCY is 'none'" in by_variable.err
