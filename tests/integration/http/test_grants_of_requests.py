"""The rights of docs/how-to/grant-least-privileges.md that requests, effects and replies need."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, text, update
from sqlalchemy.orm import Session, sessionmaker

from outboxkit import effects, tables
from outboxkit.http import ledger
from outboxkit.operators import status
from outboxkit.relay import Relay
from outboxkit.runtime import process
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.retention import Periods, Retention
from tests.integration.relay.recording import add
from tests.integration.relay.test_relay_destinations import Answering
from tests.integration.schema import test_grants

roles = test_grants.roles
DAY = timedelta(days=1)


def url_of(postgresql_url: str, role: str) -> str:
    return f"{postgresql_url}?options=-crole%3D{role}"


@pytest.fixture
def writer(postgresql_url: str, roles: dict[str, str]) -> Iterator[Engine]:
    made = create_engine(url_of(postgresql_url, roles["shop_writer"]))
    yield made
    made.dispose()


def ask(writer: Engine, key: str) -> ledger.Judgement:
    """A whole request in atomic mode."""
    with Session(writer) as session, session.begin():
        found = ledger.begin(session, scope="POST /orders", principal="ann", key=key, fingerprint=b"f" * 32)
        if isinstance(found, ledger.Fresh):
            ledger.complete(session, found, ledger.Response(201, (), b"{}"))
        return found


@pytest.mark.parametrize("role", ["shop_writer", "shop_consumer"])
def test_who_may_make_calls_once(postgresql_url: str, roles: dict[str, str], role: str):
    engine = create_engine(url_of(postgresql_url, roles[role]))
    calls: list[int] = []
    for _ in range(2):
        effects.once(sessionmaker(engine), "mail-7", lambda: calls.append(1), on_unknown="skip")
    assert calls == [1]
    engine.dispose()


async def test_requests_are_answered_by_the_writer_and_pruned_by_the_operator(
    writer: Engine, pg_engine: Engine, postgresql_url: str, roles: dict[str, str]
):
    for key in ("old", "new"):
        assert isinstance(ask(writer, key), ledger.Fresh)
        assert isinstance(ask(writer, key), ledger.Replay)
    with Session(writer) as session, session.begin():
        leased = ledger.begin(
            session, scope="POST /pay", principal=None, key="k", fingerprint=b"f" * 32, lease=timedelta(minutes=1)
        )
    with Session(writer) as session, session.begin():
        ledger.release(session, leased, forget=True)
    effects.once(sessionmaker(writer), "mail-7", lambda: None, on_unknown="skip")
    with pg_engine.begin() as connection:
        long_ago = utc_now() - 40 * DAY
        expired = update(tables.idempotency).where(tables.idempotency.c.key == "old").values(expires_at=long_ago)
        connection.execute(expired)
        connection.execute(update(tables.effect).values(used_at=long_ago, locked_until=long_ago))
    operator = process.engine(url_of(postgresql_url, roles["shop_operator"]), name="test", pool_size=2)
    done = await Retention(operator, Periods(inbox=14 * DAY)).prune()
    assert (done.idempotency, done.effects, done.problems) == (1, 1, [])
    async with operator.connect() as connection:
        found = await connection.run_sync(status.read_figures, utc_now())
    assert (found.history.requests.value, found.history.unknown_effects.value) == (1, 0)
    await operator.dispose()


async def test_a_relay_adds_replies_and_parks_in_its_destination(
    writer: Engine, pg_engine: Engine, postgresql_url: str, roles: dict[str, str]
):
    add(writer, 1, destination="payments", key="k")
    with pg_engine.begin() as connection:
        connection.execute(update(tables.outbox).values(reply="CardCharged"))
    relay = process.engine(url_of(postgresql_url, roles["shop_relay"]), name="test")
    done = await Relay(relay, Answering(), destination="payments").drain(asyncio.Event())
    assert done.is_complete
    with pg_engine.connect() as connection:
        found = connection.execute(text("SELECT type, destination FROM outboxkit_outbox")).all()
        assert [tuple(row) for row in found] == [("CardCharged", "default")]
    await relay.dispose()
