"""One check of `outboxkit doctor` on a database, as the command runs it."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
from sqlalchemy import make_url

from outboxkit.operators.doctor import examine
from outboxkit.operators.doctor.installation import Database, Installation
from outboxkit.operators.findings import LIMITS, Diagnosis, Limits
from outboxkit.runtime import process
from outboxkit.runtime.outage import Clock, utc_now
from outboxkit.runtime.settings import load
from tests.support.pages import libpq

Find = Callable[[Database], Iterable[Diagnosis]]
NOW = Limits(
    waiting=timedelta(0),
    transaction=timedelta(0),
    transaction_long=timedelta(0),
    behind=1,
    handler=timedelta(0),
    lock=timedelta(0),
    consumer=timedelta(0),
    wal_bytes=0,
    dead_rows=0,
    check_seconds=60,
)
"""Everything is worth a finding, however short it lasts; and a check has the time of a slow machine."""


def look(url: str, find: Find, *, limits: Limits = NOW, clock: Clock = utc_now, **settings: object) -> list[Diagnosis]:
    """The findings of one check."""

    async def run() -> list[Diagnosis]:
        engine = process.engine(url, name="outboxkit doctor")
        installation = Installation(load({"database_url": url, **settings}), engine, (), limits, clock)
        try:
            async with installation.opened() as connection:
                return await connection.run_sync(lambda opened: list(find(Database(opened, installation))))
        finally:
            await engine.dispose()

    return asyncio.run(run())


def one(url: str, find: Find, code: str, *, about: str = "", **more: Any) -> Diagnosis:
    """The one finding of this code, about something; others are not looked at."""
    (finding,) = [each for each in look(url, find, **more) if each.code == code and about in each.what]
    return finding


def codes(url: str, find: Find, **more: Any) -> list[str]:
    """The codes of all findings of a check."""
    return [finding.code for finding in look(url, find, **more)]


def examined(url: str, **settings: object) -> examine.Examined:
    """The whole examination of the database's side."""

    async def run() -> examine.Examined:
        engine = process.engine(url, name="outboxkit doctor")
        limits = replace(LIMITS, check_seconds=60)
        try:
            loaded = load({"database_url": url, **settings})
            return await examine.examine(Installation(loaded, engine, (), limits), ["database"])
        finally:
            await engine.dispose()

    return asyncio.run(run())


@contextmanager
def connected(url: str, *, name: str = "psql") -> Iterator[psycopg.Connection]:
    """A session of somebody, under an application's name."""
    with psycopg.connect(libpq(url), autocommit=True, application_name=name) as connection:
        yield connection


@contextmanager
def role(url: str, options: str = "LOGIN") -> Iterator[tuple[str, str]]:
    """A role of the server, and the URL with which it logs in."""
    name, password = f"doctor_{secrets.token_hex(6)}", secrets.token_hex(6)
    with connected(url) as connection:
        connection.execute(f"CREATE ROLE {name} PASSWORD '{password}' {options}")
        try:
            own = make_url(url).set(username=name, password=password).render_as_string(hide_password=False)
            yield name, own
        finally:
            connection.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
