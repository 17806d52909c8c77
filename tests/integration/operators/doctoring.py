"""One check of `outboxkit doctor` on a database, as the command runs it."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from sqlalchemy import make_url

from outboxkit.operators.doctor import examine
from outboxkit.operators.doctor.installation import Database, Installation
from outboxkit.operators.findings import LIMITS, Diagnosis, Limits
from outboxkit.runtime import process
from outboxkit.runtime.outage import Clock, utc_now
from outboxkit.runtime.settings import load
from tests.support.pages import libpq

T = TypeVar("T")
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


def with_engines(work: Callable[..., Awaitable[T]], *urls: str, name: str = "test") -> T:
    """The result of some work, which gets an engine for each of these databases."""

    async def run() -> T:
        engines = [process.engine(url, name=name) for url in urls]
        try:
            return await work(*engines)
        finally:
            for engine in engines:
                await engine.dispose()

    return asyncio.run(run())


def examining(
    url: str,
    work: Callable[[Installation], Awaitable[T]],
    *,
    limits: Limits = NOW,
    clock: Clock = utc_now,
    **settings: object,
) -> T:
    """The result of some work at an installation with this database."""
    loaded = load({"database_url": url, **settings})
    return with_engines(
        lambda engine: work(Installation(loaded, engine, (), limits, clock)), url, name="outboxkit doctor"
    )


def look(url: str, find: Find, **more: Any) -> list[Diagnosis]:
    async def check(installation: Installation) -> list[Diagnosis]:
        async with installation.opened() as connection:
            return await connection.run_sync(lambda opened: list(find(Database(opened, installation))))

    return examining(url, check, **more)


def one(url: str, find: Find, code: str, *, about: str = "", **more: Any) -> Diagnosis:
    """The one finding of this code, about something; others are not looked at."""
    (finding,) = [each for each in look(url, find, **more) if each.code == code and about in each.what]
    return finding


def codes(url: str, find: Find, **more: Any) -> list[str]:
    return [finding.code for finding in look(url, find, **more)]


def examined(url: str) -> examine.Examined:
    limits = replace(LIMITS, check_seconds=60)
    return examining(url, lambda installation: examine.examine(installation, ["database"]), limits=limits)


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
