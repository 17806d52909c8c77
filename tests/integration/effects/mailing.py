"""A process that sends one mail, and that a test has killed on the way: `python -m tests.integration.effects.mailing`.

Arguments: the database's URL and the one for effects, the port of the mail server, the policy, where to be killed, and
the key; `-` is none, and then the effect is the one of a handler. It prints what became of the effect.
"""

import asyncio
import os
import signal
import smtplib
import sys
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from outboxkit import Message, effects, inbox, inbox_handler
from outboxkit import event as named
from outboxkit.runtime import process

MAIL = "Subject: your receipt\r\n\r\nthank you\r\n"
LEASE = timedelta(minutes=10)
URL, EFFECTS_URL, PORT, POLICY, PLACE, KEY = sys.argv[1:] if __name__ == "__main__" else [""] * 6


@named("Paid")
@dataclass(frozen=True)
class Paid:
    order_id: int


def die(place: str) -> None:
    if place == PLACE:
        os.kill(os.getpid(), signal.SIGKILL)


def send() -> str:
    die("before the call")
    with smtplib.SMTP("127.0.0.1", int(PORT)) as client:
        client.sendmail("shop@example.com", "ann@example.com", MAIL)
    die("after the call")
    return "sent"


async def send_in_thread() -> str:
    return await asyncio.to_thread(send)


@event.listens_for(Session, "after_commit")
def _committed(session: Session) -> None:
    if "effect" in session.info:
        die(f"after commit {next(session.info['effect'])}")


@event.listens_for(Session, "before_commit")
def _committing(session: Session) -> None:
    if "effect" in session.info:
        die("before the first commit")


COMMITS = iter((1, 2))
INFO = {"effect": COMMITS}


@inbox_handler("SendReceipt")
async def send_receipt(session: AsyncSession, event: Paid) -> None:
    own = process.engine(EFFECTS_URL, name="effects")
    print(await effects.once(async_sessionmaker(own, info=INFO), call=send_in_thread, on_unknown=POLICY))
    await own.dispose()
    die("before the handler's commit")


async def handle() -> None:
    engine = process.engine(URL, name="handling")
    async with AsyncSession(engine) as session, session.begin():
        print(
            await session.run_sync(
                inbox.run_once, Message(id="m", type="Paid", payload=b'{"order_id":7}'), send_receipt
            )
        )
    await engine.dispose()


def main() -> None:
    if KEY == "-":
        asyncio.run(handle())
        return
    sessions = sessionmaker(create_engine(EFFECTS_URL), info=INFO)
    print(effects.once(sessions, KEY, send, on_unknown=POLICY, lease=LEASE))


if __name__ == "__main__":
    main()
