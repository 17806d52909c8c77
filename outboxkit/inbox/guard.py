"""The guard of a handler's transaction: until it is lifted the database refuses each COMMIT, in whatever words.

The insert of the inbox row sets it, the trigger `outboxkit_guard` refuses. It can be lifted in the transaction of that
row alone: after a ROLLBACK that is an error. A consumer's own connections lift it in the round trip of the COMMIT, and
reset there what a handler has left in its session.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outboxkit import statements
from outboxkit.database.session_settings import GuardedEnd
from outboxkit.database.transaction import HandlerSession
from outboxkit.errors import TransactionRequired

_HELD = "outboxkit.held"


@contextmanager
def held(session: Session, connection: Connection, transaction: str | None, text: str) -> Iterator[None]:
    """Lift the guard at the end of the block, or at the COMMIT. A block in another one leaves that to the outer one.

    The transaction's number came with the inbox row; it is None on SQLite, which has no guard.

    Raises:
        TransactionRequired: the block has ended the transaction; with this text.
    """
    root = connection.get_transaction()
    if transaction is None or connection.info.get(_HELD) is root:
        yield
        return
    driver: Any = connection.connection.driver_connection
    is_ours = isinstance(session, HandlerSession) and hasattr(driver, "ending")
    before = driver.ending if is_ours else None
    if is_ours and before is None:
        driver.ending = GuardedEnd("", lambda error: error)
    connection.info[_HELD] = root
    try:
        yield
    finally:
        if not (connection.closed or connection.invalidated):
            del connection.info[_HELD]
    if is_ours:
        driver.ending = GuardedEnd(_lift().replace(":transaction", f"'{transaction}'"), _refusal(text))
        return
    try:
        connection.execute(statements.inbox.lift_guard(), {"transaction": transaction})
    except DBAPIError as error:
        raise _refusal(text)(error) from error


@cache
def _lift() -> str:
    """The statement as SQL: to compile it each time would cost more than to send it."""
    return str(statements.inbox.lift_guard())


@cache
def _refusal(text: str) -> Callable[[Exception], Exception]:
    """Turns the error of a guard that cannot be lifted to one with this text."""

    def refusal(error: Exception) -> Exception:
        is_refused = statements.inbox.ENDED in str(getattr(error, "orig", error))
        return TransactionRequired(text) if is_refused else error

    return refusal
