"""What an effect is known by, and which sessions are of use to it."""

from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from outboxkit import ids, tables
from outboxkit.effects.decision import AMBIGUOUS, Errors, Policy
from outboxkit.errors import ConfigurationError
from outboxkit.message import Handling, current_handling

KEY_LIMIT = 600
"""Characters of a key."""
MEMORY = ":memory:"

_default_key_used: ContextVar[Handling | None] = ContextVar("outboxkit_default_key_used", default=None)


@dataclass(frozen=True, slots=True)
class Asked:
    """One run of an effect.

    Attributes:
        key: what the effect is known by.
        alone: no other run can be busy with it, whatever its lease says.
        within: what is being handled, if anything is.
        on_unknown, lease, ambiguous: as they were given to `once`, the last with what is ambiguous anyway.
        token: of this run alone.
    """

    key: str
    alone: bool
    within: Handling | None
    on_unknown: Policy
    lease: timedelta
    ambiguous: Errors
    token: str


def asked(key: str | None, on_unknown: Policy, lease: timedelta, ambiguous: Errors) -> Asked:
    """What `once` is asked to do, here and now.

    Raises:
        ConfigurationError: an option is of another kind; there is no key, and no handler or another effect of it.
    """
    if on_unknown not in ("skip", "repeat"):
        raise ConfigurationError(f"effects.once: on_unknown is {on_unknown!r}; 'skip' or 'repeat' is accepted")
    if not isinstance(lease, timedelta) or lease <= timedelta(0):
        raise ConfigurationError(f"effects.once: lease is {lease!r}; a timedelta above 0 is accepted")
    within = current_handling()
    known_by = _default_key(within) if key is None else _checked(key)
    return Asked(known_by, key is None, within, on_unknown, lease, (*AMBIGUOUS, *ambiguous), ids.new())


def dialect_of(session: Session, within: Handling | None) -> str:
    """The name of the dialect of a session for effects, which has not begun its transaction.

    Raises:
        ConfigurationError: its commits would be none, or it would wait for the handler, which waits for it.
    """
    bind = session.get_bind(clause=tables.effect)
    if isinstance(bind, Connection):
        raise ConfigurationError(
            "effects.once: the sessions are bound to a Connection, whose transaction they would share. The intention "
            "must be committed before the call: bind the sessionmaker to an Engine"
        )
    name = bind.dialect.name
    held = within.database if within is not None and name == "sqlite" else None
    if within is not None and held is not None and _place(held) == _place(bind.url.database):
        raise ConfigurationError(
            f"effects.once: handler {within.handler!r} is writing to {held!r}, and SQLite has one writer at a time: "
            "the intention could not be committed before the handler ends. Give effects.once a file of its own, "
            "with outboxkit's tables: `outboxkit migrate --database-url sqlite:///effects.db`"
        )
    return name


def _place(database: str | None) -> str:
    """Which file a URL names; all databases in memory are taken as one."""
    name = (database or MEMORY).removeprefix("file:").partition("?")[0]
    return MEMORY if name == MEMORY else str(Path(name).resolve())


def _default_key(within: Handling | None) -> str:
    """For the one effect of a handler: the length keeps apart what could be read in two ways."""
    if within is None or within.handler is None:
        raise ConfigurationError(
            "effects.once needs a key where no handler is running: what the effect is known by at each run, such as "
            "f'receipt-{order.id}'"
        )
    if _default_key_used.get() is within:
        raise ConfigurationError(
            f"handler {within.handler!r} has a second effect, and both would be known by the handler and its message: "
            "give each a key of its own, such as f'receipt-{order.id}'"
        )
    _default_key_used.set(within)
    return f"{len(within.handler)}:{within.handler}:{within.message.id}"


def _checked(key: str) -> str:
    is_text = isinstance(key, str) and key.isprintable()
    if not is_text or not 0 < len(key) <= KEY_LIMIT:
        raise ConfigurationError(f"effects.once: key is {key!r}; 1 to {KEY_LIMIT} printable characters are accepted")
    return key
