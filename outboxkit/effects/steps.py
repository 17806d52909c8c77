"""The steps of a run, each in a transaction of its own: begin, then record the result or give up."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import CursorResult, Update
from sqlalchemy.orm import Session

from outboxkit import statements, tables
from outboxkit.effects.asked import Asked, dialect_of
from outboxkit.effects.decision import Effect, Found, decide, may_have_been_made
from outboxkit.errors import InProgressElsewhere, LeaseLost, Retry

ROUNDS = 5
"""How often a run looks again at an effect that another run has changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Begun:
    """How a run begins: with what is known, or with the call to be made, where `effect` is None.

    `unknown_since`: when a call was begun of which nobody knows whether it was made.
    """

    effect: Effect | None = None
    unknown_since: datetime | None = None


def begin(session: Session, asked: Asked) -> Begun:
    """Note the intention, or find what is known of the effect; the caller commits before it makes the call.

    Raises:
        InProgressElsewhere, Retry: another run is busy with it.
        ConfigurationError: the session is of no use here.
    """
    dialect = dialect_of(session, asked.within)
    row = {"token": asked.token, "seconds": asked.lease.total_seconds()}
    for _ in range(ROUNDS):
        if session.execute(statements.effects.intend(dialect), {"key": asked.key, **row}).first() is not None:
            return Begun()
        was = session.execute(statements.effects.find(dialect), {"at_key": asked.key}).first()
        if was is None:  # its call failed meanwhile
            continue
        found = Found(*was)
        known = decide(found, alone=asked.alone)
        if isinstance(known, Effect):
            return Begun(known)
        if known is not None:
            raise _busy(asked, known)
        skips = asked.on_unknown == "skip"
        taking = statements.effects.skip(dialect) if skips else statements.effects.take_over(dialect)
        at = {"at_key": asked.key, "at_token": found.token, "new_token": asked.token}
        if _changed(session, taking, at if skips else at | {"seconds": row["seconds"]}):
            return Begun(Effect("skipped") if skips else None, found.started_at)
    raise _busy(asked, timedelta(0))


def record(session: Session, asked: Asked, begun: Begun, payload: bytes) -> None:
    """Note that the call was made, and what it returned.

    Raises:
        LeaseLost: another run has taken over.
    """
    state = "done" if begun.unknown_since is None else "repeated"
    at = {"at_key": asked.key, "at_token": asked.token, "new_state": state, "new_result": payload}
    if not _changed(session, statements.effects.record(_dialect(session)), at):
        raise LeaseLost(
            f"effect {asked.key!r}: the call was made, but it took longer than its lease of {asked.lease}, and another "
            "run has decided what becomes of it. Give effects.once a longer lease"
        )


def give_up(session: Session, asked: Asked, begun: Begun, error: BaseException) -> None:
    """After a call that raised; where an earlier one may have been made, that is as open as it was."""
    unknown = begun.unknown_since is not None or may_have_been_made(error, asked.ambiguous)
    ending = statements.effects.end_lease(_dialect(session)) if unknown else statements.effects.withdraw()
    session.execute(ending, {"at_key": asked.key, "at_token": asked.token})


def _dialect(session: Session) -> str:
    return session.get_bind(clause=tables.effect).dialect.name


def _changed(session: Session, statement: Update, parameters: dict[str, Any]) -> bool:
    result: CursorResult[Any] = session.execute(statement, parameters)  # type: ignore[assignment]
    return result.rowcount == 1


def _busy(asked: Asked, after: timedelta) -> Exception:
    """For a caller of its own an error; a consumer knows by `Retry` when to come back."""
    text = f"effect {asked.key!r}: another run is busy with it, for {after.total_seconds():.1f} s at most"
    return Retry(text, after=after) if asked.within is not None else InProgressElsewhere(text, after=after)
