"""`outboxkit audit list`: the actions of operators."""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import msgspec
import typer

from outboxkit.cli.commands import group
from outboxkit.cli.connections import in_transaction
from outboxkit.cli.options import AsJson, Limit, moment_option, point_in_time, with_options
from outboxkit.cli.wording import print_json, print_table
from outboxkit.errors.figures import in_utc, number
from outboxkit.operators import audit
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import Settings

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = {
    "when": "whole",
    "action": "whole",
    "count": "number",
    "by": "folded",
    "result": "folded",
    "filter": "folded",
}

Since = Annotated[str | None, moment_option("--since", "Only actions that began since")]


@with_options()
def list_actions(settings: Settings, *, since: Since = None, limit: Limit = 50, as_json: AsJson = False) -> None:
    """List the actions of operators, the newest first: pauses, replays, discards, prunes by hand.

    An action without a result is running, or was killed. For dead letters, the count is right even then.

    Example: outboxkit audit list --since 7d
    """
    begin = point_in_time("--since", since, utc_now()) or BEGINNING
    actions = in_transaction(settings, "audit", partial(audit.read_actions, since=begin, limit=limit), only_reads=True)
    if as_json:
        print_json(actions)
    elif not actions:
        typer.echo("no action" if since is None else f"no action since {since}")
    else:
        print_table(COLUMNS, map(_cells, actions))


def _cells(one: audit.AuditedAction) -> tuple[str, ...]:
    filter_ = msgspec.json.encode(one.filter).decode()
    return in_utc(one.started_at), one.action, number(one.count), one.operator, one.result or "not ended", filter_


app = group(
    "audit",
    "0 done, 1 failed, 2 wrong usage or settings. Example: outboxkit audit list --since 7d",
    list=list_actions,
)
