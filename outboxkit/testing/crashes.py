"""Crashes of whole workers: a process that kills itself at a step, and a consumer whose acks and connections get lost.

`python -m outboxkit.testing.crashes STEP COMMAND...` is the process that `crash_at` starts.
"""

import os
import random
import runpy
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import Any, Literal, get_args

from sqlalchemy import event
from sqlalchemy.orm import Session

from outboxkit.brokers import Delivery, Malformed, Subscriber
from outboxkit.brokers.reserved import DeliveryHeaders
from outboxkit.codec.envelopes import Envelope
from outboxkit.consumer import Consumer
from outboxkit.message import Message
from outboxkit.runtime import process
from outboxkit.statements.dialects import is_server
from outboxkit.tables import inbox as inbox_table

Step = Literal["before publish", "after publish", "before handler", "after handler", "before commit", "after commit"]
STEPS: tuple[Step, ...] = get_args(Step)
LOST_ACKS = 2
"""The number of times that a message comes again at most."""


def crash_at(
    step: Step, command: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float = 60
) -> None:
    """Run a worker that is killed with SIGKILL the first time that it comes to a step.

    `before publish` and `after publish` are a relay's; after the publish it has not settled. `before handler`,
    `after handler`, `before commit` and `after commit` are a consumer's; after the commit it has not acked.

    Args:
        step: the step.
        command: arguments of `outboxkit`, such as `["consume", "shop.handlers", "--queue", "billing", "--drain"]`.
        environment: further variables, such as `OUTBOXKIT_DATABASE_URL`.
        timeout: seconds until it must have come there.

    Raises:
        AssertionError: it ended in another way, or not at all.
        ValueError: there is no such step.
    """
    __tracebackhide__ = True
    if step not in STEPS:
        raise ValueError(f"step is {step!r}; {', '.join(map(repr, STEPS))} are accepted")
    program = [sys.executable, "-m", __name__, step, *command]
    try:
        variables = {**os.environ, **(environment or {})}
        done = subprocess.run(  # noqa: S603 - the test's own command
            program, env=variables, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"outboxkit {' '.join(command)} did not come to {step!r} in {timeout:g} s") from None
    if done.returncode != -signal.SIGKILL:
        raise AssertionError(
            f"outboxkit {' '.join(command)} ended with {done.returncode} and did not come to {step!r}:\n"
            f"{done.stdout}{done.stderr}"
        )


def main(step: str, command: Sequence[str]) -> None:
    """Run a command of outboxkit in this process, which ends at the step."""
    _die_at(step)
    sys.argv = ["outboxkit", *command]
    runpy.run_module("outboxkit", run_name="__main__")


def _die_at(step: str) -> None:
    call: Any = import_module("outboxkit.inbox.call")
    handled: list[bool] = []

    def at(here: str) -> None:
        if here == step:
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def handling(message: Message, original: Any = call.handling, **options: Any) -> Iterator[None]:
        at("before handler")
        with original(message, **options):
            yield
        handled.append(True)
        at("after handler")

    def publisher(*arguments: Any, original: Any = process.publisher, **options: Any) -> Any:
        outgoing = original(*arguments, **options)
        publish = outgoing.publish

        async def dying(batch: Sequence[Message]) -> Any:
            at("before publish")
            receipts = await publish(batch)
            at("after publish")
            return receipts

        outgoing.publish = dying
        return outgoing

    call.handling = handling
    process.publisher = publisher
    event.listen(Session, "before_commit", lambda _: at("before commit") if handled else None)
    event.listen(Session, "after_commit", lambda _: at("after commit") if handled else None)


@dataclass(slots=True)
class Chaos:
    """The disturbances of a consumer, drawn from a seed for each message: the same ones for the same seed.

    Attributes:
        seed: of the random choice.
        counts: the disturbances so far: `lost acks`, `swapped messages` and `lost connections`.
    """

    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    def happens(self, what: str, message_id: str | None, share: float, *, times: int = 1) -> bool:
        """Whether something happens to a message now, at most so many times."""
        key = f"{what} {message_id}"
        number = random.Random(f"{self.seed} {key} {self.counts[key]}").random()  # noqa: S311 - the same again
        if self.counts[key] >= times or number >= share:
            self.counts[key] = times  # what has not happened once does not happen later
            return False
        self.counts[key] += 1
        self.counts[what] += 1
        return True


def chaos(consumer: Consumer, *, seed: int, share: float = 0.3) -> Chaos:
    """Disturb a consumer: acks get lost, messages change places, and on PostgreSQL connections die before the commit.

    Call it before the consumer runs. Each message is disturbed a few times at most, so that the queue gets empty.

    Args:
        consumer: with any broker.
        seed: the same seed disturbs the same messages in the same way.
        share: of the messages, for each kind of disturbance.
    """
    disturbances = Chaos(seed)
    consumer._subscriber = _ChaoticSubscriber(consumer._subscriber, disturbances, share)  # noqa: SLF001
    engine = consumer._engine.sync_engine  # noqa: SLF001
    if is_server(engine.dialect.name):
        event.listen(engine, "before_cursor_execute", _note_message)
        event.listen(engine, "commit", lambda connection: _lose(connection, disturbances, share))
    return disturbances


def _note_message(connection: Any, _: Any, statement: str, parameters: Any, *__: Any) -> None:
    """Note which message a transaction is about: its inbox row is inserted first."""
    if statement.startswith(f"INSERT INTO {inbox_table.name}") and isinstance(parameters, dict):
        connection.info["outboxkit.testing"] = parameters.get("message_id")


def _lose(connection: Any, disturbances: Chaos, share: float) -> None:
    message_id = connection.info.pop("outboxkit.testing", None)
    if message_id is not None and disturbances.happens("lost connections", message_id, share):
        connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")


class _ChaoticSubscriber:
    """A subscriber whose deliveries change places, and come again after an ack."""

    def __init__(self, subscriber: Subscriber, disturbances: Chaos, share: float) -> None:
        self._subscriber, self._chaos, self._share = subscriber, disturbances, share
        self._held: Delivery | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subscriber, name)

    async def receive(self, *, wait: bool = True) -> Delivery | None:
        held, self._held = self._held, None
        delivery = held or await self._subscriber.receive(wait=wait)
        if delivery is None or held is not None:
            return _ChaoticDelivery(delivery, self) if delivery is not None else None
        if self.happens("swapped messages", delivery):
            self._held = delivery
            other = await self._subscriber.receive(wait=False)
            delivery, self._held = (other, delivery) if other is not None else (delivery, None)
        return _ChaoticDelivery(delivery, self)

    def happens(self, what: str, delivery: Delivery, *, times: int = 1) -> bool:
        message_id = delivery.message.id if isinstance(delivery.message, Message) else None
        return self._chaos.happens(what, message_id, self._share, times=times)


class _ChaoticDelivery:
    """A delivery whose ack may get lost: then it comes again."""

    def __init__(self, delivery: Delivery, subscriber: _ChaoticSubscriber) -> None:
        self._delivery, self._subscriber = delivery, subscriber

    @property
    def message(self) -> Message | Malformed:
        return self._delivery.message

    @property
    def envelope(self) -> Envelope:
        return self._delivery.envelope

    @property
    def delivery_headers(self) -> DeliveryHeaders:
        return self._delivery.delivery_headers

    @property
    def redeliveries(self) -> int:
        return self._delivery.redeliveries

    @property
    def dropped(self) -> bool:
        return self._delivery.dropped

    async def ack(self) -> None:
        if self._subscriber.happens("lost acks", self._delivery, times=LOST_ACKS):
            await self._delivery.requeue()
        else:
            await self._delivery.ack()

    async def requeue(self) -> None:
        await self._delivery.requeue()

    async def retry(self, after: timedelta | None = None, *, handlers: tuple[str, ...] = ()) -> timedelta:
        return await self._delivery.retry(after, handlers=handlers)

    async def requeue_fresh(self) -> None:
        await self._delivery.requeue_fresh()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
