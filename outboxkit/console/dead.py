"""Dead letters: a list with filters and groups, from which some or all are chosen for a dry run."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import Response

from outboxkit.console.operations import FILTERS, TEXTS, asked_numbers, asked_selection
from outboxkit.console.visit import Visit, decoded, page
from outboxkit.operators.deadletters import REASONS, SIDES, WINDOW, DeadLetters, ReplayRules
from outboxkit.operators.messages import read_now
from outboxkit.statements.dead import GROUP_COLUMNS, Place

ROWS = 50
CHOICES = {"side": SIDES, "reason": REASONS}
"""Filters that have few values."""


async def show_dead(visit: Visit) -> Response:
    """Show a page of dead letters, the newest first, or how many there are of each error, type, handler or key."""
    after, now = visit.asked("after"), await visit.read(read_now)
    refusal = "This link to further rows cannot be read."
    selection = replace(
        asked_selection(visit, now),
        numbers=asked_numbers(visit),
        resolved=visit.asked("resolved") == "yes",
        after=None if after is None else decoded(after, tuple[datetime, int], refusal),
    )
    letters, group = DeadLetters(visit.console.engine), visit.asked("group")
    filters = {name: text for name in FILTERS if (text := visit.asked(name)) is not None}
    chosen: dict[str, Any] = {
        "filters": filters, "same": selection.same, "texts": TEXTS, "choices": CHOICES, "rows": ROWS,
        "grouped": GROUP_COLUMNS, "window": WINDOW,
    }  # fmt: skip
    if group in GROUP_COLUMNS:
        groups = await letters.group(selection, group, limit=ROWS, window=WINDOW)
        return visit.page(
            "dead.html", groups=groups.rows, group=group, found=groups, more=_cursor(groups.end), **chosen
        )
    found = await letters.find(selection, limit=ROWS, window=WINDOW)
    last = found.rows[-1] if found.more.value else None
    more = _cursor(found.end if last is None else (last.dead_at, last.id))
    settings = visit.console.installation.settings
    rules = ReplayRules(settings.inbox_retention, has_readers=bool(settings.readers))
    refused = {row.id: rules.refusal(row, now) for row in found.rows if row.resolution is None}
    return visit.page("dead.html", groups=(), group=None, found=found, refused=refused, more=more, **chosen)


def _cursor(place: Place | None) -> str | None:
    return None if place is None else msgspec.json.encode(place).decode()


ROUTES = (page("/dead", show_dead, name="dead"),)
