"""One effect: its record, the decision that follows from it, and its steps, each in a transaction of its own."""

import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, CursorResult, Engine, Update
from sqlalchemy.orm import Session

from outboxkit import ids, statements, tables
from outboxkit.database import transaction
from outboxkit.errors import ConfigurationError, InProgressElsewhere, LeaseLost, Retry
from outboxkit.message import Handling, current_handling
from outboxkit.runtime import window
from outboxkit.statements.dialects import has_one_writer

OnUnknown = Literal["skip", "repeat"]
EffectOutcome = Literal["made", "remembered", "skipped", "repeated"]
Errors = tuple[type[BaseException], ...]

CERTAIN: Errors = (ConnectionRefusedError, socket.gaierror)
"""A call that raised one of these was not made: nothing was sent. After any other exception it is unknown."""
_TRANSLATED = ("httpcore.ConnectError",)
"""Errors that a client raises without `from` in place of the error that says what happened.

Not those of requests and urllib, which follow redirects unasked: it may be a second request that was refused.
"""


@dataclass(frozen=True, slots=True)
class Effect:
    """The outcome of an effect, and its result.

    Attributes:
        outcome: `made` now; `remembered` from an earlier run; `skipped`, or `repeated`, because an earlier run has left
            unknown whether it was made.
        result: what the call returned, as its JSON reads: the same at each run. None if it was skipped.
    """

    outcome: EffectOutcome
    result: Any = None


@dataclass(frozen=True, slots=True)
class EffectRow:
    """A row that was there: `now` is the database's time."""

    state: str
    token: str
    result: bytes | None
    started_at: datetime
    locked_until: datetime
    now: datetime


def decide_effect(row: EffectRow, *, alone: bool) -> Effect | timedelta | None:
    """The effect, if it is known; else how long another run may be busy with it; None if it is unknown."""
    if row.state in ("done", "repeated"):
        return Effect("remembered", msgspec.json.decode(row.result) if row.result is not None else None)
    if row.state == "skipped":
        return Effect("skipped")
    return None if alone or row.locked_until <= row.now else row.locked_until - row.now


def may_have_been_made(error: BaseException, certain: Errors) -> bool:
    """Whether a call that raised this may have had its effect all the same.

    An error and the causes that it was raised `from` are one failure, and one of them must be certain. Any other
    context is an earlier failure, such as the first of two tries: it must be certain, too. So must all members of a
    group.
    """
    seen, waiting = set[int](), [error]
    while waiting:
        failure: list[BaseException] = []
        cause: BaseException | None = waiting.pop()
        while cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            failure.append(cause)
            cause = _cause_of(cause)
        if failure and not any(_is_certain(one, certain) for one in failure):
            return True
        waiting += [one.__context__ for one in failure if one.__context__ is not None]
    return False


def _cause_of(error: BaseException) -> BaseException | None:
    kind = type(error)
    is_translated = f"{kind.__module__}.{kind.__qualname__}" in _TRANSLATED
    return error.__context__ if error.__cause__ is None and is_translated else error.__cause__


def _is_certain(error: BaseException, certain: Errors) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return not any(may_have_been_made(one, certain) for one in error.exceptions)
    return isinstance(error, certain)


EFFECT_KEY_LIMIT = 600
"""Characters of a key."""
IN_MEMORY = ":memory:"


@dataclass(frozen=True, slots=True)
class EffectRun:
    """One run of an effect.

    Attributes:
        key: the effect's name at each run.
        alone: the inbox keeps other runs away, so the lease is ignored.
        within: the message and handler that it belongs to, if any.
        token: of this run alone.
        message_time: the time of its message, if that has one.
    """

    key: str
    alone: bool
    within: Handling | None
    on_unknown: OnUnknown
    lease: timedelta
    certain: Errors
    token: str
    message_time: datetime | None = None

    @property
    def untimed(self) -> tuple[str, str] | tuple[None, None]:
        """Handler and id of its message, if that has no time: the effect is kept until it was handled."""
        if self.within is None or self.within.handler is None or self.message_time is not None:
            return None, None
        return self.within.handler, self.within.message.id


def new_run(key: str | None, on_unknown: OnUnknown, lease: timedelta, certain: Errors) -> EffectRun:
    """A run of `once` with these arguments, here and now.

    Raises:
        ConfigurationError: an option is of another kind; there is no key, and no handler or another effect of it.
    """
    if on_unknown not in ("skip", "repeat"):
        raise ConfigurationError(f"effects.once: on_unknown is {on_unknown!r}; 'skip' or 'repeat' is accepted")
    if not isinstance(lease, timedelta) or lease <= timedelta(0):
        raise ConfigurationError(f"effects.once: lease is {lease!r}; a timedelta above 0 is accepted")
    classes: object = certain
    if not isinstance(classes, tuple | list) or not all(
        isinstance(one, type) and issubclass(one, Exception) for one in classes
    ):
        raise ConfigurationError(f"effects.once: certain is {certain!r}; a tuple of Exception's subclasses is accepted")
    within = current_handling()
    known_by = _default_key(within) if key is None else _checked(key)
    moment = window.message_time(within.message.id, within.message.created_at) if within is not None else None
    return EffectRun(known_by, key is None, within, on_unknown, lease, (*CERTAIN, *certain), ids.new(), moment)


def dialect_of(session: Session, within: Handling | None) -> str:
    """The name of the dialect of a session for effects, which has not begun its transaction.

    Raises:
        ConfigurationError: the session is bound to a Connection, so that it cannot commit by itself. Or on SQLite it
            would deadlock with the handler.
    """
    bind = session.get_bind(clause=tables.effect)
    if isinstance(bind, Connection):
        raise ConfigurationError(
            "effects.once: the sessions are bound to a Connection, whose transaction they would share. The intention "
            "must be committed before the call: bind the sessionmaker to an Engine"
        )
    name = bind.dialect.name
    if within is not None and has_one_writer(name) and _place(bind) == _place_of_handler(within):
        raise ConfigurationError(
            f"effects.once: handler {within.handler!r} is writing to {bind.url.database!r}, and SQLite has one writer "
            "at a time: the intention could not be committed before the handler ends. Give effects.once a file of its "
            "own, with outboxkit's tables: `outboxkit migrate --database-url sqlite:///effects.db`"
        )
    return name


def _place(bind: Engine | Connection) -> str:
    """The file of an engine; all databases in memory are taken as one."""
    name = (bind.engine.url.database or IN_MEMORY).removeprefix("file:").partition("?")[0]
    return IN_MEMORY if name == IN_MEMORY else str(Path(name).resolve())


def _place_of_handler(within: Handling) -> str | None:
    session = within.origin.session if within.origin is not None else None
    return _place(session.get_bind(clause=tables.inbox)) if isinstance(session, Session) else None


def _default_key(within: Handling | None) -> str:
    """For the one effect of a handler: the length keeps apart what could be read in two ways."""
    if within is None or within.handler is None:
        raise ConfigurationError(
            "effects.once needs a key if no handler is running: the name of the effect at each run, such as "
            "f'receipt-{order.id}'"
        )
    if within.keyless_effects:
        raise ConfigurationError(
            f"handler {within.handler!r} has a second effect, and both would have the same name: give each a key of "
            "its own, such as f'receipt-{order.id}'"
        )
    within.keyless_effects.append(key := f"{len(within.handler)}:{within.handler}:{within.message.id}")
    return key


def _checked(key: str) -> str:
    is_text = isinstance(key, str) and key.isprintable()
    if not is_text or not 0 < len(key) <= EFFECT_KEY_LIMIT:
        raise ConfigurationError(
            f"effects.once: key is {key!r}; 1 to {EFFECT_KEY_LIMIT} printable characters are accepted"
        )
    return key


CHANGED_ROUNDS = 5
"""The number of times that a run reads an effect again which another run has changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The beginning of a run.

    Attributes:
        effect: if it is known; None: the call is to be made.
        unknown_since: when a call was begun that may or may not have been made.
    """

    effect: Effect | None = None
    unknown_since: datetime | None = None


def begin_effect(session: Session, run: EffectRun) -> Begun:
    """Note the intention, or find the effect's record; the caller commits before it makes the call.

    Raises:
        InProgressElsewhere, Retry: another run is busy with it.
        ConfigurationError: the session is of no use here.
    """
    dialect = dialect_of(session, run.within)
    _begin(session)
    handler, message_id = run.untimed
    ours = {
        "token": run.token,
        "lease": run.lease,
        "made": run.message_time,
        "handler": handler,
        "message_id": message_id,
    }
    use = {"at_key": run.key, "made": run.message_time, "by_handler": handler, "by_message_id": message_id}
    for _ in range(CHANGED_ROUNDS):
        if session.execute(statements.effects.intend(dialect), {"key": run.key, **ours}).first() is not None:
            return Begun()
        was = session.execute(statements.effects.use_effect(dialect), use).first()
        if was is None:  # its call failed meanwhile
            continue
        row = EffectRow(*was)
        known = decide_effect(row, alone=run.alone)
        if isinstance(known, Effect):
            return Begun(known)
        if known is not None:
            raise _busy(run, known)
        skips = run.on_unknown == "skip"
        taking = statements.effects.skip(dialect) if skips else statements.effects.take_over_effect(dialect)
        at = {"at_key": run.key, "at_token": row.token, "new_token": run.token}
        if _changed(session, taking, at if skips else at | {"lease": run.lease}):
            return Begun(Effect("skipped") if skips else None, row.started_at)
    raise _busy(run, timedelta(0))


def record(session: Session, run: EffectRun, begun: Begun, payload: bytes) -> None:
    """Note that the call was made, and its result.

    Raises:
        LeaseLost: another run has taken over.
    """
    state = "done" if begun.unknown_since is None else "repeated"
    at = {"at_key": run.key, "at_token": run.token, "new_state": state, "new_result": payload}
    if not _changed(session, statements.effects.record_result(_begin(session)), at):
        raise LeaseLost(
            f"effect {run.key!r}: the call was made, but it took longer than its lease of {run.lease}, and another "
            "run has decided what becomes of it. Give effects.once a longer lease"
        )


def give_up(session: Session, run: EffectRun, begun: Begun, error: BaseException) -> None:
    """Record that the call raised. If an earlier one may have been made, that stays unknown."""
    unknown = begun.unknown_since is not None or may_have_been_made(error, run.certain)
    ending = statements.effects.end_effect_lease(_begin(session)) if unknown else statements.effects.withdraw()
    session.execute(ending, {"at_key": run.key, "at_token": run.token})


def _begin(session: Session) -> str:
    return transaction.read_committed(session, clause=tables.effect)


def _changed(session: Session, statement: Update, parameters: dict[str, Any]) -> bool:
    result: CursorResult[Any] = session.execute(statement, parameters)  # type: ignore[assignment]
    return result.rowcount == 1


def _busy(run: EffectRun, after: timedelta) -> Exception:
    """For a caller of its own an error; a consumer knows by `Retry` when to come back."""
    text = f"effect {run.key!r}: another run is busy with it, for {after.total_seconds():.1f} s at most"
    return Retry(text, after=after) if run.within is not None else InProgressElsewhere(text, after=after)
