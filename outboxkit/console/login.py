"""Logging in and out, for users who have a token or a link."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from outboxkit.console.access import Access, TokenAccess
from outboxkit.console.sessions import FIELD, why_foreign
from outboxkit.console.visit import Console, granted, read_form, render, url_of


async def login(request: Request) -> Response:
    """The form for a token, or the link that logs in at once."""
    console: Console = request.app.state.console
    access = console.access
    if not isinstance(access, TokenAccess):
        return RedirectResponse(url_of(request, "overview"), 303)
    failed = ""
    if request.method == "POST" and access.has_form:
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise HTTPException(403, "Another site sent this form.")
        entered = (await read_form(request)).get("token", [""])[-1]
        if (user := access.sign_in(request, entered)) is not None:
            return _let_in(request, user)
        failed = "This is not the token."
    elif request.method == "GET" and not access.has_form and (link := request.query_params.get("once")) is not None:
        if (user := access.sign_in(request, link)) is not None:
            return _let_in(request, user)
        failed = "This link has been used, or is of an earlier start."
    return render(request, "login.html", 403 if failed else 200, failed=failed, has_form=access.has_form)


async def logout(request: Request) -> Response:
    """End the session."""
    console: Console = request.app.state.console
    cookie = console.sessions.cookie(request)
    form = await read_form(request)
    if await granted(request) is None or not console.sessions.is_own(request, cookie, form.get(FIELD, [""])[-1]):
        raise HTTPException(403, why_foreign(request))
    console.sessions.end(cookie)
    answer = RedirectResponse(url_of(request, "login"), 303)
    console.sessions.put(answer, request, None)
    return answer


def _let_in(request: Request, access: Access) -> Response:
    sessions = request.app.state.console.sessions
    answer = RedirectResponse(url_of(request, "overview"), 303)
    sessions.put(answer, request, sessions.begin(access.user))
    return answer


ROUTES = (
    Route("/login", login, name="login", methods=["GET", "POST"]),
    Route("/logout", logout, name="logout", methods=["POST"]),
)
