"""Two messages at once: their statements meet in every order of one switch, and the end must be a serial one.

The first transaction stops before one of its statements. Meanwhile the second one runs, to its end or until it waits
for a lock. Then the first goes on. A file has one writer, so nothing can run meanwhile. There the first one runs after
the second, and until its first write or lock it reads the rows as they were before.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import IntegrityError

from outboxkit.codec import payloads
from outboxkit.errors import DecodeError
from outboxkit.message import Message, changed
from outboxkit.testing.bench import Bench
from outboxkit.testing.differences import Changes
from outboxkit.testing.trials import Trial

VARIANTS = 3


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two events to be handled at once, and the changes that one after the other makes.

    Attributes:
        earlier: messages that were handled before, so that rows are there.
        events: the two events.
        serial: the changes in the one order and in the other.
        description: how the second event differs from the first one.
    """

    earlier: Sequence[Any]
    events: tuple[Any, Any]
    serial: Sequence[Changes]
    description: str

    def pauses(self, bench: Bench, limit: int) -> Sequence[int]:
        """The statements before which the first transaction stops: writes that follow a read, and its commit.

        Elsewhere it has read nothing that the second one could change.
        """
        if not bench.database.is_server:
            return [0]
        numbers = range(2, min(bench.statements, limit) + 1)
        writes = [each for each in numbers if each not in bench.reads and each - 1 in bench.reads]
        return [*writes, bench.statements + 1]

    def hold(self, bench: Bench, pause: int) -> Exception | None:
        """Handle both at once.

        Returns:
            The error of one that found a row which was not there when it looked.
        """
        self.prepare(bench)
        messages = [bench.message(event) for event in self.events]
        if bench.database.is_server:
            deliveries = self._interleave(bench, messages, pause)
        else:
            stale = bench.database.read()
            second = bench.deliver(messages[1])
            deliveries = [second, bench.deliver(messages[0], stale=stale)]
        error: Exception | None = None
        for delivery in deliveries:
            failed = delivery.error
            if failed is None:
                continue
            error = error or (failed if isinstance(failed, IntegrityError) else None)
            if isinstance(again := bench.settle(delivery.message).error, Exception):
                error = error or again
        return error

    @staticmethod
    def _interleave(bench: Bench, messages: Sequence[Message], pause: int) -> Sequence[Trial]:
        first = bench.start_delivery(messages[0], pause=pause)
        bench.trials.wait_for_pause(first)
        second = bench.start_delivery(messages[1])
        bench.trials.wait_for_end_or_lock(second)
        first.release()
        return [bench.wait(each) for each in (first, second)]

    def prepare(self, bench: Bench) -> None:
        """Go back to the rows from which the two begin."""
        bench.reset()
        for event in self.earlier:
            bench.deliver(bench.message(event))


def meetings(bench: Bench, others: Collection[object]) -> Iterator[Meeting]:
    """The meetings of the handler's event with the same once more, with variants of it, and with other events.

    Those are left out that cannot be handled one after the other either.
    """
    own = bench.message()
    choices: list[tuple[str, object]] = [("two messages of the same event", own)]
    choices += [(f"two messages that differ in {name!r}", each) for name, each in _variants(bench, own)]
    choices += [(f"beside {other!r}", other) for other in others]
    for description, other in choices:
        for earlier in ((), (own,)):
            serial = [_serial(bench, earlier, pair) for pair in ((own, other), (other, own))]
            both = [each for each in serial if each is not None]
            if len(both) == len(serial):
                yield Meeting(earlier, (own, other), both, description)


def _serial(bench: Bench, earlier: Sequence[Any], events: Sequence[Any]) -> Changes | None:
    """The changes by these events one after the other; None if one of them fails."""
    bench.reset()
    for event in (*earlier, *events):
        delivery: Trial = bench.deliver(bench.message(event))
        if delivery.error is not None:
            return None
    return bench.changes()


def _variants(bench: Bench, message: Message) -> Iterator[tuple[str, Message]]:
    """The message with one field changed: a number or a text, if it still is an event."""
    document = json.loads(message.payload)
    count = 0
    for name, value in document.items() if isinstance(document, dict) else ():
        if isinstance(value, bool) or not isinstance(value, int | str) or count == VARIANTS:
            continue
        other = value + 1 if isinstance(value, int) else f"{value}-2"
        payload = json.dumps({**document, name: other}).encode()
        try:
            payloads.decode(bench.handler.event_type, payload)
        except DecodeError:
            continue
        count += 1
        yield name, changed(message, payload=payload)
