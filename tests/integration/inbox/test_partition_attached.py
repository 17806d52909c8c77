"""`run_once` in a transaction that meets a partition being attached: it fails, and succeeds when it is tried again."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from outboxkit import Message, Outcome, event, ids, inbox, inbox_handler
from outboxkit.statements import partitions
from tests.support.polling import eventually

DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)


@event("Ordered")
@dataclass
class Ordered:
    pass


@inbox_handler("billing.Book")
def book(session: Session, event: Ordered) -> None: ...


def test_it_fails_once_and_its_second_try_is_handled(pg_engine: Engine):
    message = Message(ids.new(at=DAY), "Ordered", b"{}")

    def handle() -> Outcome:
        with Session(pg_engine) as session, session.begin():
            return inbox.run_once(session, message, book)

    def waits(_: object = None) -> int:
        with pg_engine.connect() as other:
            asked = "SELECT count(*) FROM pg_locks WHERE relation = 'outboxkit_inbox_default'::regclass AND NOT granted"
            return int(other.execute(text(asked)).scalar_one())

    at = partitions.INBOX, "public", DAY.date()
    with ThreadPoolExecutor(1) as pool, pg_engine.begin() as pruner:
        pruner.execute(partitions.make_partition(*at))
        pruner.execute(partitions.close_default(partitions.INBOX, "public"))
        first = pool.submit(handle)
        eventually(waits, lambda count: count == 1)
        pruner.execute(partitions.attach_partition(*at))
        pruner.commit()
        with pytest.raises(IntegrityError) as failed:
            first.result()
    assert failed.value.orig.sqlstate == "23514"
    assert (handle(), handle()) == (Outcome.PROCESSED, Outcome.DUPLICATE)
