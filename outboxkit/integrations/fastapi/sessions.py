"""The endpoint's own session, sync or async, and the functions that run on it."""

from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import ThreadLocalRegistry

from outboxkit import idempotency, tables
from outboxkit.errors import ConfigurationError
from outboxkit.idempotency import Fresh, Outcome, Response
from outboxkit.idempotency.contention import leave_commit
from outboxkit.transaction import allow_commit, forbid_commit

P = ParamSpec("P")
T = TypeVar("T")

_COMMITTED = (
    "the endpoint committed the session that it shares with Idempotent. Leave the commit to the route: IdempotentRoute "
    "commits the work together with its answer, before the answer leaves"
)
_THREADS = 40
"""The number that AnyIO has for endpoints."""
_limiter: RunVar[CapacityLimiter] = RunVar("outboxkit.sessions")
"""The limiter of the running event loop."""


async def on(session: Any, call: Callable[Concatenate[Session, P], T], *args: P.args, **options: P.kwargs) -> T:
    """Call a plain function on the session.

    For an `AsyncSession` it is called on the session inside. Otherwise it runs in a thread of its own kind, because the
    threads of endpoints may all be waiting for this call.
    """
    return await _on(session, call, _threads, *args, **options)


async def at_once(session: Any, call: Callable[Concatenate[Session, P], T], *args: P.args, **options: P.kwargs) -> T:
    """`on`, with a thread that is there at once, for calls that others wait for, or that have a place for waiting."""
    return await _on(session, call, lambda: CapacityLimiter(1), *args, **options)


async def _on(
    session: Any, call: Callable[..., T], threads: Callable[[], CapacityLimiter], *args: Any, **options: Any
) -> T:
    if isinstance(session, AsyncSession):
        return await session.run_sync(call, *args, **options)
    return await run_sync(partial(call, session, *args, **options), limiter=threads())


def _threads() -> CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(_THREADS)
        _limiter.set(limiter)
        return limiter


def usable(session: object) -> object:
    """The session, if it is one that stays the same in every thread of a request.

    Raises:
        ConfigurationError: it is not a session, or there is one for each thread.
    """
    if isinstance(session, scoped_session | async_scoped_session):
        if isinstance(session.registry, ThreadLocalRegistry):
            raise ConfigurationError(
                "session= gives a scoped_session with a session for each thread, but one request of FastAPI runs in "
                "several threads. Give a session for each request: a dependency that yields sessionmaker()()"
            )
        return session()
    if not isinstance(session, Session | AsyncSession):
        raise ConfigurationError(
            f"session= gives {type(session).__name__}; a dependency that gives a Session or an AsyncSession is accepted"
        )
    return session


def hold(session: Any, *, keyed: bool = False) -> None:
    """Leave the commit to the route. Of a request with a key the ledger refuses it, with this text."""
    plain = getattr(session, "sync_session", session)
    if keyed:
        leave_commit(plain, _COMMITTED)
    else:
        forbid_commit(plain, _COMMITTED, for_good=True)


def rollback(session: Session) -> None:
    """Roll everything back, the key as well."""
    session.rollback()
    allow_commit(session)


def finish(session: Session, fresh: Fresh | None, response: Response) -> None:
    """Commit the endpoint's work, and its answer if the request has a key."""
    if fresh is None:
        allow_commit(session)
    else:
        idempotency.complete(session, fresh, response)
    session.commit()


def remember(session: Session, question: dict[str, Any], response: Response) -> Outcome:
    """Store the answer alone, after `rollback`. Returns the ledger's outcome, in case another run was quicker.

    It uses a session of its own, for `sessionmaker.begin()` allows no second transaction in the one that it gives. The
    session is of the same class and has the same `info`, so that listeners of the `sessionmaker` set up this one, too.
    """
    with _another(session) as anew:
        outcome = idempotency.begin(anew, **question)
        if isinstance(outcome, Fresh):
            idempotency.complete(anew, outcome, response)
            anew.commit()
        return outcome


def _another(session: Session) -> Session:
    bind = session.get_bind(clause=tables.idempotency)
    info = {name: value for name, value in session.info.items() if not str(name).startswith("outboxkit")}
    try:
        return type(session)(bind=bind, info=info)
    except TypeError:  # a class with other parameters
        return Session(bind, info=info)
