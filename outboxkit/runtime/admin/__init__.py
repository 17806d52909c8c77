"""The admin port: metrics and health of a worker over HTTP, in threads of its own.

`pages` decides what is told, `port` is the server. A worker tells its state as a `health.Health`.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outboxkit.errors import ConfigurationError
from outboxkit.runtime import logs
from outboxkit.runtime.admin.pages import Facts, Heartbeat, Worker, pages_of
from outboxkit.runtime.admin.port import BACKLOG, AdminPort
from outboxkit.runtime.process import LEAVING
from outboxkit.runtime.urls import ListenAddress
from outboxkit.telemetry import scrape

if TYPE_CHECKING:
    from outboxkit.runtime.settings import Settings

__all__ = ["AdminPort", "Worker", "serving"]


@asynccontextmanager
async def serving(settings: "Settings", worker: Worker) -> AsyncIterator[ListenAddress | None]:
    """The admin port of a worker, open as long as the context is; gives its address, None if the settings have none.

    Call it in the event loop in which the worker runs.

    Raises:
        ConfigurationError: the port is taken, or the process may not open it.
    """
    if settings.admin_port is None:
        yield None
        return
    from outboxkit.runtime.settings import without_secrets  # noqa: PLC0415 - pydantic, which a program imports when it runs

    listening = _listen(settings.admin_port)
    address = ListenAddress(*listening.getsockname()[:2])
    heartbeat = Heartbeat(asyncio.get_running_loop())
    facts = Facts(worker, heartbeat, _publish_limit(settings, worker), without_secrets(settings), _unmeasured())
    port = AdminPort(listening, pages_of(facts))
    heartbeat.start()
    port.start()
    logs.logger().info("admin port open", address=str(address))
    try:
        yield address
    finally:
        heartbeat.stop()
        port.stop()


def _listen(address: ListenAddress) -> socket.socket:
    try:
        family, *_, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = address.host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(target[:2], family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        code = error.errno or 0  # below 0 it is of the name's resolution
        reason = os.strerror(code) if code > 0 else error.strerror
        raise ConfigurationError(
            f"OUTBOXKIT_ADMIN_PORT is {str(address)!r}: nothing can listen there ({reason}). A free port of "
            "this machine is accepted; each process needs one of its own"
        ) from error


def _unmeasured() -> str | None:
    """Have metrics collected from now on; returns the reason if they cannot be."""
    try:
        scrape.prepare()
    except (ModuleNotFoundError, ConfigurationError) as error:
        logs.logger().warning("the admin port has no metrics", reason=str(error))
        return str(error)
    return None


def _publish_limit(settings: "Settings", worker: Worker) -> float:
    """The seconds after which a publish is stuck: twice its own limit, and time to leave a broker that is silent."""
    publisher: Any = getattr(worker, "publisher", None)  # of a relay
    limit: timedelta = settings.publish_timeout * (2 if publisher is not None and publisher.slow else 1)
    return (limit * 2 + LEAVING).total_seconds()
