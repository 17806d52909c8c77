"""One delivery of a trial: its end, and the statements before which it waits or that fail."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, event

from outboxkit.database.sqlalchemy_asyncio import await_
from outboxkit.inbox import Outcome
from outboxkit.message import Message
from outboxkit.statements.dialects import is_server
from outboxkit.testing.database import Contents

PATIENCE = 60.0
"""Seconds after which a delivery that does not end is given up."""
READING = ("SELECT", "SAVEPOINT", "RELEASE", "ROLLBACK TO")
FAILING = {
    True: "DO 'BEGIN RAISE EXCEPTION ''outboxkit.testing lets this statement fail'' USING ERRCODE = 40001; END'",
    False: "SELECT outboxkit_testing_lets_this_statement_fail",
}
"""Statements that fail: on a server with a serialization failure, as real ones do."""


class Ending(StrEnum):
    """The end of a delivery's transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    KILLED = "its connection is killed before the commit"
    CRASH = "its process ends between the commit and all that follows it"


class InjectedFailure(Exception):
    """Raised instead of a statement."""


class Crashed(BaseException):
    """Raised right after a commit, so that nothing of the process follows it."""


@dataclass(eq=False)
class Trial:
    """One delivery, and its course.

    Attributes:
        message: the message.
        ending: the end of its transaction.
        batch: further messages that are handled in its transaction.
        pause: the statement of the handler before which it waits for `release`, from 1; 0: none. The number after the
            last one is the commit.
        failure: the statement that fails; 0: none.
        fails_in_python: whether it fails before the database gets it, so that the transaction goes on.
        statements: the number of statements of the handler.
        reads: the numbers of those that only read.
        outcome: the outcome, if it came that far.
        error: the error that ended it.
        failed_statement: the statement that was made to fail.
        stale: rows that it reads until its first write or lock, instead of those that are there.
        left: descriptions of the tasks, timers and threads that the handler left behind.
    """

    message: Message
    ending: Ending = Ending.COMMIT
    batch: Sequence[Message] = ()
    pause: int = 0
    failure: int = 0
    fails_in_python: bool = False
    statements: int = 0
    reads: list[int] = field(default_factory=list)
    outcome: Outcome | None = None
    error: BaseException | None = None
    failed_statement: str | None = None
    backend: int | None = None
    stale: Contents | None = None
    left: list[str] = field(default_factory=list)
    paused: "Future[None]" = field(default_factory=Future)
    released: "Future[None]" = field(default_factory=Future)
    is_ending: bool = False
    ended: "Future[None]" = field(default_factory=Future)

    def release(self) -> None:
        """Let it go on after its pause."""
        if not self.released.done():
            self.released.set_result(None)


class Statements:
    """The statements of a handler: counted, paused before one of them, or made to fail."""

    def __init__(self, delivery: Trial, connection: Connection) -> None:
        self._delivery = delivery
        self._connection = connection
        self._failing = FAILING[is_server(connection.dialect.name)]
        self._is_first = True
        self.count = 0
        self.stale: list[str] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the statements of the block; the first one is the inbox's."""
        event.listen(self._connection, "before_execute", self._before_locking)
        event.listen(self._connection, "before_cursor_execute", self._before, retval=True)
        try:
            yield
        finally:
            event.remove(self._connection, "before_execute", self._before_locking)
            event.remove(self._connection, "before_cursor_execute", self._before)

    def _before(self, *arguments: Any) -> tuple[str, Any]:
        _, _, statement, parameters, context, _ = arguments
        if self._is_first:
            self._is_first = False
            return statement, parameters
        if not statement.lstrip().upper().startswith(READING):
            self.end_stale()
        self.count += 1
        if statement.lstrip().upper().startswith("SELECT"):
            self._delivery.reads.append(self.count)
        self.pause_before(self.count)
        if self.count == self._delivery.failure:
            self._delivery.failed_statement = statement
            if self._delivery.fails_in_python:
                raise InjectedFailure("outboxkit.testing lets this statement fail")
            return self._failing, [()] if context.executemany else ()
        return statement, parameters

    def _before_locking(self, _: Any, statement: Any, *__: Any) -> None:
        if getattr(statement, "_for_update_arg", None) is not None:
            self.end_stale()

    def end_stale(self) -> None:
        """Drop the stale copies of tables, so that it reads the current rows from now on."""
        tables, self.stale = self.stale, []
        if tables:
            cursor = self._connection.connection.cursor()
            for name in tables:
                cursor.execute(f"DROP TABLE temp.{name}")
            cursor.close()

    def pause_before(self, number: int) -> None:
        """Wait here, if the delivery is to."""
        delivery = self._delivery
        if number != delivery.pause or delivery.paused.done():
            return
        delivery.paused.set_result(None)
        if self._connection.dialect.is_async:
            await_(asyncio.wrap_future(delivery.released))
        else:
            delivery.released.result(PATIENCE)
