"""A request of a user who may read: what a page gets, and the checks before it."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outboxkit.console.access import Access, ConsoleRight, Granting, TokenAccess
from outboxkit.console.redaction import Redaction
from outboxkit.console.sessions import FIELD, Sessions, root_of, why_foreign
from outboxkit.console.shown import TEMPLATES
from outboxkit.errors.failures import class_of
from outboxkit.operators.background import Background
from outboxkit.operators.doctor.installation import Installation
from outboxkit.runtime import urls
from outboxkit.runtime.settings import parse_duration

T = TypeVar("T")
MENU = (
    ("overview", "Overview"),
    ("messages", "Messages"),
    ("dead", "Dead letters"),
    ("keys", "Keys"),
    ("workers", "Workers"),
    ("replay", "Replay"),
    ("operations", "Operations"),
    ("requests", "Idempotency keys"),
    ("retention", "Retention"),
    ("audit", "Audit"),
)
"""The pages of the menu: the names of their routes, and what they are called there."""
LINKS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "dead-letters": ("dead", {}),
    "key-parked": ("keys", {}),
    "type-failing": ("messages", {"state": "held"}),
    "relay-missing": ("messages", {"state": "ready"}),
    "relay-stuck": ("messages", {"state": "ready"}),
}
"""The page that shows the rows of a finding: its route, and the query."""
SAFE = ("GET", "HEAD")
MOST_FORM_BYTES = 256 * 1024
LONGEST = 255
"""Characters of a text that a page takes; no name in the tables is longer."""
LONGEST_PLACE = 8192
"""Characters of a place in a list, as JSON: it may have several such texts, each character escaped."""
LARGEST = 2**63 - 1
"""The largest number of a row."""


@dataclass(frozen=True)
class Console:
    """What the pages of a console share.

    Attributes:
        installation: with the engine that reads. Its transactions only read, and their statements end in time.
        others: engines like that one, on the databases of other services.
        writer: the engine for operations. It connects when it is used.
        background: works at operations that take long.
        access: who may do what.
        sessions: of browsers.
        redaction: what is taken out of payloads and headers.
    """

    installation: Installation
    others: tuple[AsyncEngine, ...]
    writer: AsyncEngine
    background: Background
    access: Granting
    sessions: Sessions
    redaction: Redaction

    @property
    def operates(self) -> bool:
        """Whether anybody may operate here, as far as is known."""
        return not isinstance(self.access, TokenAccess) or self.access.operates

    @property
    def engine(self) -> AsyncEngine:
        """The engine that reads."""
        assert self.installation.engine is not None  # noqa: S101 - it is made with one
        return self.installation.engine


@dataclass
class Visit:
    """One request of a user who may read.

    Attributes:
        request: as Starlette has it.
        console: what all pages share.
        access: the user and the rights.
        cookie: of the session.
        form: the fields of a POST, which had its token against forged requests, by a user who may operate.
        name: of the page's route.
    """

    request: Request
    console: Console
    access: Access
    cookie: str
    name: str
    form: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def csrf(self) -> str:
        """The text that each form of the page sends back."""
        return self.console.sessions.csrf(self.cookie)

    @property
    def has_session(self) -> bool:
        """Whether the user has logged in here, and can log out."""
        return isinstance(self.console.access, TokenAccess)

    @property
    def database(self) -> str:
        """The address of the database, without user and password."""
        return urls.shown(self.console.engine.url)

    def may(self, right: ConsoleRight) -> bool:
        """Whether the user has this right."""
        return right in self.access.may

    def need(self, right: ConsoleRight) -> None:
        """Refuse a user who has not got this right, with status 403."""
        if not self.may(right):
            raise HTTPException(403, f"{self.access.user} has not got the right “{right}”, which this needs.")

    def error(self, text: str | None) -> str:
        """An error of a message, whole with the right `payload`: it may repeat what is in the message."""
        return (text or "") if self.may("payload") else class_of(text or "") if text else ""

    def outcome(self, result: str) -> str:
        """The result of an action; an error that ended it as `error` shows one."""
        return self.error(result) if result.startswith("failed: ") else result

    def filter_of(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        """What an action was asked for; the text of an error with the right `payload` alone."""
        return {**action, "error": "…"} if "error" in action and not self.may("payload") else action

    def asked(self, name: str) -> str | None:
        """A parameter of the query; None if it is empty. Names in the tables may have blanks around them.

        `error` needs the right `payload`: the text of an error that the user may not see could be guessed by it.
        """
        longest = LONGEST_PLACE if name == "after" else LONGEST
        text = _accepted(name, self.request.query_params.get(name, ""), longest)
        if name == "error" and text:
            self.need("payload")
        return text or None

    def choice(self, name: str, options: Sequence[str]) -> str | None:
        """A parameter of the query that is one of these; None if it is empty. Others are refused."""
        text = self.asked(name)
        if text is not None and text not in options:
            raise HTTPException(400, f"“{name}” is {text!r}: one of {', '.join(options)} is accepted, or nothing.")
        return text

    def place(self, kind: type[T]) -> T | None:
        """The row behind which this page of a list begins, as `cursor` has written it; None: it is the first page."""
        text = self.asked("after")
        refusal = "This link to further rows cannot be read, or belongs to other filters."
        return None if text is None else decoded(text, kind, refusal)

    def age(self, name: str) -> timedelta | None:
        """A parameter of the query that is a duration."""
        return duration_of(name, (self.asked(name) or "").strip())

    def sent(self, name: str, *, longest: int = LONGEST) -> str:
        """A field of the form, without blanks around it."""
        return _accepted(name, self.form.get(name, [""])[-1].strip(), longest)

    async def write(self, work: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """The result of `work` in a transaction that is committed."""
        async with self.console.writer.begin() as connection:
            return await connection.run_sync(lambda plain: work(plain, *arguments, **named))

    async def read(self, work: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """The result of `work` in a transaction that only reads."""
        async with self.console.engine.connect() as connection:
            return await connection.run_sync(lambda plain: work(plain, *arguments, **named))

    def here(self, **changes: Any) -> str:
        """This page with some parameters of its query changed."""
        query = {**self.request.query_params, **changes}
        return quote(self.request.scope["path"], safe="/") + _query(query)

    def page(self, template: str, /, status: int = 200, **context: Any) -> Response:
        """The page that a template makes."""
        return render(self.request, template, status, visit=self, **context)

    def back_to(self, name: str, /, **query: Any) -> Response:
        """The answer to a POST: another page."""
        return RedirectResponse(url_of(self.request, name, **query), 303)


ShowPage = Callable[[Visit], Awaitable[Response]]


def page(path: str, show: ShowPage, *, name: str | None = None, methods: tuple[str, ...] = ("GET",)) -> Route:
    """The route of a page. Only users who may read get there, and with a POST only those who may operate."""
    own = name or str(getattr(show, "__name__", ""))

    @functools.wraps(show)
    async def checked(request: Request) -> Response:
        console: Console = request.app.state.console
        cookie = console.sessions.cookie(request)
        access = await granted(request)
        if access is None:
            return refuse(request)
        visit = Visit(request, console, access, cookie, own)
        visit.need("read")
        if console.operates:
            console.background.wake()  # an application that mounts the console may never start it
        is_new = console.sessions.user(cookie) != access.user
        if request.method not in SAFE:
            form = await read_form(request)
            if is_new or not console.sessions.is_own(request, cookie, form.get(FIELD, [""])[-1]):
                raise HTTPException(403, why_foreign(request))
            visit.need("operate")
            visit.form = form
        elif is_new:
            visit.cookie = console.sessions.begin(access.user)
        answer = await show(visit)
        if visit.cookie != cookie:
            console.sessions.put(answer, request, visit.cookie)
        return answer

    return Route(path, checked, name=own, methods=list(methods))


async def granted(request: Request) -> Access | None:
    """The access of a request: by its session, if the users log in, or as `access` says."""
    console: Console = request.app.state.console
    if isinstance(console.access, TokenAccess):
        user = console.sessions.user(console.sessions.cookie(request))
        return console.access.of_session(user) if user is not None else None
    answer = console.access(request)
    return await answer if inspect.isawaitable(answer) else answer


def refuse(request: Request) -> Response:
    """The answer to a request of nobody."""
    access = request.app.state.console.access
    if isinstance(access, TokenAccess) and request.method in SAFE:
        return RedirectResponse(url_of(request, "login"), 303)
    challenge = getattr(access, "challenge", None)
    answer = render(request, "refused.html", 401 if challenge else 403)
    if challenge:
        answer.headers["WWW-Authenticate"] = challenge
    return answer


async def read_form(request: Request) -> Mapping[str, list[str]]:
    """The fields of a form; one that is too large or cannot be read is refused."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise HTTPException(415, "A form in application/x-www-form-urlencoded is accepted.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_FORM_BYTES:
            raise HTTPException(413, f"The form has more than {MOST_FORM_BYTES} bytes.")
    fields: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=2000, errors="strict"):
            fields.setdefault(name, []).append(value)
    except ValueError:
        raise HTTPException(400, "The form cannot be read: fields in UTF-8 are accepted, at most 2000.") from None
    return fields


def _accepted(name: str, text: str, longest: int = LONGEST) -> str:
    if "\0" in text or len(text) > longest:
        raise HTTPException(
            400, f"“{name}” is too long, or holds a NUL: text of at most {longest} characters is accepted."
        )
    return text


def duration_of(name: str, text: str) -> timedelta | None:
    """The duration in the text of a field; None if it is empty. Anything else is refused."""
    try:
        return parse_duration(text) if text else None
    except ValueError as error:
        raise HTTPException(400, f"“{name}” is {text[:20]!r}: {error}.") from None


def whole_number(text: str, refusal: str) -> int:
    """The number of a row, or one like it; any other text is refused with `refusal`."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST)) and int(text) <= LARGEST):
        raise HTTPException(400, refusal)
    return int(text)


def cursor(place: object) -> str | None:
    """The text of a link to the rows behind this place of a list; None: there are none."""
    return None if place is None else msgspec.json.encode(place).decode()


def decoded(text: str, kind: type[T], refusal: str) -> T:
    """A value that a page wrote into a link or a form; one that no page wrote is refused with `refusal`."""
    with suppress(ValueError):
        value = msgspec.json.decode(text, type=kind)
        if _is_storable(value):
            return value
    raise HTTPException(400, refusal)


def _is_storable(value: object) -> bool:
    """Whether the columns of the tables can hold it."""
    if isinstance(value, str):
        return "\0" not in value and len(value) <= LONGEST
    if isinstance(value, int):
        return abs(value) <= LARGEST
    if isinstance(value, datetime):
        return value.tzinfo is not None and abs(value.utcoffset() or timedelta()) < timedelta(seconds=1)
    if isinstance(value, tuple | frozenset):
        return all(map(_is_storable, value))
    if is_dataclass(value):
        return all(_is_storable(getattr(value, each.name)) for each in fields(value))
    return value is None


def url_of(request: Request, name: str, /, **query: Any) -> str:
    """The path of a page of the console, wherever it is mounted."""
    parts = {key: query.pop(key) for key in [*query] if key == "path"}
    path: str = root_of(request) + request.app.url_path_for(name, **parts)
    return path + _query(query)


def render(request: Request, template: str, status: int, **context: Any) -> Response:
    """A page of HTML."""
    own = {"url": functools.partial(url_of, request), "csrf_field": FIELD, "menu": MENU, "links": LINKS, "visit": None}
    text = TEMPLATES.get_template(template).render(own | context)
    return Response(text, status, media_type="text/html")


def _query(query: Mapping[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"?{urlencode(given, doseq=True, errors='replace')}" if given else ""
