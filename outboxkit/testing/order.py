"""`assert_order_does_not_matter`: events are delivered in every order, and the rows in the end must be the same."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from itertools import islice, permutations
from typing import Any

from outboxkit import Message, Retry
from outboxkit.errors import ConfigurationError
from outboxkit.inbox import Handler
from outboxkit.testing.database import TrialDatabase
from outboxkit.testing.differences import Changes, difference, varying
from outboxkit.testing.messages import Handlers, message_of, specs_of
from outboxkit.testing.trials import Trials

ORDERS = 24
"""The number of orders that are tried, which are all of four events; and the reverse one."""
ROUNDS = 10


def assert_order_does_not_matter(
    handlers: Handlers,
    events: Sequence[object],
    *,
    engine: Any,
    ignore: Collection[str] = (),
) -> None:
    """Assert that the rows are the same in the end, in whatever order the events arrive.

    Each order begins with the same rows, and each event is delivered to its handlers in a transaction of its own. One
    whose handler raises `Retry` comes again after the others, as it would in a consumer. The rows of the database are
    put back in the end.

    `engine` and `ignore` are those of `assert_effects_once`. The events are given in the order in which they happened.

    Raises:
        AssertionError: an order leads to other rows, or to an error; the text names both.
        ConfigurationError: the engine cannot be used for this. Or there are fewer events than two, or one that no
            handler handles.
    """
    __tracebackhide__ = True
    specs = specs_of(handlers)
    _refuse_unhandled(specs, events)
    with (
        closing(TrialDatabase(engine)) as database,
        Trials(database, specs[0], None, ignore=ignore) as trials,
    ):
        first = tuple(range(len(events)))
        expected = _deliver(trials, specs, events, first)
        varied = varying(expected, _deliver(trials, specs, events, first)) or {}
        for table, columns in database.numbered().items():
            varied.setdefault(table, set()).update(columns)
        for order in [*islice(permutations(first), 1, ORDERS), first[::-1]]:
            lines = difference(expected, _deliver(trials, specs, events, order), varied)
            if lines:
                raise AssertionError("\n".join(_report(events, order, lines)))


def _refuse_unhandled(handlers: Sequence[Handler], events: Sequence[object]) -> None:
    if len(events) < 2:
        raise ConfigurationError(f"{len(events)} events have no other order: give two or more")
    for event in events:
        message = event if isinstance(event, Message) else message_of(event)
        if not any(message.type in handler.message_types for handler in handlers):
            raise ConfigurationError(f"none of the handlers handles {message.type!r}: give them all")


def _report(events: Sequence[object], order: Sequence[int], lines: Sequence[str]) -> Iterator[str]:
    yield "the order of the events matters"
    yield "- in the order in which they happened: " + ", ".join(repr(event) for event in events)
    yield "+ in this order: " + ", ".join(repr(events[index]) for index in order)
    yield from lines
    yield "  to do: let the newer version win, or keep messages of one key in order (ordered consumer)"


def _deliver(
    trials: Trials,
    handlers: Sequence[Handler],
    events: Sequence[object],
    order: Sequence[int],
) -> Changes:
    """The changes by the events in this order."""
    __tracebackhide__ = True
    trials.database.restore()
    waiting = [(handler, trials.message(events[index])) for index in order for handler in handlers]
    waiting = [(handler, message) for handler, message in waiting if message.type in handler.message_types]
    for _ in range(ROUNDS):
        again = []
        for handler, message in waiting:
            error = trials.deliver(message, handler=handler).error
            if isinstance(error, Retry):
                again.append((handler, message))
            elif error is not None:
                shown = ", ".join(repr(events[index]) for index in order)
                raise AssertionError(
                    f"handler {handler.name!r} fails if the order is {shown}: {type(error).__name__}: {error}"
                ) from error
        if not again:
            return trials.changes()
        waiting = again
    raise AssertionError(f"handler {waiting[0][0].name!r} still raises Retry after {ROUNDS} rounds")
