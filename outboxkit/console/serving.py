"""Serving the console on this machine alone, for the one who started it."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

from outboxkit.console import LinkAccess, console
from outboxkit.console.access import ConsoleRight
from outboxkit.console.sessions import Guard
from outboxkit.errors import ConfigurationError
from outboxkit.errors.extras import needs_extra
from outboxkit.runtime.settings import Settings

with needs_extra("outboxkit console"):
    import uvicorn

HOST = "127.0.0.1"
LEAVE_SECONDS = 2
"""How long a stop waits for requests that are being answered."""


class _Server(uvicorn.Server):
    """A server whose process handles signals."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Leave them as they are."""
        return nullcontext()


def serve(
    settings: Settings,
    *,
    port: int,
    user: str,
    may: Sequence[ConsoleRight],
    also: Sequence[str],
    say: Callable[[str], None],
) -> Callable[[asyncio.Event], Awaitable[None]]:
    """A part of a process that serves the console until its event is set.

    `say` is given the link that lets its first user in.

    Raises:
        ConfigurationError: the port is taken.
    """
    access = LinkAccess(user=user, may=may)
    app = cast("Guard", console(settings.database_url.get_secret_value(), access=access, also=also, settings=settings))
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise ConfigurationError(
            f"--port is {port}: {os.strerror(error.errno or 0)}; a free port is accepted, and 0 takes any free one"
        ) from None
    say(f"http://{HOST}:{listening.getsockname()[1]}/login?once={access.token}")
    server = _Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",  # entered below: after a second signal uvicorn would print that its task was cancelled
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
    )

    async def run(stop: asyncio.Event) -> None:
        async def end() -> None:
            await stop.wait()
            server.should_exit = True

        ending = asyncio.create_task(end())
        with listening:
            async with app.lifespan():
                await server.serve(sockets=[listening])
        ending.cancel()

    return run
