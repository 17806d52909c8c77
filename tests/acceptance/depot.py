"""The application of the consumer's acceptance tests: a depot that books each parcel once, and tells others about it.

No booking is unique in the database, so that one which happened twice can be seen. What happens at a parcel beside
that is its fate, which stands in its message. Environment variables say which of its versions the depot is.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import BigInteger, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outboxkit import Message, Reject, event, inbox_handler, outbox

TOGETHER = os.environ.get("DEPOT_TOGETHER") == "yes"
IN_LOOP = os.environ.get("DEPOT_IN_LOOP") == "yes"
MENDED = os.environ.get("DEPOT_MENDED") == "yes"
"""After a release that can read every weight, and whose handler does not fail."""
GATE = 4713
"""While a test holds this advisory lock, handlers of parcels with the fate `waits` wait inside their transaction."""
STUMBLES = 9 if TOGETHER else 1
"""How often a parcel stumbles in a process. A batch that fails is bisected: the last call is of that parcel alone."""
Weight = int | str if MENDED else int


class Tables(DeclarativeBase):
    pass


class Booking(Tables):
    __tablename__ = "depot_booking"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    key: Mapped[str]
    number: Mapped[int]


@event("ParcelArrived")
@dataclass(frozen=True)
class ParcelArrived:
    number: int
    weight: Weight = 1
    fate: str = ""
    place: str = ""


@event("ParcelBooked")
@dataclass(frozen=True)
class ParcelBooked:
    number: int


@inbox_handler("BookParcel", batch=TOGETHER, in_loop=IN_LOOP)
def book(session: Session, event: ParcelArrived, message: Message) -> None:
    session.add(Booking(key=message.key or "", number=event.number))
    outbox.add(session, ParcelBooked(event.number))
    if event.fate and not MENDED:
        FATES[event.fate](session, event)


def _break(_: Session, event: ParcelArrived) -> None:
    raise ValueError(f"parcel {event.number} is broken")


def _refuse(_: Session, event: ParcelArrived) -> None:
    raise Reject("not for us")


_calls: Counter[str] = Counter()


def _stumble(_: Session, event: ParcelArrived) -> None:
    _calls[event.place] += 1
    if _calls[event.place] <= STUMBLES:
        raise RuntimeError("dropped it")


def _hold(_: Session, event: ParcelArrived) -> None:
    if not Path(os.environ["DEPOT_CLEARED"]).exists():
        raise RuntimeError("not cleared yet")


def _wait(session: Session, _: ParcelArrived) -> None:
    session.flush()
    session.execute(select(func.pg_advisory_xact_lock_shared(GATE)))


def _explode(how: Callable[[], object]) -> Callable[[Session, ParcelArrived], None]:
    """The process ends here, or never does. That its handler was called is noted where no rollback reaches."""

    def explode(_: Session, event: ParcelArrived) -> None:
        with Path(os.environ["DEPOT_EXPLOSIONS"]).open("a") as noted:
            noted.write(f"{event.number}\n")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        how()
        time.sleep(3600)

    return explode


FATES: dict[str, Callable[[Session, ParcelArrived], None]] = {
    "breaks": _break,
    "refused": _refuse,
    "stumbles": _stumble,
    "held": _hold,
    "waits": _wait,
    "sleeps": _explode(lambda: None),
    "aborts": _explode(os.abort),
    "exits": _explode(lambda: sys.exit(0)),
    "faults": _explode(lambda: ctypes.string_at(0)),
    "killed": _explode(lambda: os.kill(os.getpid(), signal.SIGKILL)),
}
