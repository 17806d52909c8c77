"""The page for operators: an ASGI application on `operators/`, for one database and those named beside it.

`access` says who may come in, `sessions` keeps browsers and forged requests apart, `visit` is a request that was
let in. `redaction` and `shown` write values down, `serving` is the command's server. The other modules are the pages.
They read in read-only transactions, whose statements end in time. `operations` and `workers` write, through
`visit.write`.
"""

import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus

from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from outboxkit.database.sqlalchemy_asyncio import AsyncEngine
from outboxkit.errors import OutboxkitError
from outboxkit.errors.extras import needs_extra
from outboxkit.errors.sqlstates import CANCELED, sqlstate_of
from outboxkit.operators.background import Background
from outboxkit.operators.doctor.installation import Installation
from outboxkit.runtime import compose, process
from outboxkit.runtime.settings import Settings, load

with needs_extra("outboxkit.console"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Mount
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp

    from outboxkit.console import dead, login, messages, operations, overview, requests, retention, trail, workers
    from outboxkit.console.access import (
        Access,
        BasicAccess,
        Granting,
        LinkAccess,
        ProxyAccess,
        TokenAccess,
        TooManyFailures,
        refuse_short,
        refuse_text,
    )
    from outboxkit.console.redaction import Redact, Redaction
    from outboxkit.console.sessions import LOOPBACK, Guard, Sessions
    from outboxkit.console.visit import Console, render

__all__ = ["Access", "BasicAccess", "LinkAccess", "ProxyAccess", "TokenAccess", "console"]

NAME = "outboxkit console"
STATEMENT_TIMEOUT = "3s"
CONNECTIONS = 2
PAGES = tuple(
    route
    for module in (login, overview, messages, dead, operations, workers, requests, retention, trail)
    for route in module.ROUTES
)
"""The routes of all pages."""
SHOWN_ERRORS = (HTTPException, TooManyFailures, SQLAlchemyError, OutboxkitError, Exception)

AnyDatabase = AsyncEngine | Engine | URL | str


def console(
    engine: AnyDatabase,
    *,
    access: Granting,
    hosts: Sequence[str] = LOOPBACK,
    redact: Redact | Iterable[str] = (),
    also: Sequence[AnyDatabase] = (),
    settings: Settings | None = None,
    secret: str | None = None,
) -> ASGIApp:
    """The page for operators, to be served or to be mounted under any path.

    It opens a few connections of its own to the engine's URL. What `create_engine` was given beside the URL is not
    taken over.

    Args:
        engine: the database, as an engine or a URL.
        access: from a request to its `Access`, or None to refuse it. It may be async.
        hosts: the host names under which it is served; `*` leaves the check to the application around it.
        redact: the names of fields that are hidden in payloads and headers, at any depth; or a function of a message's
            type and its payload that returns what may be shown. Headers are not given to it, and none is shown then.
        also: databases of other services, to follow messages into.
        settings: what checks go by; None: `OUTBOXKIT_*` of this process.
        secret: signs sessions: at least 12 characters. Several processes that serve the console need the same one; a
            token is one already.

    Raises:
        ConfigurationError: a URL or a setting cannot be used, a secret is too short, or a text is where a list belongs.
        ModuleNotFoundError: the extra `console` is not installed.
    """
    for option, names in {"hosts": hosts, "redact": redact, "also": also}.items():
        refuse_text(option, names)
    if secret is not None:
        refuse_short("secret", secret)
    url = _url(engine)
    keys = [secret] if secret is not None else []
    keys += [access.key] if isinstance(access, TokenAccess) else []
    installation = Installation(settings or load({"database_url": url}), reader := _reader(url))
    writer = process.engine(url, name=NAME, pool_size=CONNECTIONS + 1)
    shared = Console(
        installation=installation,
        others=tuple(_reader(_url(each)) for each in also),
        writer=writer,
        background=Background(writer, reader, installation.settings),
        access=access,
        sessions=Sessions(" ".join(keys) or secrets.token_urlsafe(32)),
        redaction=Redaction(redact),
    )

    @asynccontextmanager
    async def close_connections(_: object) -> AsyncIterator[None]:
        if shared.operates:
            shared.background.wake()
        yield
        await shared.background.close()
        for each in (shared.engine, *shared.others, shared.writer):
            await each.dispose()

    app = Starlette(
        routes=[*PAGES, Mount("/static", StaticFiles(packages=[("outboxkit.console", "static")]), name="static")],
        exception_handlers=dict.fromkeys(SHOWN_ERRORS, _show_error),
        lifespan=close_connections,
    )
    app.state.console, app.state.status = shared, overview.FreshStatus(installation)
    return Guard(app, hosts)


def _url(database: AnyDatabase) -> str:
    url = database if isinstance(database, str | URL) else database.url
    return url if isinstance(url, str) else url.render_as_string(hide_password=False)


def _reader(url: str) -> AsyncEngine:
    return process.reader(url, name=NAME, pool_size=CONNECTIONS, timeout=STATEMENT_TIMEOUT)


def _show_error(request: Request, error: Exception) -> Response:
    """The page of an error: what it says to people, and what to do about it."""
    cure, headers = "", dict[str, str]()
    match error:
        case TooManyFailures():
            status, title, headers = 429, "Wait a minute", {"Retry-After": "60"}
            text = "Too many attempts have failed. The next one is looked at in a minute."
        case HTTPException():
            status, title, text = error.status_code, HTTPStatus(error.status_code).phrase, error.detail
            if text == title:
                text = "There is no such page. The menu has all that are there."
        case DBAPIError() if sqlstate_of(error) == CANCELED:
            status, title = 503, "The database takes too long"
            text = f"A statement of a page may take {STATEMENT_TIMEOUT}. Filter first, so that fewer rows are read: by "
            text += "type, key, handler or time."
        case SQLAlchemyError() | OutboxkitError():
            status, title = 503, "The database cannot be read"
            text, _ = compose.explain(error)
            cure = f"A statement of a page may take {STATEMENT_TIMEOUT}. Try again, or ask what is wrong:"
        case _:
            status, title = 500, "An error that nobody expected"
            text = "The console has failed, and what serves it has logged the error. Please report it."
    answer = render(request, "error.html", status, title=title, text=text, cure=cure)
    answer.headers.update(headers)
    return answer
