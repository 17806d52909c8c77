"""Sessions of the console: a signed cookie each, a token against forged requests, and the headers of every answer."""

import hmac
import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
LASTS_SECONDS = 12 * 3600
FIELD = "csrf"
"""The name of the form's field."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def root_of(request: Request) -> str:
    """The path under which the console is mounted, as it stands in links and in the cookie."""
    return quote(request.scope.get("root_path", ""), safe="/")


class Sessions:
    """Begins, reads and ends sessions. A cookie holds its user and a random text, so no page can give one away.

    Whoever has the `key` that signs them can be anybody.
    """

    def __init__(self, key: str) -> None:
        self._key = sha256(f"outboxkit console {key}".encode()).hexdigest()
        self._signer = URLSafeTimedSerializer(self._key)
        self._name = f"outboxkit-{sha256(self._key.encode()).hexdigest()[:8]}"
        self._ended = set[str]()

    def cookie(self, request: Request) -> str:
        """The cookie of a request, or an empty text."""
        return request.cookies.get(self._name, "")

    def user(self, cookie: str) -> str | None:
        """The user of a session that has begun here, and is not over."""
        try:
            user, number = self._signer.loads(cookie, max_age=LASTS_SECONDS)
        except (BadSignature, ValueError, TypeError):
            return None
        return None if number in self._ended else str(user)

    def begin(self, user: str) -> str:
        """The cookie of a new session. It never takes over one that a request has brought."""
        return str(self._signer.dumps([user, secrets.token_urlsafe(16)]))

    def end(self, cookie: str) -> None:
        """End a session, so that this process refuses a copy of its cookie, too, until it is started again."""
        if self.user(cookie) is not None:
            self._ended.add(self._signer.loads(cookie)[1])

    def put(self, response: Response, request: Request, cookie: str | None) -> None:
        """Give the browser a cookie, or take it away. It is for TLS alone, except on this machine."""
        response.set_cookie(
            self._name,
            cookie or "",
            max_age=LASTS_SECONDS if cookie else 0,
            path=root_of(request) or "/",
            secure=request.url.scheme == "https" or host_of(request.headers.get("host", "")) not in LOOPBACK,
            httponly=True,
            samesite="lax",
        )

    def csrf(self, cookie: str) -> str:
        """The text that a form of this session has to send back."""
        return hmac.new(self._key.encode(), cookie.encode(), sha256).hexdigest()

    def is_own(self, request: Request, cookie: str, sent: str) -> bool:
        """Whether a request was sent by a form of this session, on a page of ours."""
        is_ours = request.headers.get("sec-fetch-site", "same-origin") == "same-origin" and not _is_of_another_host(
            request
        )
        return is_ours and hmac.compare_digest(sent.encode(), self.csrf(cookie).encode())


def why_foreign(request: Request) -> str:
    """What a page says of a form that is not its own."""
    text = "This form is too old, or another site sent it. Nothing was done; try it again."
    if not _is_of_another_host(request):
        return text
    origin, host = (request.headers.get(name) for name in ("origin", "host"))
    return f"{text} It is of {origin}, and this request is for {host}: a proxy has to pass the header Host on."


def _is_of_another_host(request: Request) -> bool:
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host", "")


class Guard:
    """Answers requests for known hosts alone, and puts the headers of a page that must not leak on every answer.

    `hosts` are the names in `Host`, without ports; `*` stands for any.
    """

    def __init__(self, app: Starlette, hosts: Sequence[str]) -> None:
        self._app, self._hosts = app, [host.lower() for host in hosts]

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        """What the application does from its start to its end, for a server that does not send it the lifespan."""
        return self._app.router.lifespan_context(self._app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; anything else than HTTP and the lifespan is refused."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        host: Any = MutableHeaders(scope=scope).get("host", "")
        if "*" in self._hosts or host_of(host) in self._hosts:
            await self._app(scope, receive, with_headers)
            return
        text = (
            f"This console answers to {', '.join(self._hosts)} alone, and not to the host name of this request.\n"
            "Give the name to console(..., hosts=[...]).\n"
        )
        await PlainTextResponse(text, 400)(scope, receive, with_headers)


def host_of(header: str) -> str:
    """The name in a `Host` header, without the port."""
    name, _, port = header.rpartition(":")
    return (name if port.isdigit() else header).lower()
