"""A consumer's module with a lifespan, as its environment says, and a handler that waits at a gate."""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import event, inbox_handler
from outboxkit.inbox import Wiring

GATE = 4714
"""While a test holds this advisory lock, handlers wait inside their transaction."""
FATE = os.environ.get("LIFESPAN", "")


@event("Rung")
@dataclass(frozen=True)
class Rung:
    number: int


class Bell:
    is_open = True


@asynccontextmanager
async def lifespan() -> AsyncIterator[Bell]:
    log, bell = structlog.get_logger("wired"), Bell()
    log.info("lifespan begins")
    if FATE == "fails at start":
        raise ConnectionRefusedError("no bell at port 1")
    try:
        yield bell
    finally:
        bell.is_open = False
        log.info("lifespan ends")
        if FATE == "hangs":
            await asyncio.Event().wait()
    if FATE == "fails at end":
        raise ConnectionRefusedError("no bell at port 1")


wiring = Wiring(lifespan=lifespan)


@inbox_handler("wired.Ring")
async def ring(session: AsyncSession, event: Rung, bell: Bell) -> None:
    logging.getLogger("wired.ring").info("rings %s", event.number)
    await session.execute(select(text(f"pg_advisory_xact_lock_shared({GATE})")))
    structlog.get_logger("wired").info("rung", is_open=bell.is_open)


@inbox_handler("wired.RingPlainly")
def ring_plainly(session: Session, event: Rung, bell: Bell) -> None:
    assert threading.current_thread() is not threading.main_thread()
    structlog.get_logger("wired").info("rung plainly", is_open=bell.is_open)
