"""Relays, consumers and retentions: which are there, and which are paused; pausing them, and letting them go on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection
from starlette.exceptions import HTTPException
from starlette.responses import Response

from outboxkit import schema, statements
from outboxkit.console.visit import Visit, duration_of, page
from outboxkit.errors import ConfigurationError
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.findings import LIMITS
from outboxkit.operators.holding import Holding, read_holding
from outboxkit.operators.messages import read_now
from outboxkit.operators.pausing import pause_process, resume_process
from outboxkit.runtime import pauses
from outboxkit.runtime.pauses import Pause
from outboxkit.runtime.workers import CONSUMER, RELAY, RETENTION, KnownWorker, read_workers
from outboxkit.statements.dialects import is_server

MOST_GROUPS = 200
"""Destinations and queues that are shown."""


@dataclass
class WorkerGroup:
    """The relays of a destination, the consumers of a queue, or all retentions, and who keeps their pause."""

    kind: str
    name: str
    workers: list[KnownWorker] = field(default_factory=list)
    pause: Pause | None = None
    holding: Holding | None = None

    def lasts(self, now: datetime) -> str:
        """The rest of its pause in minutes, as the form takes it; empty without a pause that ends."""
        if self.pause is None or self.pause.until is None:
            return ""
        return f"{max(1, -((now - self.pause.until) // timedelta(minutes=1)))}m"


async def workers(visit: Visit) -> Response:
    """Show the workers by what they work on."""
    groups, now = await visit.read(_groups), await visit.read(read_now)
    skew = LIMITS.skew.total_seconds()
    return visit.page(
        "workers.html",
        groups=groups[:MOST_GROUPS],
        more=len(groups) > MOST_GROUPS,
        skew=skew,
        now=now,
        is_server=is_server(visit.console.engine.dialect.name),
    )


def _groups(connection: Connection) -> Sequence[WorkerGroup]:
    schema.check_readable(connection)
    groups = {(RELAY, DEFAULT_DESTINATION): WorkerGroup(RELAY, DEFAULT_DESTINATION)}

    def group(kind: str, name: str) -> WorkerGroup:
        return groups.setdefault((kind, name), WorkerGroup(kind, name))

    for row in connection.execute(statements.handlers.of_all_queues()):
        group(CONSUMER, row.queue)
    for worker in read_workers(connection):
        group(worker.kind, worker.name).workers.append(worker)
    held = pauses.read_pauses(connection)
    for pause in held:
        group(pause.process, pause.name).pause = pause
    for holding in read_holding(connection, held):
        group(holding.process, holding.name).holding = holding
    kinds = (RELAY, CONSUMER, RETENTION)
    return sorted(groups.values(), key=lambda each: (kinds.index(each.kind), each.name))


async def pause_workers(visit: Visit) -> Response:
    """Pause the relays of a destination, or the consumers of a queue."""
    kind, name, why = visit.sent("kind"), visit.sent("name"), visit.sent("why")
    lasts = duration_of("for", visit.sent("for"))
    try:
        await visit.write(pause_process, kind, name, why=why, by=visit.access.user, lasts=lasts)
    except ConfigurationError as error:
        raise HTTPException(400, f"Nothing was paused: {error}.") from None
    return visit.back_to("workers")


async def resume_workers(visit: Visit) -> Response:
    """Let them go on."""
    await visit.write(resume_process, visit.sent("kind"), visit.sent("name"), by=visit.access.user)
    return visit.back_to("workers")


ROUTES = (
    page("/workers", workers),
    page("/workers/pause", pause_workers, name="pause", methods=("POST",)),
    page("/workers/resume", resume_workers, name="resume", methods=("POST",)),
)
