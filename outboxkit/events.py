"""`@event("OrderConfirmed")`: the durable name of a user's class."""

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

import msgspec

from outboxkit.errors import ConfigurationError
from outboxkit.message import DEFAULT_DESTINATION

T = TypeVar("T")

_MARK = "__outboxkit_event__"


@dataclass(frozen=True, slots=True)
class Declaration:
    """What `@event` says of a class.

    Attributes:
        name: the message's type, and its default routing key.
        strict_order: transactions that add one key wait for each other, so that positions follow commits.
        discard_unroutable: a message that reaches no queue has done its duty.
        destination: where its messages go: what a relay of this destination publishes to.
        reply: the name of the event that the destination's answer becomes; None: the answer is dropped.
    """

    name: str
    strict_order: bool = False
    discard_unroutable: bool = False
    destination: str = DEFAULT_DESTINATION
    reply: str | None = None


def event(
    name: str,
    *,
    strict_order: bool = False,
    unroutable: Literal["discard"] | None = None,
    destination: str = DEFAULT_DESTINATION,
    reply: str | None = None,
) -> Callable[[type[T]], type[T]]:
    """Give a class the name under which its instances travel: the message's type, and its default routing key.

    The class is a dataclass, an attrs class, a `msgspec.Struct` or a pydantic model; `@event` stands above the
    decorator that makes it one. The name is part of the wire format: renaming the class is free, renaming
    the event is not. It is written on the class itself: nothing is registered anywhere.

    Args:
        name: 1 to 255 bytes.
        strict_order: on PostgreSQL, transactions that add events of one key wait for each other from the flush to the
            commit, so that the order of positions is the order of commits. Every event then needs a key.
        unroutable: "discard" for events that may go to nobody: one that reaches no queue counts as published. None
            leaves it to `OUTBOXKIT_UNROUTABLE`.
        destination: who publishes it: `outboxkit relay --destination NAME`. 1 to 255 bytes.
        reply: the name of another event: what the destination answers (the body of a 2xx response) is added to the
            outbox as that event, in the transaction that settles this one. For HTTP destinations.

    Raises:
        ConfigurationError: a name is empty or too long for AMQP (255 bytes), `unroutable` is something else, or the
            class is of no such kind.
    """
    if not _is_name(name):
        raise ConfigurationError(
            f'@event takes a name of 1 to 255 bytes, as in @event("OrderConfirmed"); found {name!r}'
        )
    for option, given in (("destination", destination), ("reply", reply if reply is not None else name)):
        if not _is_name(given):
            raise ConfigurationError(f"@event({name!r}) takes a {option} of 1 to 255 bytes; found {given!r}")
    if reply is not None and destination == DEFAULT_DESTINATION:
        raise ConfigurationError(
            f"@event({name!r}) asks for a reply, which a broker does not give: name an HTTP destination as well, as in "
            f'@event({name!r}, destination="payments", reply={reply!r})'
        )
    if unroutable not in (None, "discard"):
        raise ConfigurationError(f'@event({name!r}) takes unroutable="discard" or None; found {unroutable!r}')
    declaration = Declaration(name, bool(strict_order), unroutable == "discard", destination, reply)

    def mark(cls: type[T]) -> type[T]:
        if not is_model(cls):
            raise ConfigurationError(
                f"@event({name!r}) found {cls!r}, which is no dataclass, attrs class, msgspec.Struct or pydantic "
                "model. Write @event above the decorator that makes it one"
            )
        setattr(cls, _MARK, declaration)
        return cls

    return mark


def _is_name(given: object) -> bool:
    return isinstance(given, str) and 0 < len(given.encode()) <= 255


def declaration_of(cls: type) -> Declaration:
    """What `@event` said of this very class; a subclass needs a declaration of its own.

    Raises:
        ConfigurationError: the class is not an event.
    """
    found = cls.__dict__.get(_MARK)
    if found is None:
        raise ConfigurationError(f'{cls.__qualname__} is not an event: decorate it with @event("{cls.__name__}")')
    return cast("Declaration", found)


def name_of(cls: type) -> str:
    """The name that `@event` gave to this very class.

    Raises:
        ConfigurationError: the class is not an event.
    """
    return declaration_of(cls).name


def is_event(cls: object) -> bool:
    """Whether `@event` named this very class."""
    return isinstance(cls, type) and _MARK in cls.__dict__


def is_model(cls: type) -> bool:
    """Whether the class is of a kind that the codec can write and read."""
    return (
        dataclasses.is_dataclass(cls)
        or hasattr(cls, "__attrs_attrs__")
        or issubclass(cls, msgspec.Struct)
        or is_pydantic(cls)
    )


def is_pydantic(cls: object) -> bool:
    """Whether the class is a pydantic model. pydantic is optional: a class of it exists only once it is imported."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)
