"""An application that takes orders all the while, whatever happens to its servers."""

from decimal import Decimal
from threading import Event, Thread
from types import TracebackType
from typing import Self

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outboxkit import outbox
from tests.acceptance.shop import Order, OrderConfirmed

PAUSE_SECONDS = 0.01


class OrderTaker:
    """Takes one order after another in a thread, until the end of its block; every fifth is rolled back."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._end = Event()
        self._thread = Thread(target=self._take_orders)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def _take_orders(self) -> None:
        number = 0
        while not self._end.wait(PAUSE_SECONDS):
            number += 1
            try:
                self._take_order(number)
            except DBAPIError:  # the database is away: a customer would be told so
                continue

    def _take_order(self, number: int) -> None:
        with Session(self._engine) as session:
            session.add(Order(id=number, total=Decimal(number)))
            outbox.add(session, OrderConfirmed(number, Decimal(number)), key=f"order-{number}")
            session.flush()
            if number % 5:
                session.commit()
