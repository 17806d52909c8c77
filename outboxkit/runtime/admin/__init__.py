"""The admin port: metrics and health of a worker over HTTP, in threads of its own.

`pages` decides what an answer says, `port` is the server. A worker gives its state as a `health.Health`.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from outboxkit.errors import ConfigurationError
from outboxkit.runtime import logs
from outboxkit.runtime.admin.pages import Heartbeat, Worker, pages_of
from outboxkit.runtime.admin.port import BACKLOG, AdminPort, MakePage
from outboxkit.runtime.admin.processes import Process, pages_of_processes
from outboxkit.runtime.process import LEAVING
from outboxkit.runtime.supervised import supervised
from outboxkit.runtime.urls import ListenAddress
from outboxkit.telemetry import scrape

if TYPE_CHECKING:
    from outboxkit.runtime.settings import Settings

__all__ = ["AdminPort", "Worker", "serving", "serving_processes"]


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
    of_supervisor = supervised()
    listening = of_supervisor.admin if of_supervisor is not None else None
    own = listening or _listen(settings.admin_port)
    heartbeat = Heartbeat(asyncio.get_running_loop())
    pages = pages_of(worker, heartbeat, _publish_limit(settings, worker), _unmeasured())
    heartbeat.start()
    try:
        with _open(own, pages, is_told=listening is None) as address:
            yield address
    finally:
        heartbeat.stop()


@contextmanager
def serving_processes(settings: "Settings", processes: Sequence[Process]) -> Iterator[None]:
    """The admin port of a supervisor, which asks those of its processes, if the settings have one."""
    if settings.admin_port is None:
        yield
        return
    with _open(_listen(settings.admin_port), pages_of_processes(processes)):
        yield


@contextmanager
def _open(listening: socket.socket, pages: Mapping[str, MakePage], *, is_told: bool = True) -> Iterator[ListenAddress]:
    address, port = ListenAddress(*listening.getsockname()[:2]), AdminPort(listening, pages)
    port.start()
    if is_told:
        logs.logger().info("admin port open", address=str(address))
    try:
        yield address
    finally:
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
    limit: timedelta = settings.publish_timeout * (2 if worker.health().has_slow_publisher else 1)
    return (limit * 2 + LEAVING).total_seconds()
