"""A relay drains an HTTP destination: what answers become, on both databases, with a real server."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from outboxkit import BrokerUnavailable, Message, event, ids, outbox, tables
from outboxkit.brokers import Verdict
from outboxkit.brokers.http import HttpPublisher
from outboxkit.relay import Relay, RelayPolicy
from outboxkit.retry import Backoff
from outboxkit.runtime import compose
from tests.integration.relay.recording import MILLISECOND, QUICK, running
from tests.support.http_destination import DROP, Call, Destination, Say, say
from tests.support.night import by_day_on, by_night
from tests.support.polling import eventually_async

PATIENT = RelayPolicy(max_attempts=1000, backoffs={Verdict.REJECTED: QUICK, Verdict.POSTPONED: QUICK})


@event("ChargeCard", destination="payments", reply="CardCharged")
@dataclass(frozen=True)
class ChargeCard:
    order_id: int


@event("TellPartner", destination="payments")
@dataclass(frozen=True)
class TellPartner:
    order_id: int


def relay(engine: AsyncEngine, publisher: HttpPublisher, policy: RelayPolicy = PATIENT) -> Relay:
    return Relay(
        engine,
        publisher,
        destination="payments",
        batch_size=64,
        poll_interval=5 * MILLISECOND,
        policy=policy,
    )


def add(engine: Engine, *events: object, **options: Any) -> list[Message]:
    with Session(engine) as session, session.begin():
        return outbox.add_all(session, events, **options)


def left(engine: Engine, destination: str) -> list[tuple[str, str | None, bytes, int, str | None]]:
    table = tables.outbox.c
    columns = table.type, table.causation_id, table.payload, table.attempts, table.last_error
    with engine.connect() as connection:
        found = connection.execute(select(*columns).where(table.destination == destination).order_by(table.position))
        return [tuple(row) for row in found]


async def all_left(engine: Engine, seconds: float = 60) -> None:
    await eventually_async(lambda: asyncio.to_thread(left, engine, "payments"), lambda rows: not rows, seconds=seconds)


async def test_an_answer_becomes_a_reply_and_a_refusal_a_dead_letter(
    engine: Engine, async_engine: AsyncEngine, destination: Destination
):
    def answer(call: Call) -> Say:
        match json.loads(call.body)["order_id"]:
            case 1 | 4:
                return say(200, b'{"charge":"ch_1"}', content_type="application/json")
            case 2:
                return say(422, b'{"title":"no such card"}', content_type="application/problem+json")
            case 3:
                return say(200, b"x" * 101)
            case _:
                return say(429, retry_after="3600")

    destination.answer = answer
    charge, *_ = add(engine, ChargeCard(1), ChargeCard(2), ChargeCard(3), TellPartner(3), ChargeCard(5))
    publisher = HttpPublisher(destination.url, max_answer=100)
    done = await relay(async_engine, publisher).drain(asyncio.Event())
    assert (done.published, done.later) == (2, 1)
    assert left(engine, "default") == [("CardCharged", charge.id, b'{"charge":"ch_1"}', 0, None)]
    ((type_, _, _, attempts, error),) = left(engine, "payments")
    assert (type_, attempts, error) == ("ChargeCard", 0, "postponed: 429 Too Many Requests")
    dead = tables.dead_letter.c
    with engine.connect() as connection:
        found = connection.execute(select(dead.reason, dead.error, dead.attempts).order_by(dead.id)).all()
    assert [tuple(row) for row in found] == [
        ("rejected", f"rejected: 422 {HTTPStatus(422).phrase}: no such card", 1),
        ("rejected", "confirmed: its answer is longer than 100 bytes and was not kept", 1),
    ]


CHARGES = by_night(5000, else_=200)


@by_day_on("postgresql")
async def test_every_charge_is_made_once_and_answered_once_by_a_server_that_fails_at_random(
    engine: Engine, async_engine: AsyncEngine, destination: Destination
):
    chance = random.Random(7)
    ledger: dict[str | None, bytes] = {}
    applied: list[int] = []

    def answer(call: Call) -> Say:
        fate = chance.random()
        if fate < 0.2:
            return chance.choice([DROP, say(500), say(503), say(409)])
        if call.key not in ledger:
            ledger[call.key] = b'{"charge":%d}' % len(ledger)
            applied.append(json.loads(call.body)["order_id"])
        return DROP if fate < 0.3 else say(200, ledger[call.key])

    destination.answer = answer
    for number in range(CHARGES):
        add(engine, ChargeCard(number), key=f"customer-{number % 40}")
    async with running(relay(async_engine, HttpPublisher(destination.url))):
        await all_left(engine, seconds=by_night(1200, else_=120))
    assert sorted(applied) == list(range(CHARGES)), "none lost, none twice"
    for customer in range(40):
        mine = [number for number in applied if number % 40 == customer]
        assert mine == sorted(mine), f"customer {customer} lost the order"
    replies = left(engine, "default")
    assert Counter(payload for _, _, payload, _, _ in replies) == Counter(ledger.values())
    assert {causation for _, causation, _, _, _ in replies} == set(ledger)
    with engine.connect() as connection:
        assert set(connection.scalars(select(tables.outbox.c.message_id))) == {
            ids.derive("reply", str(key)) for key in ledger
        }
        assert connection.execute(select(tables.dead_letter)).all() == []


async def test_a_destination_that_is_away_costs_no_attempt(
    engine: Engine, async_engine: AsyncEngine, destination: Destination
):
    await destination.refuse()
    add(engine, *map(TellPartner, range(100)))
    publisher = HttpPublisher(destination.url)
    with capture_logs() as said:
        async with running(relay(async_engine, publisher, RelayPolicy(max_attempts=1))):
            await eventually_async(lambda: asyncio.sleep(0, said))
            await asyncio.sleep(0.5)  # several tries, each of which would bury everything if it counted
            await destination.listen()
            await all_left(engine)
    assert len(set(destination.keys)) == 100
    told = {(line["event"], line["destination"]) for line in said if " is " in line["event"]}
    assert told == {("destination is away, waiting", "payments"), ("destination is back, work goes on", "payments")}


async def test_a_destination_is_back_when_it_answers_and_not_when_nothing_is_left_to_send(
    engine: Engine, async_engine: AsyncEngine, destination: Destination
):
    await destination.refuse()
    add(engine, TellPartner(1), message_id="cancelled")

    def cancel() -> bool:
        with Session(engine) as session, session.begin():
            return outbox.cancel(session, "cancelled")

    publisher = HttpPublisher(destination.url)
    with capture_logs() as said:
        async with running(relay(async_engine, publisher)):
            await eventually_async(lambda: asyncio.sleep(0, publisher.trouble))
            assert await asyncio.to_thread(cancel)
            await asyncio.sleep(1)  # several turns without a message
            assert [line["event"] for line in said if " is " in line["event"]] == ["destination is away, waiting"]
            await destination.listen()
            await asyncio.to_thread(add, engine, TellPartner(2))
            await eventually_async(lambda: asyncio.sleep(0, [line for line in said if " is back" in line["event"]]))


async def test_a_drain_calls_a_destination_that_is_away_by_that_name(
    engine: Engine, async_engine: AsyncEngine, destination: Destination
):
    await destination.refuse()
    add(engine, TellPartner(1))
    drain = relay(async_engine, HttpPublisher(destination.url)).drain(asyncio.Event(), patience=MILLISECOND)
    with pytest.raises(BrokerUnavailable) as caught:
        await drain
    assert compose.explain(caught.value)[0].startswith("the destination is away: cannot connect to http://")


async def test_a_wrong_token_is_an_outage_of_the_destination_and_costs_no_message_anything(
    engine: Engine, async_engine: AsyncEngine, destination: Destination
):
    token, refused, taken = "new", 0, list[int]()
    enough = asyncio.Event()

    def answer(call: Call) -> Say:
        nonlocal refused
        if call.header("authorization") != f"Bearer {token}":
            refused += 1
            if refused == 10:  # eight at once, and then one at a time
                enough.set()
            return say((401, 403, 407)[refused % 3], b"token old expired")
        taken.append(json.loads(call.body)["order_id"])
        return say()

    destination.answer = answer
    for number in range(300):
        add(engine, TellPartner(number), key=f"customer-{number % 60}" if number % 3 else None)
    policy = RelayPolicy(max_attempts=1, backoffs={Verdict.REJECTED: QUICK, Verdict.POSTPONED: QUICK})
    publisher = HttpPublisher(destination.url, authorization="Bearer old")
    async with running(relay(async_engine, publisher, policy)):
        with capture_logs() as log:
            async with asyncio.timeout(60):
                await enough.wait()
        rows = await asyncio.to_thread(left, engine, "payments")
        assert (len(rows), {row[3] for row in rows}) == (300, {0})
        errors = {row[4] for row in rows if row[4]}
        assert errors, "status can show why they wait"
        assert all(str(error).startswith("postponed: the destination answers 40") for error in errors), errors
        assert "old" not in "".join(map(str, errors))
        assert refused < 20, "each row is not a request"
        token = "old"
        await all_left(engine)
    assert sorted(taken) == list(range(300))
    for customer in range(60):
        mine = [number for number in taken if number % 3 and number % 60 == customer]
        assert mine == sorted(mine), f"customer {customer} lost the order"
    with engine.connect() as connection:
        assert connection.execute(select(tables.dead_letter)).all() == []
    loud = [line for line in log if line["log_level"] == "error"]
    assert [line["event"] for line in loud] == ["the destination refuses the sender: look at its credentials"]


async def test_one_message_that_is_forbidden_delays_no_other_one(
    engine: Engine, async_engine: AsyncEngine, destination: Destination
):
    destination.answer = lambda call: say(403) if json.loads(call.body)["order_id"] in (0, 150) else say()
    add(engine, *map(TellPartner, range(200)))
    policy = RelayPolicy(max_attempts=1, backoffs={Verdict.POSTPONED: Backoff(base=timedelta(hours=1))})
    done = await relay(async_engine, HttpPublisher(destination.url), policy).drain(asyncio.Event())
    assert (done.published, done.later, done.dead) == (198, 2, {})
