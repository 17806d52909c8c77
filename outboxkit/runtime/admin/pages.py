"""The pages of the admin port: whether the worker is live, whether it is ready, and its metrics."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

from outboxkit import statements
from outboxkit.database import silence
from outboxkit.database.sqlalchemy_asyncio import AsyncEngine
from outboxkit.errors.failures import first_line
from outboxkit.runtime.admin.port import MakePage, Page, text_page, verdict
from outboxkit.runtime.health import Health
from outboxkit.statements.dialects import has_one_writer
from outboxkit.telemetry import scrape

T = TypeVar("T")

BEAT_SECONDS, LATE_SECONDS = 1.0, 10.0
"""The interval of the event loop's heartbeat, and the age of the last one from which the worker is not live."""
TURN_SECONDS = 60.0
"""Time for a relay's turn beside its publish: claims, settles, and the wait of an idle one."""
ASK_SECONDS, CACHE_SECONDS = 3.0, 1.0
"""The time that a database may take to answer, and the time for which an answer holds for further requests."""


class Worker(Protocol):
    """A relay, the consumers of a process, or a retention."""

    @property
    def engine(self) -> AsyncEngine:
        """The engine of its connections."""

    def health(self) -> Health:
        """Its state, from any thread."""


class Heartbeat:
    """The time at which an event loop last turned: a timer of the loop sets it. `start` and `stop` are called there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.loop = loop
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._at = clock()

    def start(self) -> None:
        """Beat now, and then again and again."""
        self._at = self._clock()
        self._timer = self.loop.call_later(BEAT_SECONDS, self.start)

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def age(self) -> float:
        """The seconds since the last beat, from any thread."""
        return self._clock() - self._at


class Cached(Generic[T]):
    """An answer that requests of about the same time share: it holds for so many seconds."""

    def __init__(self, ask: Callable[[], T], *, seconds: float = CACHE_SECONDS) -> None:
        self._ask = ask
        self._seconds = seconds
        self._lock = threading.Lock()
        self._answer: tuple[T, float] | None = None

    def __call__(self) -> T:
        """The answer."""
        with self._lock:
            if self._answer is None or time.monotonic() - self._answer[1] > self._seconds:
                self._answer = self._ask(), time.monotonic()
            return self._answer[0]


def pages_of(
    worker: Worker, heartbeat: Heartbeat, publish_limit: float, unmeasured: str | None
) -> Mapping[str, MakePage]:
    """The pages of a worker by their paths. A call of the publisher is stuck after `publish_limit` seconds."""
    database = Cached(lambda: _database_trouble(worker.engine, heartbeat))
    scraped = Cached(lambda: Page(HTTPStatus.OK, scrape.text(), scrape.CONTENT_TYPE))

    def live() -> Page:
        trouble = why_stuck(worker.health(), heartbeat.age, publish_limit)
        return verdict("live", *filter(None, [trouble]), failed=trouble is not None)

    def ready() -> Page:
        health = worker.health()
        trouble = why_stuck(health, heartbeat.age, publish_limit)
        servers = {"database": None, **health.servers}
        servers["database"] = servers["database"] or database()
        lines = [f"{server}: {reason or 'connected'}" for server, reason in servers.items()]
        return verdict("ready", *filter(None, [trouble]), *lines, failed=bool(trouble or any(servers.values())))

    def metrics() -> Page:
        if unmeasured is not None:
            return text_page(HTTPStatus.NOT_IMPLEMENTED, unmeasured)
        return scraped()

    return {"/metrics": metrics, "/livez": live, "/readyz": ready}


def why_stuck(health: Health, beat_age: float, publish_limit: float) -> str | None:
    """The reason for which a worker does not go on although no server is away; None: it goes on."""
    if beat_age > LATE_SECONDS:
        return f"the event loop has not turned for {beat_age:.0f} s: a handler or a library blocks it"
    if health.publishing is not None and health.publishing > publish_limit:
        return f"one publish has lasted {health.publishing:.0f} s; {publish_limit:g} s are the limit"
    if health.without_turn is not None and health.without_turn > publish_limit + TURN_SECONDS:
        return f"the relay has begun no turn for {health.without_turn:.0f} s"
    return None


def _database_trouble(engine: AsyncEngine, heartbeat: Heartbeat) -> str | None:
    """The reason for which the database cannot be used now; None: it answers. The worker's event loop asks it."""
    age = heartbeat.age
    if has_one_writer(engine.dialect.name):
        return None  # a file; and to ask it takes the lock of the one writer
    if age > LATE_SECONDS:
        return f"not asked: the event loop has not turned for {age:.0f} s"
    if silent := silence.longest():
        return f"a statement has got no answer for {silent:.0f} s"
    answer = asyncio.run_coroutine_threadsafe(_ask(engine), heartbeat.loop)
    try:
        answer.result(ASK_SECONDS)
    except TimeoutError:
        answer.cancel()
        return f"no answer within {ASK_SECONDS:g} s"
    except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
        return first_line(error)
    return None


async def _ask(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await connection.execute(statements.schema.current_version())
