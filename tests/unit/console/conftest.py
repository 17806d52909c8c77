"""A console on a SQLite file, and browsers for it."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from outboxkit.console import TokenAccess, console

TOKEN = "a token of twenty and more signs"
Browser = Callable[..., Any]


@pytest.fixture
def browser(sqlite_url: str) -> Browser:
    """A client of a console; with `token`, one that has logged in."""

    @asynccontextmanager
    async def open_(token: str | None = TOKEN, app: Any = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        access = options.pop("access", None) or TokenAccess(TOKEN, may=options.pop("may", ("read",)), user="ann")
        served = app or console(sqlite_url, access=access, **options)
        transport = httpx.ASGITransport(served, client=("10.0.0.9", 1234))
        client = httpx.AsyncClient(transport=transport, base_url="http://localhost:8000")
        async with running(served), client:
            if token is not None:
                await client.post("/login", data={"token": token})
            yield client

    return open_


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[None]:
    """The application between its start and its end, as a server has it."""
    stop, ended = asyncio.Event(), asyncio.Event()
    wishes = iter(({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}))

    async def receive() -> dict[str, str]:
        wish = next(wishes)
        if wish["type"] == "lifespan.shutdown":
            await stop.wait()
        return wish

    async def send(message: dict[str, Any]) -> None:
        assert "failed" not in message["type"]
        if message["type"] == "lifespan.shutdown.complete":
            ended.set()

    task = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send))
    try:
        yield
    finally:
        stop.set()
        await task
    assert ended.is_set()


def csrf_in(text: str) -> str:
    """The token against forged requests in a page."""
    (token,) = set(re.findall(r'name="csrf" value="(\w+)"', text))
    return token
