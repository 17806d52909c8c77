"""Idempotency keys and preconditions for Flask: key, business rows, outbox rows and answer in one transaction."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec, Unpack

from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.orm.exc import StaleDataError

from outboxkit import idempotency, preconditions, problems
from outboxkit.errors import ConfigurationError
from outboxkit.extras import needs_extra
from outboxkit.idempotency import Fresh, InProgress, Replay
from outboxkit.integrations import protocol
from outboxkit.integrations.protocol import IdempotencyOptions, IncomingRequest, Places, RequestKey, Rules
from outboxkit.problems import Problem
from outboxkit.transaction import allow_commit, forbid_commit, refuse_second_begin, session_of

with needs_extra(__name__):
    from flask import Blueprint, Flask, Response, current_app, request
    from flask.typing import ResponseReturnValue
    from werkzeug.exceptions import ClientDisconnected, HTTPException

P = ParamSpec("P")
Sessions = Callable[[], Session | scoped_session[Session]] | scoped_session[Session]

COMMITTED = (
    "the endpoint committed by itself. Its session is committed for it, together with the remembered answer: leave out "
    "the commit, or flush instead"
)


class Idempotent:
    """A decorator for views that run once for each idempotency key, below the decorator of the route.

    The view works on the session, and leaves its transaction alone. That is committed before the answer leaves, or
    rolled back if the answer is not remembered. A request of a safe method needs no key.

    Args:
        session: gives the session that the view uses: a `scoped_session`, or a function.
        principal: returns the caller's id; None: all callers share the keys. For a caller that it does not know it
            aborts with 401.
        options: see `outboxkit.integrations.protocol.Rules`.

    Raises:
        ConfigurationError: an option is not accepted, or a view is async or a generator.
    """

    def __init__(
        self, *, session: Sessions, principal: Callable[[], str] | None, **options: Unpack[IdempotencyOptions]
    ) -> None:
        self._session = session
        self._principal = principal
        self._rules = Rules(**options)
        self._places = Places(self._rules.max_waiting)
        if self._rules.lease is not None:
            raise ConfigurationError(
                "lease= is for two-step mode, which the ASGI middleware has; Flask has atomic mode"
            )

    def __call__(self, view: Callable[P, ResponseReturnValue]) -> Callable[P, ResponseReturnValue]:
        """The view, at most once for each key."""
        _refuse_what_cannot_work(view)

        @wraps(view)
        def once(*args: P.args, **kwargs: P.kwargs) -> ResponseReturnValue:
            _refuse_async_method()
            session = self._current_session()
            with _rolled_back_by_errors(session):
                return self._answer(session, lambda: view(*args, **kwargs))

        return once

    def _answer(self, session: Session, call: Callable[[], ResponseReturnValue]) -> Response:
        principal = self._caller()
        try:
            request_key = (
                None if request.method in protocol.SAFE else protocol.keyed_request(_incoming(self._rules), self._rules)
            )
            outcome = self._begin_or_wait(session, request_key, principal) if request_key else None
            if outcome is not None:
                protocol.count(outcome)
            if outcome is not None and not isinstance(outcome, Fresh):
                session.rollback()
                return _replayed(protocol.answered(outcome))
        except Problem as problem:
            session.rollback()
            return _problem(problem)
        try:
            return self._run(session, outcome, call)
        except Exception as error:  # noqa: BLE001 - whatever the view raises is the app's to answer, or raised again
            session.rollback()
            refuse_second_begin(error, "the endpoint")
            return self._remember_error(session, request_key, principal, _through_the_app(error))

    def _run(self, session: Session, fresh: Fresh | None, call: Callable[[], ResponseReturnValue]) -> Response:
        forbid_commit(session, COMMITTED, for_good=fresh is None)  # without a key there may not be a transaction yet
        try:
            response = _called(call)
        finally:
            if fresh is None:
                allow_commit(session)
        if not self._rules.stored(response.status_code):
            session.rollback()
            return response
        if fresh is None:
            session.commit()
            return response
        return self._keep(session, fresh, response)

    def _keep(self, session: Session, fresh: Fresh, response: Response) -> Response:
        if response.is_streamed or response.direct_passthrough:
            response.close()
            raise ConfigurationError(
                "the view streams its response, which cannot be remembered: return the whole body, "
                "or a link to the content"
            )
        headers = response.headers.items()
        idempotency.complete(
            session, fresh, protocol.stored_part(response.status_code, headers, response.get_data(), self._rules)
        )
        session.commit()
        response.headers.add(*protocol.expires_header(fresh))
        return response

    def _remember_error(
        self, session: Session, request_key: RequestKey | None, principal: str | None, response: Response
    ) -> Response:
        """The answer to an error of the view, remembered without any effect of the view."""
        if request_key is None or not self._rules.store_errors or not self._rules.stored(response.status_code):
            return response
        outcome = self._begin(session, request_key, principal, timedelta(0))
        if isinstance(outcome, Fresh):
            return self._keep(session, outcome, response)
        session.rollback()
        return _replayed(protocol.answered(outcome)) if isinstance(outcome, Replay) else response

    def _begin_or_wait(self, session: Session, request_key: RequestKey, principal: str | None) -> idempotency.Outcome:
        outcome = self._begin(session, request_key, principal, timedelta(0))
        if isinstance(outcome, InProgress) and self._rules.wait:
            with self._places.taken(principal or request_key) as may_wait:
                if may_wait:
                    return self._begin(session, request_key, principal, self._rules.wait)
        return outcome

    def _begin(
        self, session: Session, request_key: RequestKey, principal: str | None, wait: timedelta
    ) -> idempotency.Outcome:
        return idempotency.begin(
            session,
            scope=request_key.scope,
            principal=principal,
            key=request_key.key,
            fingerprint=request_key.fingerprint,
            retention=self._rules.retention,
            wait=wait,
        )

    def _caller(self) -> str | None:
        if self._principal is None:
            return None
        principal: object = self._principal()
        if not isinstance(principal, str) or not principal:
            raise ConfigurationError(
                f"principal() returned {principal!r}, not text that names the caller. "
                "For a caller that is not known let it abort(401)"
            )
        return principal

    def _current_session(self) -> Session:
        session = session_of(self._session(), "Idempotent", "...")
        if session_of(self._session(), "Idempotent", "...") is not session:
            raise ConfigurationError(
                "session= makes a session with each call, and the view would use another one. "
                "Give a scoped_session, or a function that keeps the session in flask.g"
            )
        return session


def add_problem_handlers(app: Flask | Blueprint) -> None:
    """Have the app answer a `Problem` with problem details, and `StaleDataError` with 412.

    For views without `Idempotent`, which does so by itself.
    """
    app.register_error_handler(Problem, _problem)
    app.register_error_handler(StaleDataError, lambda _: _problem(preconditions.stale()))


@contextmanager
def _rolled_back_by_errors(session: Session) -> Iterator[None]:
    try:
        yield
    except BaseException:
        session.rollback()
        raise


def _incoming(rules: Rules) -> IncomingRequest:
    """The request at hand.

    Its values are the path itself: view arguments may be objects by now, or may have been removed by a preprocessor.
    """
    rule = request.url_rule
    template = f"{rule.host or rule.subdomain or ''}{request.root_path}{rule.rule}" if rule else request.path
    return IncomingRequest(
        method=request.method,
        template=template,
        values={"host": request.host if rule and (rule.host or rule.subdomain) else "", "path": request.path},
        query=list(request.args.items(multi=True)),
        keys=request.headers.getlist(protocol.KEY),
        content_type=request.content_type,
        body=_body(rules.max_body) if rules.required or protocol.KEY in request.headers else b"",
    )


def _body(limit: int) -> bytes:
    own = request.max_content_length
    most = limit if own is None else min(own, limit)
    if (request.content_length or 0) > most:
        raise protocol.refused(problems.body_too_large(most))
    is_read = "stream" in vars(request)  # or parsed as a form
    request.max_content_length = most + 1  # of a body without a length Werkzeug drops what is beyond this, silently
    body = request.get_data()
    if len(body) > most:
        raise protocol.refused(problems.body_too_large(most))
    expected = request.content_length
    if len(body) < (expected or 0) and not is_read:
        raise ClientDisconnected  # some servers end the body of a client that left as if it were whole
    if len(body) < expected if expected is not None else not body and (request.form or request.files):
        raise ConfigurationError(
            "the body was read before the view, and without it this request looks like others: "
            "call request.get_data() before request.form, request.files or request.stream"
        )
    return body


def _called(call: Callable[[], ResponseReturnValue]) -> Response:
    try:
        return _response_of(call())
    except HTTPException as raised:  # abort(redirect(…)) is an answer, abort(409) an error
        response = raised.response
        if isinstance(response, Response) and response.status_code < 400:
            return response
        raise


def _through_the_app(error: Exception) -> Response:
    """The answer to an error of the view. Raises it again if the app has no answer but 500."""
    if isinstance(error, Problem):
        return _problem(error)
    if isinstance(error, StaleDataError):
        return _problem(preconditions.stale())
    return _response_of(current_app.handle_user_exception(error))


def _response_of(returned: ResponseReturnValue | HTTPException) -> Response:
    """The response to a view's return value. One that Flask makes of an `HTTPException` could be read only once."""
    if isinstance(returned, HTTPException):
        returned = returned.get_response(request.environ)
    return current_app.make_response(returned)


def _problem(problem: Problem) -> Response:
    return _response(problem.status, (("Content-Type", problems.MEDIA_TYPE), *problem.headers), problem.body())


def _replayed(stored: idempotency.Response) -> Response:
    return _response(stored.status, stored.headers, stored.body)


def _response(status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> Response:
    response = current_app.response_class(body, status)
    response.headers.clear()  # Flask's default content type
    response.headers.extend(headers)
    return response


def _refuse_what_cannot_work(view: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(view):
        raise ConfigurationError(
            f"{view.__qualname__} is async: Flask runs it in another thread, away from the session. Write a plain def"
        )
    if inspect.isgeneratorfunction(view):
        raise ConfigurationError(
            f"{view.__qualname__} streams its response, which cannot be remembered: return the whole body"
        )


def _refuse_async_method() -> None:
    """Of a view class, which is not known yet when its view is decorated."""
    view_class = getattr(current_app.view_functions.get(request.endpoint or ""), "view_class", None)
    method = getattr(view_class, request.method.lower(), None) or getattr(view_class, "dispatch_request", None)
    if method is not None:
        _refuse_what_cannot_work(method)
