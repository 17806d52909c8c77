"""Dead letters: a list with filters and groups, from which some or all are chosen for a dry run."""

from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from starlette.responses import Response

from outboxkit.console.operations import CHOICES, FILTERS, TEXTS, asked_numbers, asked_selection
from outboxkit.console.visit import Visit, cursor, page
from outboxkit.operators.deadletters import WINDOW, DeadLetters, rules_of
from outboxkit.operators.messages import read_now
from outboxkit.statements.dead import GROUP_COLUMNS

ROWS = 50
RESOLVED: dict[str | None, bool | Literal["only"]] = {None: False, "yes": True, "only": "only"}


async def show_dead(visit: Visit) -> Response:
    """Show a page of dead letters, the newest first, or how many there are of each error, type, handler or key."""
    now = await visit.read(read_now)
    selection = replace(
        asked_selection(visit, now),
        numbers=asked_numbers(visit),
        resolved=RESOLVED[visit.choice("resolved", ("yes", "only"))],
        after=visit.place(tuple[datetime, int]),
    )
    letters, group = DeadLetters(visit.console.engine), visit.choice("group", GROUP_COLUMNS)
    filters = {name: text for name in FILTERS if (text := visit.asked(name)) is not None}
    chosen: dict[str, Any] = {
        "filters": filters, "same": selection.same, "texts": TEXTS, "choices": CHOICES, "rows": ROWS,
        "grouped": GROUP_COLUMNS, "window": WINDOW,
    }  # fmt: skip
    if group is not None:
        groups = await letters.group(selection, group, limit=ROWS, window=WINDOW)
        return visit.page("dead.html", groups=groups.rows, group=group, found=groups, more=cursor(groups.end), **chosen)
    found = await letters.find(selection, limit=ROWS, window=WINDOW)
    last = found.rows[-1] if found.more.value else None
    more = cursor(found.end if last is None else (last.dead_at, last.id))
    rules = rules_of(visit.console.installation.settings)
    refused = {row.id: rules.refusal(row, now) for row in found.rows if row.resolution is None}
    return visit.page("dead.html", groups=(), group=None, found=found, refused=refused, more=more, **chosen)


ROUTES = (page("/dead", show_dead, name="dead"),)
