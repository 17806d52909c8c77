"""The audit trail: what operators have done, the newest first."""

from datetime import datetime

import msgspec
from sqlalchemy import Connection
from starlette.responses import Response

from outboxkit import schema
from outboxkit.console.visit import Visit, decoded, page
from outboxkit.message import FIRST_MOMENT
from outboxkit.operators import audit

ROWS = 50


async def trail(visit: Visit) -> Response:
    """Show a page of actions."""
    after = visit.asked("after")
    refusal = "This link to further rows cannot be read."
    before = None if after is None else decoded(after, tuple[datetime, int], refusal)

    def read(connection: Connection) -> list[audit.AuditedAction]:
        schema.check_readable(connection)
        return audit.read_actions(connection, since=FIRST_MOMENT, limit=ROWS + 1, before=before)

    actions = await visit.read(read)
    more = None
    if len(actions) > ROWS:
        more = msgspec.json.encode((actions[ROWS - 1].started_at, actions[ROWS - 1].id)).decode()
    return visit.page("trail.html", actions=actions[:ROWS], more=more, rows=ROWS)


ROUTES = (page("/audit", trail, name="audit"),)
