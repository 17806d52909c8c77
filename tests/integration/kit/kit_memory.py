"""Handlers with other transactions, with a memory, and that leave something behind: wrong ones, and right twins."""

import asyncio
import itertools
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TextIO
from unittest.mock import Mock

from sqlalchemy import event as listening
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Message, Retry, inbox_handler
from tests.integration.kit.kit_handlers import Ordered, Receipt, add_receipt

SEEN: set[int] = set()
IDS: set[str] = set()
URGENT: queue.PriorityQueue[int] = queue.PriorityQueue()
TOTALS: Counter[str] = Counter()
LOG: TextIO = sys.stderr
POOL = ThreadPoolExecutor(1)


@inbox_handler("wrong.HandedOver")
def wrong_handed_over(session: Session, event: Ordered) -> None:
    add_receipt(session, event)
    POOL.submit(time.sleep, 0.3)


# Other transactions.


@inbox_handler("wrong.Commit")
def wrong_commit(session: Session, event: Ordered) -> None:
    add_receipt(session, event)
    session.commit()


@inbox_handler("wrong.CommitOfConnection")
def wrong_commit_of_connection(session: Session, event: Ordered) -> None:
    add_receipt(session, event)
    session.flush()
    session.connection().connection.commit()


@inbox_handler("wrong.SecondSession")
def wrong_second_session(session: Session, event: Ordered) -> None:
    with Session(session.get_bind()) as second, second.begin():
        add_receipt(second, event)


@inbox_handler("wrong.RowsAfterCommit")
def wrong_rows_after_commit(session: Session, event: Ordered) -> None:
    bind = session.get_bind()

    def more(_: Session) -> None:
        with Session(bind) as second, second.begin():
            add_receipt(second, event)

    listening.listen(session, "after_commit", more, once=True)


# A session that the messages of a batch share.


@inbox_handler("right.ExpungeInBatch", batch=True)
def right_expunge_in_batch(session: Session, event: Ordered) -> None:
    session.expunge_all()
    add_receipt(session, event)


@inbox_handler("wrong.DoneInBatch", batch=True)
async def wrong_done_in_batch(session: AsyncSession, event: Ordered) -> None:
    if not session.info.setdefault("done", False):
        session.info["done"] = True
        session.add(Receipt(order_id=event.order_id, total=event.total))


@inbox_handler("right.Batch", batch=True)
def right_batch(session: Session, event: Ordered) -> None:
    number = session.scalar(select(func.count()).select_from(Receipt).where(Receipt.order_id == 0))
    session.add(Receipt(order_id=event.order_id, total=event.total, number=number))


@inbox_handler("right.RefusedInBatch", batch=True)
def right_refused_in_batch(session: Session, event: Ordered) -> None:
    if session.info.setdefault("order", event.order_id) != event.order_id:
        raise Retry("one order at a time")
    add_receipt(session, event)


# Memory.


@inbox_handler("wrong.Seen")
def wrong_seen(session: Session, event: Ordered) -> None:
    if event.order_id not in SEEN:
        SEEN.add(event.order_id)
        add_receipt(session, event)


@inbox_handler("wrong.PriorityQueue")
def wrong_priority_queue(session: Session, event: Ordered) -> None:
    add_receipt(session, event)
    URGENT.put(event.order_id)


@inbox_handler("wrong.SeenById")
def wrong_seen_by_id(session: Session, event: Ordered, message: Message) -> None:
    if message.id not in IDS:
        IDS.add(message.id)
        add_receipt(session, event)


@inbox_handler("wrong.RefusesARetry")
def wrong_refuses_a_retry(session: Session, event: Ordered, message: Message) -> None:
    if message.id in IDS:
        raise ValueError("it was here before")
    IDS.add(message.id)
    add_receipt(session, event)


@inbox_handler("wrong.Totals")
def wrong_totals(session: Session, event: Ordered) -> None:
    TOTALS[event.customer] += 1


class Mailer:
    """A fake, as tests have it."""

    def __init__(self) -> None:
        self.sent: list[int] = []


MAILER = Mailer()
MOCK = Mock()
NUMBERS = itertools.count(1)
CLIENTS: queue.Queue[Mailer] = queue.Queue()
CLIENTS.put(MAILER)


@inbox_handler("wrong.FakeMailer")
def wrong_fake_mailer(session: Session, event: Ordered) -> None:
    MAILER.sent.append(event.order_id)


@inbox_handler("wrong.MockedMailer")
def wrong_mocked_mailer(session: Session, event: Ordered) -> None:
    MOCK.send_mail("ann@example.com")


def cached(function: Callable[[int], int]) -> Callable[[int], int]:
    known: dict[int, int] = {}

    def call(number: int) -> int:
        return known.setdefault(number, function(number))

    return call


@cached
def twice(number: int) -> int:
    return number * 2


@inbox_handler("right.CacheInAClosure")
def right_cache_in_a_closure(session: Session, event: Ordered) -> None:
    add_receipt(session, event, number=twice(event.order_id))


@inbox_handler("wrong.NumberInMemory")
def wrong_number_in_memory(session: Session, event: Ordered) -> None:
    add_receipt(session, event, number=next(NUMBERS))


@inbox_handler("right.MockedReader")
def right_mocked_reader(session: Session, event: Ordered) -> None:
    MOCK.get_rate("EUR")
    add_receipt(session, event)


@inbox_handler("wrong.FileKeptOpen")
def wrong_file_kept_open(session: Session, event: Ordered) -> None:
    LOG.write("ordered\n")


@inbox_handler("right.Clients")
def right_clients(session: Session, event: Ordered) -> None:
    CLIENTS.put(CLIENTS.get())
    add_receipt(session, event)


# Chance and the clock.


@inbox_handler("wrong.Chance")
def wrong_chance(session: Session, event: Ordered) -> None:
    for _ in range(1 + random.getrandbits(5)):
        add_receipt(session, event)


# What is left behind.


async def later(seconds: float) -> None:
    await asyncio.sleep(seconds)


@inbox_handler("wrong.Task")
async def wrong_task(session: AsyncSession, event: Ordered) -> None:
    asyncio.get_running_loop().create_task(later(0.2))


@inbox_handler("right.Task")
async def right_task(session: AsyncSession, event: Ordered) -> None:
    session.add(Receipt(order_id=event.order_id, total=event.total))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(later(0))
    async with asyncio.timeout(5):
        await later(0)


@inbox_handler("wrong.Thread")
def wrong_thread(session: Session, event: Ordered) -> None:
    threading.Thread(target=threading.Event().wait, args=(0.3,)).start()


@inbox_handler("right.Thread")
def right_thread(session: Session, event: Ordered) -> None:
    add_receipt(session, event)
    thread = threading.Thread(target=len, args=("",))
    thread.start()
    thread.join()
    POOL.submit(len, "").result()


WRONG = [each for name, each in list(globals().items()) if name.startswith("wrong_")]
RIGHT = [each for name, each in list(globals().items()) if name.startswith("right_")]
