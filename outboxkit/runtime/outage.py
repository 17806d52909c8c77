"""Outages, as opposed to failures: they are waited out, and count against no message."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, InterfaceError, NotSupportedError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from outboxkit import defaults
from outboxkit.database import silence
from outboxkit.database.sqlalchemy_asyncio import AsyncEngine
from outboxkit.errors import BrokerRefused, BrokerUnavailable, ConfigurationError, OutboxkitError
from outboxkit.errors.extras import needs_extra
from outboxkit.errors.failures import first_line
from outboxkit.errors.sqlstates import (
    AWAY,
    AWAY_CODES,
    READ_ONLY,
    is_handlers_statement,
    refused_connection,
    sqlstate_of,
)
from outboxkit.statements.dialects import DRIVERS

with needs_extra(__name__):
    import structlog
    from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_delay, stop_any, stop_never
    from tenacity.stop import stop_base
    from tenacity.wait import wait_base, wait_random_exponential

T = TypeVar("T")

SERVERS = ("broker", "database")
"""The servers that may be away."""

Clock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]


def check_engine_driver(engine: AsyncEngine, worker: str) -> None:
    """Make sure that a worker got an engine of its own driver: with another one, an outage looks like a failure.

    Raises:
        ConfigurationError: it has another driver.
    """
    dialect = engine.dialect
    driver = DRIVERS.get(dialect.name)
    if dialect.driver != driver:
        raise ConfigurationError(
            f"{worker} got an engine of {dialect.name}+{dialect.driver}, and needs {dialect.name}+{driver}: "
            "outboxkit.runtime.process.engine(url, name=...) makes one of any URL. The application's own sessions may "
            "stay as they are"
        )


def what_is_away(error: BaseException | None, *, passing: tuple[str, ...] = ()) -> str | None:
    """The peer that cannot be reached according to the error, `broker` or `database`; None for other errors.

    Errors whose SQLSTATE begins with one of `passing` count as the database being away, too.
    """
    if isinstance(error, BrokerUnavailable):
        return "broker"
    if isinstance(error, PoolTimeout):
        return "database"
    if isinstance(error, DBAPIError) and (error.connection_invalidated or _is_away(error, passing)):
        return "database"
    return None


def _is_away(error: DBAPIError, passing: tuple[str, ...]) -> bool:
    sqlstate = sqlstate_of(error)
    if sqlstate is not None:
        return sqlstate.startswith((*AWAY, *passing)) and not is_handlers_statement(error)
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in AWAY_CODES
    # the driver got no answer with a state: refused, reset, no such host
    return type(error.orig).__module__.startswith("psycopg")


def is_refusal(error: BaseException | None) -> bool:
    """Whether the peer is there and refuses: a password, a name or a right is wrong, and waiting mends none of them."""
    return isinstance(error, BrokerRefused) or (
        isinstance(error, DBAPIError) and refused_connection(error) is not None and what_is_away(error) is not None
    )


def is_cancelled() -> bool:
    """Whether the current task itself is to end. Else its `CancelledError` is a client library's or a handler's."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_unexpected(error: BaseException) -> bool:
    """Whether the error may come from one row, a library or our own code, so that a worker should go on.

    It is not if the error names a precondition: a setting, a missing table, a missing grant. Nor is a cancellation that
    was requested.
    """
    if isinstance(error, asyncio.CancelledError):
        return not is_cancelled()
    return isinstance(error, Exception) and not isinstance(error, OutboxkitError | ProgrammingError | NotSupportedError)


class Outage:
    """Runs steps that need the broker and the database. If one is away, it waits with backoff and runs the step again.

    If a peer refuses because of a setting or a right, its error is raised at once at the start. Later it is waited out
    and logged as a refusal: an operator has taken the right or the password away, and may undo that.

    It logs one line when a peer goes away, one for each minute of the outage with the latest error, and one at its end.

    Args:
        peer: what the log calls the broker: its publisher's `peer`.
        trouble: the reason for which the broker cannot be used now. A step that succeeds ends its outage only without
            one: the step may not have needed the broker.
        patience: give up after this many seconds of one outage and raise its error; None waits for ever.
        passing: SQLSTATEs that are waited out as well, such as `sqlstates.TRANSIENT`.
        wait: the backoff, as a tenacity wait.
    """

    def __init__(
        self,
        process: str,
        *,
        queue: str | None = None,
        destination: str | None = None,
        peer: str = "broker",
        trouble: Callable[[], str | None] = lambda: None,
        patience: float | None = None,
        passing: tuple[str, ...] = (),
        wait: wait_base | None = None,
        sleep: Sleep = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        about = {"queue": queue, "destination": destination}
        named = {name: value for name, value in about.items() if value}
        self._log = structlog.get_logger("outboxkit").bind(process=process, **named)
        self._names = {"broker": peer}
        self._trouble = trouble
        self._patience = patience
        self._passing = passing
        self._wait = wait or wait_random_exponential(multiplier=0.2, max=5)
        self._sleep = sleep
        self._monotonic = monotonic
        self._away: dict[str, tuple[float, int]] = {}
        self._reached: set[str] = set()
        self._refusing: set[str] = set()
        self._errors: dict[str, str] = {}

    def is_away(self, server: str) -> bool:
        """Whether this one, `broker` or `database`, could not be reached when it was last needed."""
        return server in self._away

    def is_outlasted(self, server: str) -> bool:
        """Whether this one has been away for as long as the patience lasts."""
        if self._patience is None or server not in self._away:
            return False
        since, _ = self._away[server]
        return self._monotonic() - since >= self._patience

    async def ride_out(
        self, step: Callable[[], Awaitable[T]], stop: asyncio.Event, *, reaches: Collection[str] = SERVERS
    ) -> T | None:
        """The step's result, after any outage; None if `stop` was set during one.

        Args:
            step: is run again after an outage.
            stop: ends the waiting.
            reaches: the servers whose outage ends with a step that succeeds: it has worked with all of them.

        Raises:
            BrokerUnavailable, sqlalchemy.exc.DBAPIError: the outage outlasted the patience, or a peer refuses that was
                never `reached`.
        """
        began = time.monotonic()
        try:
            try:
                result = await step()  # without tenacity, whose work costs more than a step that succeeds at once
            except Exception as error:
                if not self._is_waited_out(error):
                    raise
                result = await self._retry(error, step, stop, seconds=time.monotonic() - began)
        except Exception as error:
            if (away := self._what(error)) is not None and stop.is_set():
                self._errors[away] = first_line(error)
                return None
            if isinstance(error, BrokerUnavailable):
                error.peer = self._names["broker"]
            raise
        if self._away and not stop.is_set():  # else the step may have reached no server
            over = (away for away in tuple(self._away) if away in reaches)
            self.is_over(*(away for away in over if away != "broker" or self._trouble() is None))
        return result

    async def _retry(
        self, first: Exception, step: Callable[[], Awaitable[T]], stop: asyncio.Event, *, seconds: float
    ) -> T:
        """The step's result after its first error, which came after so many seconds and counts as an attempt."""
        errors = [first]

        async def attempt() -> T:  # tenacity awaits only functions that are declared async
            if errors:
                raise errors.pop()
            return await step()

        retrying = AsyncRetrying(
            retry=retry_if_exception(self._is_waited_out),
            stop=stop_any(
                stop_after_delay(self._patience - seconds) if self._patience is not None else stop_never,
                _Stopped(stop),
            ),
            wait=self._wait,
            sleep=lambda seconds: sleep_unless_stopped(stop, seconds, self._sleep),
            before_sleep=lambda state: self.begins(state.outcome.exception() if state.outcome else None),
            reraise=True,
        )
        result: T = await retrying(attempt)
        return result

    def reached(self, server: str) -> None:
        """Note that this process has worked with `broker` or `database`: from now on a refusal is waited out, too."""
        self._reached.add(server)

    def share_reached(self, servers: set[str]) -> None:
        """Note in this set what is reached: it is one for several that work in the same process."""
        self._reached = servers

    def _is_waited_out(self, error: BaseException) -> bool:
        away = self._what(error)
        return away is not None and (away in self._reached or not is_refusal(error))

    def _what(self, error: BaseException | None) -> str | None:
        return what_is_away(error, passing=self._passing)

    def is_over(self, *servers: str) -> None:
        """Note that these, `broker` or `database`, can be reached, and log the end of an outage."""
        for away in servers:
            if self._away.pop(away, None) is not None:
                self._log.info(f"{self._names.get(away, away)} is back, work goes on")
            self._errors.pop(away, None)
            self._refusing.discard(away)

    @property
    def errors(self) -> Mapping[str, str]:
        """The latest error of each peer that is away, as far as known. It may be read from another thread."""
        return dict(self._errors)

    @property
    def words(self) -> str | None:
        """The first peer that is away, with its latest error; None if all can be reached, as far as known."""
        return next(
            (f"the {self._names.get(peer, peer)} was away: {error}" for peer, error in self._errors.items()), None
        )

    def begins(self, error: BaseException | None) -> None:
        """Note an error that shows an outage, and log it unless it was logged lately."""
        away, now = self._what(error), self._monotonic()
        if away is None:
            return
        if error is not None and sqlstate_of(error) == READ_ONLY:
            silence.note_end()  # a pool would hand out the connections to this standby for ever
        self._errors[away], name = first_line(error), self._names.get(away, away)
        is_new_refusal = is_refusal(error) and away not in self._refusing
        if away not in self._away or is_new_refusal:
            self._refusing |= {away} if is_new_refusal else set()
            self._away[away] = now, 0
            state = "refuses this process" if is_new_refusal else "is away"
            self._log.warning(f"{name} {state}, waiting", error=first_line(error))
            return
        since, reminders = self._away[away]
        if now - since >= (reminders + 1) * defaults.REMIND_SECONDS:
            minutes = int((now - since) // defaults.REMIND_SECONDS)
            self._away[away] = since, minutes
            state = "still refuses this process" if is_refusal(error) else "is still away"
            self._log.warning(f"{name} {state}", minutes=minutes, error=first_line(error))


async def sleep_unless_stopped(stop: asyncio.Event, seconds: float, sleep: Sleep = asyncio.sleep) -> None:
    """Sleep for so many seconds, or until `stop` is set."""
    sleeping = asyncio.ensure_future(sleep(seconds))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((sleeping, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleeping.cancel()
        stopping.cancel()


async def keep_to_rate(
    rate: float | None, count: int, seconds: float, stop: asyncio.Event, sleep: Sleep = asyncio.sleep
) -> None:
    """Pause if `count` rows in so many seconds are more than `rate` a second allows. None allows any number."""
    if rate is not None and (early := count / rate - seconds) > 0:
        await sleep_unless_stopped(stop, early, sleep)


class _Stopped(stop_base):
    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def __call__(self, retry_state: RetryCallState) -> bool:  # noqa: ARG002
        return self._stop.is_set()


def jittered(seconds: float) -> float:
    """A random delay of 50 % to 150 %, so that many processes do not run in step."""
    return seconds * random.uniform(0.5, 1.5)  # noqa: S311 - not a secret


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)
