"""Effects that are remembered for as long as their message can come back, whatever its time is."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session, sessionmaker

from outboxkit import Message, effects, ids, inbox, inbox_handler
from outboxkit.runtime import process, window
from outboxkit.runtime.retention import Periods, Retention
from tests.integration.consumer.running_consumer import Ordered
from tests.support.databases import migrate

DAY = timedelta(days=1)
RETENTION = 14 * DAY


class Mails:
    """A handler that sends a mail, and its attempts; on SQLite effects have a file of their own."""

    def __init__(self, engine: Engine, effect_engine: Engine, key: str | None = None) -> None:
        self.sent: list[str] = []
        self.works = False
        self._engine = engine
        sessions = sessionmaker(effect_engine)

        @inbox_handler("Send")
        def send(session: Session, event: Ordered, message: Message) -> None:
            effects.once(sessions, key, lambda: self.sent.append(message.id), on_unknown="skip")
            if not self.works:
                raise ValueError("after the mail")

        self._send = send

    def attempt(self, message: Message) -> None:
        with suppress(ValueError), Session(self._engine) as session, session.begin():
            inbox.run_once(session, message, self._send)


def ordered(id_: str = "0b6f1b1e-1111-4222-8333-444455556666", made: datetime | None = None) -> Message:
    return Message(id=id_, type="Ordered", payload=b'{"number":1}', created_at=made)


@pytest.fixture
def mails(pg_engine: Engine) -> Mails:
    return Mails(pg_engine, pg_engine)


async def prune(engine: AsyncEngine, after: timedelta) -> int:
    clock = datetime.now(UTC) + after
    return (await Retention(engine, Periods(inbox=RETENTION), clock=lambda: clock).prune()).effects


async def test_an_effect_of_a_message_without_a_time_stays_until_that_was_handled(
    mails: Mails, async_pg_engine: AsyncEngine
):
    mails.attempt(ordered())
    assert await prune(async_pg_engine, 400 * DAY) == 0
    mails.works = True
    mails.attempt(ordered())
    assert len(mails.sent) == 1
    assert await prune(async_pg_engine, RETENTION) == 0
    assert await prune(async_pg_engine, 15 * DAY) == 1, "with its inbox row"


@pytest.mark.parametrize("ahead", [timedelta(0), 30 * DAY])
async def test_an_effect_is_not_forgotten_before_its_message_is_stale(
    mails: Mails, async_pg_engine: AsyncEngine, ahead: timedelta
):
    """Also if the producer's clock is a month ahead."""
    now = datetime.now(UTC)
    message = ordered(made=now + ahead)
    mails.attempt(message)
    for days in range(50):
        forgotten = await prune(async_pg_engine, days * DAY) == 1
        assert not forgotten or window.is_stale(message, now=now + days * DAY, retention=RETENTION)
        if forgotten:
            break
    assert forgotten
    assert mails.sent == [message.id]


async def test_a_key_that_messages_share_lives_since_its_last_use(pg_engine: Engine, async_pg_engine: AsyncEngine):
    mails = Mails(pg_engine, pg_engine, "order 7 confirmed")
    first, second = ordered(ids.new()), ordered("foreign", datetime.now(UTC) + 10 * DAY)
    mails.attempt(first)
    mails.attempt(second)
    assert await prune(async_pg_engine, 20 * DAY) == 0
    mails.attempt(second)
    assert mails.sent == [first.id]
    assert await prune(async_pg_engine, 25 * DAY) == 1


async def test_a_message_without_a_time_that_shares_a_key_keeps_it(pg_engine: Engine, async_pg_engine: AsyncEngine):
    mails = Mails(pg_engine, pg_engine, "order 7 confirmed")
    mails.attempt(ordered(ids.new()))
    mails.attempt(ordered())
    assert await prune(async_pg_engine, 400 * DAY) == 0
    assert len(mails.sent) == 1


async def test_on_sqlite_too(sqlite_url: str, tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'effects.db'}"
    migrate(url)
    engine, own = create_engine(sqlite_url), create_engine(url)
    mails = Mails(engine, own)
    for message in (ordered(), ordered(ids.new())):
        mails.attempt(message)
    pruned = process.engine(url, name="test")
    assert await prune(pruned, RETENTION) == 0
    assert await prune(pruned, 15 * DAY) == 1
    await pruned.dispose()
    mails.attempt(ordered())
    assert len(mails.sent) == 2
    for made in (engine, own):
        made.dispose()
