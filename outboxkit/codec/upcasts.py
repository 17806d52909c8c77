"""`@upcast("OrderConfirmed", 1)`: an event's fields in one version made from those in the version before, when read.

An upcast is found beside its event: in the module that defines the class, or imported into it. Nothing is registered.
"""

import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

from outboxkit.codec import payloads
from outboxkit.errors import ConfigurationError, DecodeError, EncodeError, NewerVersion
from outboxkit.errors.failures import first_line, path_of, printable
from outboxkit.events import Declaration, declaration_of
from outboxkit.message import Message, is_storable_name, is_version

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
F = TypeVar("F", bound=Upcast)

_MARK = "__outboxkit_upcast__"
ANYTHING: Any = Any
"""The class of a document before its upcasts."""


class _Step(NamedTuple):
    """The arguments of `@upcast`."""

    name: str
    version: int


def upcast(name: str, version: int) -> Callable[[F], F]:
    """Mark a function as the upcast of an event: it takes the document of `version`, and returns that of the next one.

    A document is the payload as plain JSON: a dict of str, int, float, bool, None, lists and dicts. It is a list for a
    class that is written as one. The function may change and return it. Values that an event's class may have, such as
    a Decimal, are accepted in it. A float that stays in it keeps all its digits, and `Decimal(str(number))` has them
    too. A payload of version 1 goes through the upcasts of 1, 2, … up to the version of its class.

    The function is returned unchanged and registered nowhere. It belongs into the module of its event's class, or is
    imported there. It should depend on the document alone: a handler may be run again.

    Args:
        name: the event's name, or one of its aliases.
        version: the version that it takes, from 1.

    Raises:
        ConfigurationError: the name or the version is of another kind, or the function cannot be called with one dict.
    """
    if not isinstance(name, str) or not is_storable_name(name) or not is_version(version):
        raise ConfigurationError(
            "@upcast takes the name of an event and the version that the function reads, a whole number from 1. Write "
            f'@upcast("OrderConfirmed", 1), for example; found ({printable(repr(name), 100)}, {version!r})'
        )

    def mark(function: F) -> F:
        if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"@upcast({name!r}, {version}) found {function!r}; a plain def is accepted, which takes the document "
                "and returns that of the next version"
            )
        setattr(function, _MARK, _Step(name, version))
        return function

    return mark


@cache
def chain_of(cls: type) -> tuple[Upcast, ...]:
    """The upcasts of an event class, from version 1 to its own.

    Raises:
        ConfigurationError: one is missing, there are two for one version, or one leads beyond the class's version. Or
            the class is not an event.
    """
    declaration, steps = declaration_of(cls), dict[int, Upcast]()
    module = sys.modules.get(cls.__module__)
    for function in filter(inspect.isfunction, list(vars(module).values()) if module is not None else ()):
        step: _Step | None = getattr(function, _MARK, None)
        if step is None or step.name not in declaration.names:
            continue
        if steps.setdefault(step.version, function) is not function:
            raise ConfigurationError(
                f"two upcasts take version {step.version} of {declaration.name!r}: {path_of(steps[step.version])} and "
                f"{path_of(function)}. Keep one of them"
            )
    beyond = next((version for version in sorted(steps) if version >= declaration.version), None)
    if beyond is not None:
        raise ConfigurationError(
            f"{path_of(steps[beyond])} makes version {beyond + 1} of {declaration.name!r}, and {cls.__qualname__} has "
            f"version {declaration.version}: write @event({declaration.name!r}, version={beyond + 1})"
        )
    for version in range(1, declaration.version):
        if version not in steps:
            raise ConfigurationError(_missing(cls, declaration, version))
    return tuple(steps[version] for version in range(1, declaration.version))


def _missing(cls: type, declaration: Declaration, version: int) -> str:
    return (
        f"the upcast of {declaration.name!r} from version {version} to {version + 1} is missing: {cls.__qualname__} "
        f"has version {declaration.version}. Write @upcast({declaration.name!r}, {version}) above a function of "
        f"{cls.__module__}, which takes the old document and returns the new one"
    )


def event_of(cls: type, message: Message) -> object:
    """The event in a message, also in one of an older version, whose document the upcasts of the class change first.

    Raises:
        DecodeError: the payload is not the event of its version, or an upcast has failed; the text names it.
        NewerVersion: the message has a newer version than the class.
        ConfigurationError: as `chain_of`.
    """
    chain = chain_of(cls)
    known = len(chain) + 1
    if message.version == known:
        event: object = payloads.decode(cls, message.payload, message.content_encoding)
        return event
    if message.version > known:
        raise NewerVersion(
            f"it has version {message.version} of {message.type!r}, and {cls.__qualname__} here knows versions up to "
            f"{known}: a consumer of a newer release can read it"
        )
    document: Any = payloads.decode(ANYTHING, message.payload, message.content_encoding)
    for version, function in enumerate(chain[message.version - 1 :], message.version):
        document = _next(function, version, document)
    try:
        payload = payloads.encode_value(document, limit=sys.maxsize)
    except EncodeError as error:
        raise DecodeError(f"what {path_of(chain[-1])} returned has no JSON form: {error}") from error
    del document  # a large one need not be there twice
    try:
        return payloads.decode(cls, payload)
    except DecodeError as error:
        raise DecodeError(f"{error} (made by {path_of(chain[-1])} from version {message.version})") from error.__cause__


def _next(function: Upcast, version: int, document: Any) -> Any:
    try:
        changed: object = function(document)
    except Exception as error:
        reason = f"the upcast {path_of(function)} has failed on version {version}: {first_line(error)}"
        raise DecodeError(reason) from error
    if inspect.iscoroutine(changed):
        changed.close()  # else Python warns of each one
    elif changed is not None:
        return changed
    returned = "None" if changed is None else "a coroutine"
    raise DecodeError(
        f"the upcast {path_of(function)} returned {returned}; it must return the document of version {version + 1}"
    )
