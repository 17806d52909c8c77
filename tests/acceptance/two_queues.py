"""A depot with two queues: each parcel is booked once for each. The variable DEPOT_QUEUES begins their names."""

import os

from sqlalchemy.orm import Session

from outboxkit import inbox_handler
from tests.acceptance.depot import FATES, Booking, ParcelArrived

LEFT, RIGHT = (f"{os.environ.get('DEPOT_QUEUES')}-{side}" for side in ("left", "right"))


def _book(session: Session, event: ParcelArrived, side: str) -> None:
    session.add(Booking(key=side, number=event.number))
    if event.fate:
        FATES[event.fate](session, event)


@inbox_handler("BookLeft", queue=LEFT)
def book_left(session: Session, event: ParcelArrived) -> None:
    _book(session, event, "left")


@inbox_handler("BookRight", queue=RIGHT)
def book_right(session: Session, event: ParcelArrived) -> None:
    _book(session, event, "right")
