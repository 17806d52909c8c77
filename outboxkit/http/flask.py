"""Idempotency keys and preconditions for Flask: key, business rows, outbox rows and answer in one transaction."""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import ParamSpec, Unpack

from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.orm.exc import StaleDataError

from outboxkit.database.transaction import refuse_end, session_of
from outboxkit.errors import ConfigurationError
from outboxkit.errors.extras import needs_extra
from outboxkit.http import answer, ledger, preconditions, problems
from outboxkit.http.problems import Problem
from outboxkit.http.request import (
    KEY_HEADER,
    SAFE,
    IdempotencyOptions,
    RequestKey,
    Rules,
    checked_principal,
    refuse_longer,
    refused,
    request_key_of,
)
from outboxkit.http.run import Added, Run

with needs_extra(__name__):
    from flask import Blueprint, Flask, Response, current_app, request
    from flask.typing import ResponseReturnValue
    from werkzeug.exceptions import ClientDisconnected, HTTPException

P = ParamSpec("P")
SessionSource = Callable[[], Session | scoped_session[Session]] | scoped_session[Session]


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
        self, *, session: SessionSource, principal: Callable[[], str] | None, **options: Unpack[IdempotencyOptions]
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
                ledger.roll_back(session)
                raise

        return once

    def _answer(self, session: Session, call: Callable[[], ResponseReturnValue]) -> Response:
        caller = checked_principal(self._principal()) if self._principal is not None else None
        try:
            run = Run(self._rules, _request_key(self._rules), caller)
        except Problem as problem:
            ledger.roll_back(session)
            return _problem(problem)
        answered = run.begin(session)
        if answered is not None:
            return _response(answered)
        try:
            response = _called(call)
            return _ended(response, run.end(session, response.status_code, partial(_whole, response)))
        except Exception as error:  # noqa: BLE001 - whatever the view raises is the app's to answer, or raised again
            ledger.roll_back(session)
            refuse_end(error, "the endpoint")
            response = _through_the_app(error)
            return _ended(response, run.remember(session, response.status_code, partial(_whole, response)))

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
    """
    if request.method in SAFE or not (rules.required or KEY_HEADER in request.headers):
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


def _whole(response: Response) -> answer.Response:
    """The answer with its body."""
    if response.is_streamed or response.direct_passthrough:
        response.close()
        raise ConfigurationError(
            "the view streams its response, which cannot be remembered: return the whole body, or a link to the content"
        )
    headers = response.get_wsgi_headers(request.environ)  # as they are sent: a Location in ASCII
    return answer.Response(response.status_code, tuple(headers.items()), response.get_data())


def _ended(response: Response, end: Added | answer.Response) -> Response:
    """The response with the headers that the run adds, or another run's answer."""
    if isinstance(end, answer.Response):
        return _response(end)
    response.headers.extend(end)
    return response


def _problem(problem: Problem) -> Response:
    return _response(answer.problem_response(problem))


def _response(stored: answer.Response) -> Response:
    response = current_app.response_class(stored.body, stored.status)
    response.headers.clear()  # Flask's default content type
    response.headers.extend(stored.headers)
    return response
