"""The audit trail: what operators have done, the newest first."""

from datetime import datetime

from sqlalchemy import Connection
from starlette.responses import Response

from outboxkit import schema
from outboxkit.console.visit import Visit, cursor, page
from outboxkit.message import FIRST_MOMENT
from outboxkit.operators import audit

ROWS = 50


async def trail(visit: Visit) -> Response:
    """Show a page of actions."""
    before = visit.place(tuple[datetime, int])

    def read(connection: Connection) -> list[audit.AuditedAction]:
        schema.check_readable(connection)
        return audit.read_actions(connection, since=FIRST_MOMENT, limit=ROWS + 1, before=before)

    actions = await visit.read(read)
    last = actions[ROWS - 1] if len(actions) > ROWS else None
    more = None if last is None else cursor((last.started_at, last.id))
    return visit.page("trail.html", actions=actions[:ROWS], more=more, rows=ROWS)


ROUTES = (page("/audit", trail, name="audit"),)
