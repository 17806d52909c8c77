"""`@event("OrderConfirmed")`: the durable name of a user's class."""

import dataclasses
import sys
from collections.abc import Callable
from typing import TypeVar, cast

import msgspec

from outboxkit.errors import ConfigurationError

T = TypeVar("T")

_MARK = "__outboxkit_event__"


def event(name: str) -> Callable[[type[T]], type[T]]:
    """Give a class the name under which its instances travel: the message's type, and its default routing key.

    The class is a dataclass, an attrs class, a `msgspec.Struct` or a pydantic model; `@event` stands above the
    decorator that makes it one. The name is part of the wire format: renaming the class is free, renaming
    the event is not. It is written on the class itself: nothing is registered anywhere.

    Raises:
        ConfigurationError: the name is empty or too long for AMQP (255 bytes), or the class is of no such kind.
    """
    if not isinstance(name, str) or not name or len(name.encode()) > 255:
        raise ConfigurationError(
            f'@event takes a name of 1 to 255 bytes, as in @event("OrderConfirmed"); found {name!r}'
        )

    def mark(cls: type[T]) -> type[T]:
        if not is_model(cls):
            raise ConfigurationError(
                f"@event({name!r}) found {cls!r}, which is no dataclass, attrs class, msgspec.Struct or pydantic "
                "model. Write @event above the decorator that makes it one"
            )
        setattr(cls, _MARK, name)
        return cls

    return mark


def name_of(cls: type) -> str:
    """The name that `@event` gave to this very class; a subclass needs a name of its own.

    Raises:
        ConfigurationError: the class is not an event.
    """
    name = cls.__dict__.get(_MARK)
    if name is None:
        raise ConfigurationError(f'{cls.__qualname__} is not an event: decorate it with @event("{cls.__name__}")')
    return cast("str", name)


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
