"""The handlers that take each type of message, as far as a consumer's database knows them. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable
from outboxkit.operators.reconciliation.result import Terms
from outboxkit.runtime.known_handlers import KnownHandler
from outboxkit.statements.activity import NEVER

SHOWN = 10
"""Handlers that an error names."""


@dataclass(frozen=True, slots=True)
class Taker:
    """A handler, the queues whose consumers have it, and the types that it takes; None for all of them."""

    handler: str
    queues: tuple[str, ...]
    types: frozenset[str] | None

    def takes(self, type_: str, queue: str | None) -> bool:
        """Whether a message of this type is for it. If the message is for one queue, that has to be the handler's."""
        return (self.types is None or type_ in self.types) and (
            queue is None or not self.queues or queue in self.queues
        )


class Takers(dict[tuple[str, str | None], tuple[str, ...]]):
    """For a type, and the one queue that a message is for, the names of the handlers that take it."""

    def __init__(self, takers: Sequence[Taker]) -> None:
        super().__init__()
        self.all = takers

    def __missing__(self, place: tuple[str, str | None]) -> tuple[str, ...]:
        """Find them once for each type and queue."""
        names = self[place] = tuple(taker.handler for taker in self.all if taker.takes(*place))
        return names


def takers_of(registered: Iterable[KnownHandler], handled: Iterable[tuple[str, str]], terms: Terms) -> Takers:
    """The handlers that messages are expected of.

    A consumer registers its handlers with their types. Of a handler that did not, those types count that it has
    handled. One that its queue's consumer no longer has counts no more.

    Args:
        registered: the rows of `outboxkit_handler`.
        handled: handlers, each with a type that it has handled.
        terms: which of them are wanted. If it names handlers and types, each of them takes each type.

    Raises:
        ConfigurationError: a handler is wanted that is not known, and no type is named.
    """
    queues, types = dict[str, list[str]](), dict[str, set[str]]()
    retired, undeclared = set[str](), set[str]()
    for row in registered:
        if row.last_seen <= NEVER:
            retired.add(row.handler)
            continue
        queues.setdefault(row.handler, []).append(row.queue)
        if row.types is None:
            undeclared.add(row.handler)
        types.setdefault(row.handler, set()).update(row.types or ())
    for name, type_ in handled:
        if (name not in types and name not in retired) or name in undeclared:
            types.setdefault(name, set()).add(type_)
            undeclared.add(name)
    if terms.handlers and terms.types:
        by_name = {name: frozenset(terms.types) for name in terms.handlers}
    else:
        _check(terms.handlers, types)
        by_name = {name: frozenset(types[name]) for name in terms.handlers or sorted(types)}
    return Takers([Taker(name, tuple(queues.get(name, ())), of) for name, of in by_name.items()])


def _check(names: Iterable[str], known: Iterable[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        some = ", ".join(printable(name, 60) for name in sorted(known)[:SHOWN]) or "none"
        raise ConfigurationError(
            f"--handler is {unknown[0]!r}, which the consumer's database does not know; it knows {some}. With --type "
            "any name is accepted"
        )
