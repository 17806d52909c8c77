"""The pages of an admin port for several processes: those of each process, asked and put together."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from socket import socket
from typing import Protocol

from outboxkit.runtime.admin.port import MakePage, Page, text_page, verdict
from outboxkit.telemetry import scrape

ANSWER_SECONDS = 5.0
"""The time that a process has to answer: it asks the database for a part of it."""


class Process(Protocol):
    """A process with an admin port of its own, for this machine.

    Attributes:
        away: why it does not run now; None: it runs.
    """

    number: int
    listening: socket | None
    away: str | None


def pages_of_processes(processes: Sequence[Process]) -> Mapping[str, MakePage]:
    """The pages by their paths. All processes are asked at the same time."""

    def ask(path: str) -> list[Page]:
        with ThreadPoolExecutor(len(processes)) as pool:
            return list(pool.map(lambda each: _ask(each, path), processes))

    def live() -> Page:
        return _together("live", processes, ask("/livez"), fails=lambda each: each.away is None)

    def ready() -> Page:
        return _together("ready", processes, ask("/readyz"), fails=lambda _: True)

    def metrics() -> Page:
        pages = ask("/metrics")
        refused = next((page for page in pages if page.status == HTTPStatus.NOT_IMPLEMENTED), None)
        texts = {
            str(each.number): page.body
            for each, page in zip(processes, pages, strict=True)
            if page.status == HTTPStatus.OK
        }
        return refused or Page(HTTPStatus.OK, scrape.merged(texts), scrape.CONTENT_TYPE)

    return {"/metrics": metrics, "/livez": live, "/readyz": ready}


def _ask(process: Process, path: str) -> Page:
    if process.away is not None or process.listening is None:
        return text_page(HTTPStatus.SERVICE_UNAVAILABLE, process.away or "it has no admin port")
    host, port = process.listening.getsockname()
    connection = HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return Page(HTTPStatus(answer.status), answer.read(), answer.headers["Content-Type"])
    except (OSError, HTTPException):
        return text_page(HTTPStatus.SERVICE_UNAVAILABLE, f"no answer within {ANSWER_SECONDS:g} s")
    finally:
        connection.close()


def _together(
    state: str, processes: Sequence[Process], pages: Sequence[Page], *, fails: Callable[[Process], bool]
) -> Page:
    """One verdict, with a line for each process: 503 if one whose page is no 200 also `fails`, else 200."""
    failed, lines = False, list[str]()
    for process, page in zip(processes, pages, strict=True):
        first, *more = page.body.decode(errors="replace").splitlines() or [""]
        lines.append(f"process {process.number}: {', '.join(more) or first}")
        failed |= page.status != HTTPStatus.OK and fails(process)
    return verdict(state, *lines, failed=failed)
