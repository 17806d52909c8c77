"""`@event("OrderConfirmed")`: the durable name of a user's class, and the options of its messages."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, cast, get_args

import msgspec

from outboxkit.errors import ConfigurationError
from outboxkit.errors.extras import zstd
from outboxkit.message import DEFAULT_DESTINATION, MAX_VERSION, is_storable_name, is_version

T = TypeVar("T")
Compression = Literal["gzip", "zstd"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)

_MARK = "__outboxkit_event__"
_MAPPED = ("__mapper__", "__table__")
"""Attributes that SQLAlchemy and SQLModel set on a mapped class."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """The options that `@event` set on a class, which says what they mean."""

    name: str
    strict_order: bool = False
    discard_unroutable: bool = False
    destination: str = DEFAULT_DESTINATION
    reply: str | None = None
    version: int = 1
    aliases: tuple[str, ...] = ()
    compress: Compression | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All types under which its messages arrive, its own name first."""
        return (self.name, *self.aliases)


def event(
    name: str,
    *,
    strict_order: bool = False,
    unroutable: Literal["discard"] | None = None,
    destination: str = DEFAULT_DESTINATION,
    reply: str | None = None,
    version: int = 1,
    aliases: Sequence[str] = (),
    compress: Compression | None = None,
) -> Callable[[type[T]], type[T]]:
    """Give a class the name under which its instances travel: the message's type, and its default routing key.

    The class is a dataclass, an attrs class, a `msgspec.Struct` or a pydantic model. `@event` stands above the
    decorator that makes it one. The name is part of the wire format: renaming the class is free, renaming the event is
    not. It is stored on the class itself: there is no global registry.

    Args:
        name: 1 to 255 bytes.
        strict_order: on PostgreSQL, transactions that add events of one key wait for each other from the flush to the
            commit. So the order of positions is the order of commits. Every event then needs a key.
        unroutable: "discard" if an event that reaches no queue counts as published. None makes it a failure, and after
            all attempts a dead letter.
        destination: the destination whose relay publishes it, `outboxkit relay --destination NAME`. 1 to 255 bytes.
        reply: the name of another event, for HTTP destinations. The body of a 2xx response is added to the outbox as
            that event, in the transaction that settles this one.
        version: the version of the class's fields, sent with each message. Raise it with a change that consumers cannot
            read as they are, and give the old versions an `@upcast` each.
        aliases: earlier names of the event. Messages of these types are handled too; new ones have `name`.
        compress: "gzip" or "zstd": payloads from 1 KiB on are stored and sent like that, as the message's
            `content_encoding` says. "zstd" needs Python 3.14 or `outboxkit[zstd]`, here and at the consumers.

    Raises:
        ConfigurationError: a name is empty, too long for AMQP (255 bytes) or cannot be stored. Or `unroutable` or
            `version` has another value, or the class is of no such kind. Or `compress` is not known, or
            cannot be done here.
    """
    if not _is_name(name):
        raise ConfigurationError(
            f'@event takes a name of 1 to 255 bytes, as in @event("OrderConfirmed"); found {name!r}'
        )
    for option, value in (("destination", destination), ("reply", reply if reply is not None else name)):
        if not _is_name(value):
            raise ConfigurationError(f"@event({name!r}) takes a {option} of 1 to 255 bytes; found {value!r}")
    if reply is not None and destination == DEFAULT_DESTINATION:
        raise ConfigurationError(
            f"@event({name!r}) has a reply, which a broker does not give: add an HTTP destination, as in "
            f'@event({name!r}, destination="payments", reply={reply!r})'
        )
    if unroutable not in (None, "discard"):
        raise ConfigurationError(f'@event({name!r}) takes unroutable="discard" or None; found {unroutable!r}')
    if compress not in (None, *COMPRESSIONS):
        raise ConfigurationError(f'@event({name!r}) takes compress="gzip", "zstd" or None; found {compress!r}')
    if compress == "zstd":
        zstd()
    if not is_version(version):
        raise ConfigurationError(
            f"@event({name!r}) takes a version, a whole number from 1 to {MAX_VERSION}; found {version!r}"
        )
    is_discarded = unroutable == "discard"
    former = _aliases(name, aliases)
    declaration = Declaration(name, bool(strict_order), is_discarded, destination, reply, version, former, compress)

    def mark(cls: type[T]) -> type[T]:
        if any(hasattr(cls, name) for name in _MAPPED):
            raise ConfigurationError(
                f"@event({name!r}) found {cls.__qualname__}, whose instances are rows of a table. Give the event a "
                "class of its own, with the fields that its consumers need"
            )
        if not is_model(cls):
            raise ConfigurationError(
                f"@event({name!r}) found {cls!r}, which is not a dataclass, attrs class, msgspec.Struct or pydantic "
                "model. Write @event above the decorator that makes it one"
            )
        setattr(cls, _MARK, declaration)
        return cls

    return mark


def _aliases(name: str, aliases: object) -> tuple[str, ...]:
    """The aliases, each once."""
    if not isinstance(aliases, tuple | list) or not all(map(_is_name, aliases)) or name in aliases:
        raise ConfigurationError(
            f"@event({name!r}) takes as aliases the names that it had before, each of 1 to 255 bytes, as in "
            f'aliases=("OrderApproved",); found {aliases!r}'
        )
    return tuple(dict.fromkeys(aliases))


def _is_name(name: object) -> bool:
    return isinstance(name, str) and is_storable_name(name)


def declaration_of(cls: type) -> Declaration:
    """The declaration of this very class; a subclass needs one of its own."""
    declaration = cls.__dict__.get(_MARK)
    if declaration is None:
        raise ConfigurationError(_no_event(cls))
    return cast("Declaration", declaration)


def _no_event(cls: type) -> str:
    if cls.__module__ == "builtins":
        article = "an" if cls.__name__[0] in "aeiou" else "a"
        value = "None" if cls is type(None) else f"{article} {cls.__name__}"
        return (
            f'{value} is not an event; make a class for it, such as a dataclass with @event("…") above it, and add an '
            "instance"
        )
    parent = next((base for base in cls.__mro__[1:] if _MARK in base.__dict__), None)
    hint = f"; the @event of {parent.__qualname__} is not inherited" if parent is not None else ""
    return f'{cls.__qualname__} is not an event: decorate it with @event("{cls.__name__}"){hint}'


def declaration_of_instance(event: object) -> Declaration:
    """The declaration of an event's class."""
    if isinstance(event, type):
        raise ConfigurationError(f"{event.__qualname__} is the class: pass an instance, as in {event.__name__}(...)")
    if isinstance(event, list | tuple) and any(is_event(type(each)) for each in event):
        raise ConfigurationError(f"a {type(event).__name__} is not an event: outbox.add_all takes several events")
    return declaration_of(type(event))


def name_of(cls: type) -> str:
    """The name that `@event` gave to this very class."""
    return declaration_of(cls).name


def is_event(cls: object) -> bool:
    """Whether `@event` named this very class."""
    return isinstance(cls, type) and _MARK in cls.__dict__


def is_model(cls: type) -> bool:
    """Whether the class is of a kind that the codec can encode and decode."""
    return (
        dataclasses.is_dataclass(cls)
        or hasattr(cls, "__attrs_attrs__")
        or issubclass(cls, msgspec.Struct)
        or is_pydantic(cls)
    )


def is_pydantic(cls: object) -> bool:
    """Whether the class is a pydantic model or dataclass.

    pydantic is optional: a class of it exists only once it is imported.
    """
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not isinstance(cls, type):
        return False
    return issubclass(cls, pydantic.BaseModel) or "__is_pydantic_dataclass__" in vars(cls)


def is_called_outside(cls: type) -> bool:
    """Whether this very class is an event with a destination of its own."""
    declaration = vars(cls).get(_MARK)
    return declaration is not None and declaration.destination != DEFAULT_DESTINATION
