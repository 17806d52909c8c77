"""A bare ASGI application behind the middleware, on a SQLite file; no framework."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from outboxkit.http.asgi import IdempotencyMiddleware, steps


def caller(scope: Any) -> str:
    return dict(scope["headers"]).get(b"x-user", b"ada").decode()


@dataclass
class Served:
    """An application of one endpoint that makes a call in a step.

    Attributes:
        act: what it does after its step, with ASGI's three; it sends the answer.
        calls: the keys of the calls that it made.
        body: what it read.
    """

    sessions: async_sessionmaker[Any]
    rules: dict[str, Any] = field(default_factory=dict)
    act: Callable[..., Any] | None = None
    before: Callable[..., Any] | None = None
    calls: list[str] = field(default_factory=list)
    runs: int = 0
    body: bytes = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        self.body = (await receive())["body"]
        if self.before is not None:
            await self.before(scope, receive, send)
            return

        async def call() -> str:
            self.calls.append(steps().key("charge"))
            return "charged"

        result = await steps().step("charge", call)
        if self.act is not None:
            await self.act(scope, receive, send)
        else:
            await respond(send, 201, json.dumps(result).encode())

    def middleware(self) -> IdempotencyMiddleware:
        return IdempotencyMiddleware(self, self.sessions, **{"principal": caller, **self.rules})

    async def post(
        self,
        content: bytes = b"{}",
        *,
        key: str | None = "k",
        method: str = "POST",
        raising: bool = False,
        **headers: str,
    ):
        given = headers | ({} if key is None else {"Idempotency-Key": key})
        transport = httpx.ASGITransport(self.middleware(), raise_app_exceptions=raising)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.request(method, "/orders?a=1", content=content, headers=given)


async def respond(send: Any, status: int, *chunks: bytes, headers: Any = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    for chunk in chunks[:-1]:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": chunks[-1] if chunks else b""})


def answering(status: int, *chunks: bytes, headers: Any = ()) -> Callable[..., Any]:
    """What an application does that gives this answer."""

    async def act(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, status, *chunks, headers=headers)

    return act


@pytest.fixture
def served(async_engine: AsyncEngine) -> Served:
    return Served(async_sessionmaker(async_engine), {"lease": timedelta(minutes=1)})
