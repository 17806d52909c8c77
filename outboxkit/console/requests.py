"""Requests with an idempotency key: state, lease and status of the answer, never what is in it."""

from sqlalchemy import Connection
from starlette.responses import Response

from outboxkit.console.visit import Visit, page
from outboxkit.operators import requests as ledger
from outboxkit.operators.messages import read_now
from outboxkit.operators.requests import STATES, KnownRequest

ROWS = 50


async def requests(visit: Visit) -> Response:
    """Show the requests whose keys expire last; those that match are searched among them."""
    key, scope = visit.asked("key"), visit.asked("scope")
    state = visit.choice("state", STATES)

    def read(connection: Connection) -> list[KnownRequest]:
        return ledger.list_requests(connection, key=key, scope=scope, state=state, limit=ROWS)

    rows, now = await visit.read(read), await visit.read(read_now)
    return visit.page("requests.html", found=rows, now=now, rows=ROWS, window=ledger.WINDOW, states=STATES, state=state)


ROUTES = (page("/requests", requests),)
