"""The endpoint's own session, of either colour, and what is done on it."""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import ThreadLocalRegistry

from outboxkit import idempotency, tables
from outboxkit.errors import ConfigurationError
from outboxkit.idempotency import Fresh, Outcome, Response

P = ParamSpec("P")
T = TypeVar("T")


async def on(session: Any, call: Callable[Concatenate[Session, P], T], *args: P.args, **options: P.kwargs) -> T:
    """Call a plain function on the session: in a thread, or for an `AsyncSession` on the session inside it."""
    if isinstance(session, AsyncSession):
        return await session.run_sync(call, *args, **options)
    return await run_in_threadpool(call, session, *args, **options)


def usable(session: object) -> object:
    """The session, if it is one that stays the same in every thread of a request.

    Raises:
        ConfigurationError: it is no session, or there is one for each thread.
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


def rollback(session: Session) -> None:
    """Take everything back, the key as well."""
    session.rollback()


def finish(session: Session, fresh: Fresh | None, response: Response) -> None:
    """Keep everything: what the endpoint did, and its answer where the request has a key."""
    if fresh is not None:
        idempotency.complete(session, fresh, response)
    session.commit()


def remember(session: Session, question: dict[str, Any], response: Response) -> Outcome:
    """Keep the answer alone, after `rollback`; what the ledger says if another run was quicker.

    In a session of its own, for `sessionmaker.begin()` allows no second transaction in the one that it gives.
    """
    with Session(session.get_bind(clause=tables.idempotency)) as anew:
        outcome = idempotency.begin(anew, **question)
        if isinstance(outcome, Fresh):
            idempotency.complete(anew, outcome, response)
            anew.commit()
        return outcome
