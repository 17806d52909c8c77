"""One run of a request in steps, from its key to its answer."""

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from outboxkit import idempotency
from outboxkit.errors import LeaseLost
from outboxkit.idempotency import Fresh, Outcome, Response, Steps
from outboxkit.integrations import door
from outboxkit.integrations.asgi.current import Unkept, being
from outboxkit.integrations.asgi.holding import Exchange
from outboxkit.integrations.asgi.messages import App, Receive, Scope, Send, answer, refusal, replayed
from outboxkit.problems import Problem, in_progress

T = TypeVar("T")


class Run:
    """A request that has passed the door; `serve` it once.

    Args:
        session_factory: for the ledger's transactions.
        rules: of the middleware.
        question: what the ledger is to be asked; None: the request has no key, and needs none.
        body: of the request.
    """

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        rules: door.Rules,
        question: dict[str, Any] | None,
        body: bytes,
    ) -> None:
        self._session_factory = session_factory
        self._rules = rules
        self._question = question
        self._body = body

    async def serve(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from the ledger, or have the application answer.

        Raises:
            ConfigurationError: the application's answer cannot be remembered.
            Exception: what the application raised.
        """
        if self._question is None:
            without = Unkept()
            with being(without):
                await app({**scope, "outboxkit.steps": without}, replayed(self._body, receive), send)
            return
        outcome = await self._begin()
        if isinstance(outcome, Fresh):
            await self._run(app, scope, send, outcome)
        else:
            await answer(send, _told(outcome))

    async def _run(self, app: App, scope: Scope, send: Send, fresh: Fresh) -> None:
        steps = Steps(self._session_factory, fresh)

        async def answered(response: Response) -> None:
            await answer(send, await self._ended(steps, fresh, response))

        exchange = Exchange(self._body, self._rules.max_response, answered)
        failure: BaseException | None = None
        try:
            with being(steps):
                await app({**scope, "outboxkit.steps": steps, "extensions": {}}, exchange.receive, exchange.send)
        except BaseException as error:  # noqa: BLE001  # raised again below, where no other answer takes its place
            failure = error
        if exchange.is_over:
            if failure is not None and not isinstance(failure, LeaseLost):
                raise failure
            return
        instead = await self._failed(fresh)
        if instead is None:
            raise exchange.refusal or failure or RuntimeError("the application returned without an answer")
        await answer(send, instead)

    async def _ended(self, steps: Steps, fresh: Fresh, response: Response) -> Response:
        """What is sent: the application's answer, once it is remembered, or that of the run that has taken over."""
        try:
            if self._rules.stored(response.status):
                kept = door.kept(response.status, response.headers, response.body, self._rules)
                await self._write(idempotency.complete, fresh, kept)
                return Response(response.status, (*response.headers, door.expires_header(fresh)), response.body)
            is_clean = response.status < 500 and not steps.finished
            await self._write(idempotency.release, fresh, forget=is_clean)
        except LeaseLost:
            return await self._others()
        return response

    async def _failed(self, fresh: Fresh) -> Response | None:
        """Let a retry begin at once; where another run has taken over, its answer."""
        try:
            await self._write(idempotency.release, fresh)
        except LeaseLost:
            return await self._others()
        return None

    async def _others(self) -> Response:
        outcome = await self._begin()
        if isinstance(outcome, Fresh):
            await self._write(idempotency.release, outcome)
            return refusal(in_progress(None))
        return _told(outcome)

    async def _begin(self) -> Outcome:
        async with self._session_factory() as session:
            outcome = await session.run_sync(idempotency.begin, **(self._question or {}))
            await session.commit()
            return outcome

    async def _write(self, change: Callable[..., T], *arguments: object, **options: object) -> None:
        def write(session: Session) -> None:
            change(session, *arguments, **options)

        async with self._session_factory() as session:
            await session.run_sync(write)
            await session.commit()


def _told(outcome: Any) -> Response:
    try:
        return door.answered(outcome)
    except Problem as problem:
        return refusal(problem)
