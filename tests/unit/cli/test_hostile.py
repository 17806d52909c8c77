"""Odd arguments and settings end in a documented exit status, with no traceback and no secret."""

from pathlib import Path

import pytest

from outboxkit.errors import ConfigurationError
from outboxkit.runtime import settings
from outboxkit.runtime.settings import SECRETS, Settings, variable
from tests.support.grammar import Grammar
from tests.support.night import by_night, chance
from tests.unit.cli.conftest import Run

SECRET = "hunter2"
COMMANDS = (
    *(("status",), ("dead", "list"), ("dead", "show"), ("dead", "replay"), ("dead", "discard"), ("waiting", "list")),
    *(("migrate",), ("prune",), ("doctor",), ("trace",), ("pause",), ("republish",), ("reconcile",), ("schemas",)),
    *(("audit",), ("requests",), ("handlers",), ("nothing",), ("relay", "--drain"), ("consume", "shop:x", "--drain")),
)
OPTIONS = (
    *("--json", "--help", "--yes", "--id", "--type", "--key", "--limit", "--older", "--newer", "--queue", "--handler"),
    *("--batch-size", "--concurrency", "--retry-delays", "--log-level", "--since", "--until", "--all", "--dry-run"),
    *("--group-by", "--reason", "--destination", "--exchange", "--shards", "--admin-port", "--bind", "--readers", "-x"),
)
URLS = (
    *("x://{}@h/d", "postgresql+psycopg://u:{}@[::1/d", "postgresql+psycopg://u:{}@h:x/d", "mysql://u:{}@h/x"),
    *("amqp://u:{}@h:99999/", "amqp://u:{}@h/%ZZ", "amqps://u:{}@/?cafile=%00", "https://u:{}@h:x/", "whsec_{}"),
    *("Bearer {}\n", "http://u:{}@h/ x", "u:{}@h", "amqp://u:{}@h/?heartbeat=x", "//u:{}@h", "amqp:u:{}@h", "{}"),
)
VALUES = (
    *("1", "0", "-1", "9" * 30, "1h", "1e400s", "0.0ms", "10s,", "2026-03-01", "2026-13-01T99", "inf", "nan", "shop:x"),
    *("/", "type", "error,key", "*", "q:2,q:x", "[::]:80", "[::1", ":", ",", "a:b:c", "127.0.0.1:99999", "true"),
    "\ud800",
)


def odd_value(grammar: Grammar) -> str:
    text = grammar.chance.choice((*VALUES, grammar.chance.choice(URLS).format(SECRET), grammar.text()))
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def test_no_setting_shows_a_secret_or_fails_otherwise_than_by_a_configuration_error(monkeypatch: pytest.MonkeyPatch):
    grammar = Grammar(chance("settings"))
    for _ in range(by_night(10_000, else_=500)):
        with monkeypatch.context() as patched:
            patched.setenv(variable("database_url"), "sqlite://")
            for name in grammar.chance.sample(sorted(Settings.model_fields), 3):
                if name in SECRETS:
                    patched.setenv(variable(name), grammar.chance.choice(URLS).format(SECRET))
                else:
                    patched.setenv(variable(name), odd_value(grammar).replace(SECRET, ""))
            try:
                shown = repr(settings.load())
            except ConfigurationError as error:
                shown = str(error)
            assert SECRET not in shown


def test_no_arguments_end_in_a_traceback(run: Run, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    grammar = Grammar(chance("arguments"))
    for _ in range(by_night(2_000, else_=60)):
        arguments = [*grammar.chance.choice(COMMANDS)]
        for _ in range(grammar.chance.randrange(4)):
            arguments.append(grammar.chance.choice(OPTIONS))
            if grammar.one_in(2):
                arguments.append(odd_value(grammar).replace(SECRET, ""))
        if grammar.one_in(4):
            arguments.append(odd_value(grammar).replace(SECRET, ""))
        url = f"amqp://u:{SECRET}@127.0.0.1:1/"
        ended = run(*arguments, database_url=sqlite_url, broker_url=url, publish_timeout="100ms")
        assert ended.code in range(5), (arguments, ended)
        assert "Traceback" not in ended.err + ended.out, (arguments, ended)
        assert SECRET not in ended.err + ended.out, (arguments, ended)
