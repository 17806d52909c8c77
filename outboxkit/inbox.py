"""The consumer's side: handlers with durable names, and the rule that each handles a message once."""

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import async_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import await_

from outboxkit import codec, ids, statements
from outboxkit.errors import ConfigurationError, TransactionRequired
from outboxkit.events import is_event, name_of
from outboxkit.message import NAME_LIMIT, Message, handling

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__outboxkit_handler__"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Outcome(StrEnum):
    """What became of a delivery at one handler."""

    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    RETRIED = "retried"
    DEAD = "dead"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler function and what its signature says.

    Attributes:
        name: durable; with the message id it is the key of the inbox row.
        function: called as `function(session, event)` or `function(session, event, message)`.
        event_type: the class that the payload is decoded to.
        takes_message: whether the function has a third parameter.
        is_async: whether it is an `async def`, and so gets an `AsyncSession`.
    """

    name: str
    function: Callable[..., Any]
    event_type: type
    takes_message: bool
    is_async: bool

    @property
    def message_type(self) -> str:
        """The type of the messages that it handles."""
        return name_of(self.event_type)


def inbox_handler(name: str) -> Callable[[F], F]:
    """Mark a function as the handler of an event: `(session, event)` or `(session, event, message)`, def or async def.

    The event type is the annotation of the second parameter. The name is durable: it is stored with each handled
    message, so renaming the function is free and renaming the handler makes every message new to it. The function
    is returned as it was and registered nowhere: a consumer is given its handlers.

    Raises:
        ConfigurationError: the name is empty or longer than 255 bytes.
    """
    if not isinstance(name, str) or not name or len(name.encode()) > NAME_LIMIT:
        raise ConfigurationError(f'@inbox_handler takes a name, as in @inbox_handler("HandleOrder"); found {name!r}')

    def mark(function: F) -> F:
        setattr(function, _MARK, name)
        return function

    return mark


@cache
def handler_of(function: Callable[..., Any]) -> Handler:
    """What `@inbox_handler` and the signature say about a function.

    Raises:
        ConfigurationError: it is not marked, or its signature is not that of a handler.
    """
    name = getattr(function, _MARK, None)
    shown = getattr(function, "__qualname__", repr(function))
    if name is None:
        raise ConfigurationError(f'{shown} is no handler: decorate it with @inbox_handler("…")')
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) not in (2, 3) or any(parameter.kind not in _POSITIONAL for parameter in parameters):
        found = ", ".join(map(str, parameters))
        raise ConfigurationError(
            f"handler {name!r} is {shown}({found}); it takes (session, event) or (session, event, message)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"handler {name!r}: {shown} is a generator (it has a yield), so calling it runs nothing"
        )
    try:
        event_type = typing.get_type_hints(function).get(parameters[1].name)
    except NameError as error:
        raise ConfigurationError(f"handler {name!r}: the annotations of {shown} cannot be resolved: {error}") from error
    if not isinstance(event_type, type) or not is_event(event_type):
        found = "no annotation" if event_type is None else repr(event_type)
        raise ConfigurationError(
            f"handler {name!r}: parameter {parameters[1].name!r} of {shown} has {found}; annotate it "
            f"with an @event class"
        )
    return Handler(name, function, event_type, len(parameters) == 3, inspect.iscoroutinefunction(function))


def handlers_in(modules: Iterable[ModuleType]) -> list[Handler]:
    """The handlers that these modules define or import, each once, in the order in which they are found.

    Raises:
        ConfigurationError: two different handlers have one name, a signature is wrong, or there is no handler at all.
    """
    listed = list(modules)
    found: dict[str, Handler] = {}
    for function in _marked(listed):
        handler = handler_of(function)
        other = found.setdefault(handler.name, handler)
        if other.function is not function:
            raise ConfigurationError(
                f"two handlers are named {handler.name!r}: {_place(other.function)} and {_place(function)}. "
                "The name is what the inbox remembers: give each its own"
            )
    if not found:
        names = ", ".join(module.__name__ for module in listed)
        raise ConfigurationError(f'no handler in {names}: mark functions with @inbox_handler("…")')
    return list(found.values())


def is_stale(message: Message, *, now: datetime, retention: timedelta) -> bool:
    """Whether the message is older than the inbox remembers, so that nobody can say whether it was handled before.

    Its age is the one of its UUIDv7, else the one of its timestamp; a message with neither is taken as new.
    """
    made = ids.time_of(message.id) or message.created_at
    return made is not None and now - made > retention


def run_once(
    session: Session | scoped_session[Any], message: Message, handler: Callable[..., Any] | Handler
) -> Outcome:
    """Run `handler` for `message`, unless it has already run: the rule behind "each effect happens once".

    Inserts the inbox row in the session's transaction, then calls the handler with that session, so that both are
    kept, or neither. While another transaction handles the same message this call waits for its end. The caller
    commits; after an exception it must roll back, or the message counts as handled.

    With an `AsyncSession`, `await session.run_sync(inbox.run_once, message, handler)`; an `async def` handler then
    gets the `AsyncSession`.

    Returns:
        `Outcome.PROCESSED`, or `Outcome.DUPLICATE` where nothing was called.

    Raises:
        TransactionRequired: the session is in no transaction, its connection is in autocommit mode, or the handler
            itself committed or rolled back.
        TypeError: the session is of another kind.
        DecodeError: the payload is not the handler's event; nothing was inserted.
        ConfigurationError: the function is no handler, or it is async and the session is not.
    """
    spec = handler if isinstance(handler, Handler) else handler_of(handler)
    session = session() if isinstance(session, scoped_session) else session
    _require_transaction(session)
    event: object = codec.decode(spec.event_type, message.payload)
    dialect = session.connection().dialect.name
    row = statements.inbox.record_processed(dialect, handler=spec.name, message_id=message.id, type_=message.type)
    if session.connection().execute(row).first() is None:
        return Outcome.DUPLICATE
    transaction = session.get_transaction()
    with handling(message):
        _call(spec, session, event, message)
        session.flush()
    if session.get_transaction() is not transaction:
        raise TransactionRequired(
            f"handler {spec.name!r} ended the transaction that holds its inbox row. Leave commit and rollback to the "
            "caller; session.begin_nested() is there for work that may fail alone"
        )
    return Outcome.PROCESSED


def _call(spec: Handler, session: Session, event: object, message: Message) -> None:
    extra = (message,) if spec.takes_message else ()
    if not spec.is_async:
        result = spec.function(session, event, *extra)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise ConfigurationError(
                f"handler {spec.name!r} is no `async def` but returned an awaitable, which nobody would await: "
                "declare it, and what decorates it, as async def"
            )
        return
    proxy = async_session(session)
    if proxy is None:
        raise ConfigurationError(
            f"handler {spec.name!r} is async and needs an AsyncSession: "
            "await session.run_sync(inbox.run_once, message, handler)"
        )
    await_(spec.function(proxy, event, *extra))


def _require_transaction(session: Session) -> None:
    if not isinstance(session, Session):
        raise TypeError(
            f"run_once takes a Session, found {type(session).__name__}; "
            "with an AsyncSession: await session.run_sync(inbox.run_once, message, handler)"
        )
    if not session.in_transaction():
        raise TransactionRequired(
            "run_once was called outside a transaction: its inbox row must commit or roll back together with the "
            "handler's work. Call it inside `with session.begin():`"
        )
    connection = session.connection()
    if connection.dialect.name == "sqlite":  # a driver in autocommit mode is how SQLAlchemy users get real transactions
        return
    driver_connection = connection.connection.dbapi_connection
    if driver_connection is not None and connection.dialect.detect_autocommit_setting(driver_connection):
        raise TransactionRequired(
            "run_once was called on a connection with isolation level AUTOCOMMIT: the inbox row would stay when the "
            "handler fails, and the message would be lost. Use an engine without it"
        )


def _marked(modules: Iterable[ModuleType]) -> Iterator[Callable[..., Any]]:
    seen: set[int] = set()
    for module in modules:
        for candidate in vars(module).values():
            if callable(candidate) and not isinstance(candidate, type) and id(candidate) not in seen:
                seen.add(id(candidate))
                if isinstance(getattr(candidate, _MARK, None), str):
                    yield candidate


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"
