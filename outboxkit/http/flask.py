"""Idempotency keys and preconditions for Flask: key, business rows, outbox rows and answer in one transaction."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, Unpack

from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.orm.exc import StaleDataError

from outboxkit.database.transaction import refuse_end, session_of
from outboxkit.errors import ConfigurationError
from outboxkit.errors.extras import needs_extra
from outboxkit.http import answer, ledger, preconditions, problems
from outboxkit.http.answer import Fresh, Replay
from outboxkit.http.problems import Problem
from outboxkit.http.request import (
    KEY,
    SAFE,
    IdempotencyOptions,
    RequestKey,
    Rules,
    checked_principal,
    refuse_longer,
    refused,
    request_key_of,
)

with needs_extra(__name__):
    from flask import Blueprint, Flask, Response, current_app, request
    from flask.typing import ResponseReturnValue
    from werkzeug.exceptions import ClientDisconnected, HTTPException

P = ParamSpec("P")
Sessions = Callable[[], Session | scoped_session[Session]] | scoped_session[Session]


class Idempotent:
    """A decorator for views that run once for each idempotency key, below the decorator of the route.

    The view works on the session, and leaves its transaction alone. That is committed before the answer leaves, or
    rolled back if the answer is not remembered. A request of a safe method needs no key.

    Args:
        session: gives the session that the view uses: a `scoped_session`, or a function.
        principal: returns the caller's id; None: all callers share the keys. For a caller that it does not know it
            aborts with 401.
        options: see `outboxkit.http.request.Rules`.

    Raises:
        ConfigurationError: an option is not accepted, or a view is async.
    """

    def __init__(
        self, *, session: Sessions, principal: Callable[[], str] | None, **options: Unpack[IdempotencyOptions]
    ) -> None:
        self._session = session
        self._principal = principal
        self._rules = Rules(**options)

    def __call__(self, view: Callable[P, ResponseReturnValue]) -> Callable[P, ResponseReturnValue]:
        """The view, at most once for each key."""
        if inspect.iscoroutinefunction(view):
            raise ConfigurationError(
                f"{view.__qualname__} is async: Flask runs it in another thread, away from the session. Write a def"
            )

        @wraps(view)
        def once(*args: P.args, **kwargs: P.kwargs) -> ResponseReturnValue:
            session = self._current_session()
            try:
                return self._answer(session, lambda: view(*args, **kwargs))
            except Exception:
                session.rollback()
                raise

        return once

    def _answer(self, session: Session, call: Callable[[], ResponseReturnValue]) -> Response:
        caller = checked_principal(self._principal()) if self._principal is not None else None
        try:
            this = _request_key(self._rules)
        except Problem as problem:
            session.rollback()
            return _problem(problem)
        fresh: Fresh | None = None
        if this is not None:
            outcome = self._begin(session, this, caller)
            answer.count(outcome)
            if not isinstance(outcome, Fresh):
                session.rollback()
                return _response(answer.answered(outcome))
            fresh = outcome
        try:
            response = _called(call)
            if self._rules.stored(response.status_code):
                return self._keep(session, fresh, response)
        except Exception as error:  # noqa: BLE001 - whatever the view raises is the app's to answer, or raised again
            session.rollback()
            refuse_end(error, "the endpoint")
            return self._remember_error(session, this, caller, _through_the_app(error))
        session.rollback()
        return response

    def _keep(self, session: Session, fresh: Fresh | None, response: Response) -> Response:
        """Commit the view's work, with its answer if the request has a key."""
        if fresh is not None:
            if response.is_streamed or response.direct_passthrough:
                response.close()
                raise ConfigurationError(
                    "the view streams its response, which cannot be remembered: return the whole body, "
                    "or a link to the content"
                )
            body, limit = response.get_data(), self._rules.max_response
            stored = answer.remembered_part(response.status_code, response.headers.items(), body, limit)
            ledger.complete(session, fresh, stored)
        session.commit()
        if fresh is not None:
            response.headers.add(*answer.expires_header(fresh))
        return response

    def _remember_error(
        self, session: Session, this: RequestKey | None, caller: str | None, response: Response
    ) -> Response:
        """The answer to an error of the view, remembered without any effect of the view."""
        if this is None or not self._rules.stored(response.status_code):
            return response
        outcome = self._begin(session, this, caller)
        if isinstance(outcome, Fresh):
            return self._keep(session, outcome, response)
        session.rollback()
        return _response(answer.answered(outcome)) if isinstance(outcome, Replay) else response

    def _begin(self, session: Session, this: RequestKey, caller: str | None) -> answer.Outcome:
        return ledger.begin(session, **this._asdict(), principal=caller, retention=self._rules.retention)

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


def _request_key(rules: Rules) -> RequestKey | None:
    """The ledger's key for the request at hand; None: it has no idempotency key, and needs none.

    Its path is the one that was sent: view arguments may be objects by now, or may have been removed by a preprocessor.

    Raises:
        Problem: 400, the key is missing or not valid; 413, the body is too large.
    """
    if request.method in SAFE or not (rules.required or KEY in request.headers):
        return None
    rule, path = request.url_rule, request.root_path + request.path
    operation = f"{rule.host or rule.subdomain or ''}{request.root_path}{rule.rule}" if rule else path
    scope = {
        "method": request.method,
        "path": (request.host if rule and (rule.host or rule.subdomain) else "") + path,
        "query_string": request.query_string,
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers],
    }
    return request_key_of(scope, _body(rules.max_body), operation)


def _body(limit: int) -> bytes:
    own = request.max_content_length
    most = limit if own is None else min(own, limit)
    refuse_longer(request.headers.get("Content-Length"), most)
    is_read = "stream" in vars(request)  # or parsed as a form
    request.max_content_length = most + 1  # of a body without a length Werkzeug drops what is beyond this, silently
    body = request.get_data()
    if len(body) > most:
        raise refused(problems.body_too_large(most))
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
    return _response(answer.problem_response(problem))


def _response(stored: answer.Response) -> Response:
    response = current_app.response_class(stored.body, stored.status)
    response.headers.clear()  # Flask's default content type
    response.headers.extend(stored.headers)
    return response
