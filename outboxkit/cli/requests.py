"""`outboxkit requests`: the idempotency keys of HTTP requests."""

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from outboxkit.cli.commands import group
from outboxkit.cli.connections import in_transaction
from outboxkit.cli.options import AsJson, Limit, with_options
from outboxkit.cli.wording import print_json, print_table
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable
from outboxkit.errors.figures import in_utc, number
from outboxkit.exit_codes import FAILED
from outboxkit.operators.requests import STATES, WINDOW, KnownRequest, find_requests, list_requests
from outboxkit.runtime.settings import Settings

COLUMNS = {
    **dict.fromkeys(("key", "created", "expires"), "whole"),
    **dict.fromkeys(("scope", "caller", "state"), "folded"),
    "status": "number",
}

Key = Annotated[str, typer.Argument(metavar="KEY", help="The idempotency key.")]
Scope = Annotated[
    str | None, typer.Option("--scope", metavar="NAME", help="Only this operation, such as 'POST /orders'.")
]
State = Annotated[str | None, typer.Option("--state", metavar="processing|done", help="Only this state.")]


@with_options()
def list_keys(
    settings: Settings, *, scope: Scope = None, state: State = None, limit: Limit = 50, as_json: AsJson = False
) -> None:
    """List requests with an idempotency key, those that expire last first.

    Nothing of a request or of its answer's body is shown.

    Example: outboxkit requests list --state processing
    """
    if state not in (None, *STATES):
        raise ConfigurationError(f"--state is {printable(repr(state), 60)}: {' or '.join(STATES)} is accepted")
    found = in_transaction(
        *(settings, "requests", lambda connection: list_requests(connection, scope=scope, state=state, limit=limit)),
        only_reads=True,
    )
    if as_json:
        print_json(found)
    elif not found:
        typer.echo(
            "no request is remembered"
            if scope is None and state is None
            else f"no request matches among the {number(WINDOW)} that expire last"
        )
    else:
        print_table(COLUMNS, map(_cells, found))


@with_options()
def show_key(settings: Settings, key: Key, *, as_json: AsJson = False) -> None:
    """Show the requests with this key: state, lease, the status of the answer, and until when it is kept.

    Exit 1 if there is none.

    Example: outboxkit requests show 5b0c1f3e-order-7
    """
    found = in_transaction(settings, "requests", lambda connection: find_requests(connection, key), only_reads=True)
    if as_json:
        print_json(found)
    for index, each in enumerate([] if as_json else found):
        typer.echo(("\n" if index else "") + "\n".join(_lines(each)))
    if not found:
        typer.echo(
            f"no request has the key {printable(repr(key), 120)}: it was never taken, or it has expired", err=True
        )
        sys.exit(FAILED)


def _cells(request: KnownRequest) -> tuple[str, ...]:
    status = "-" if request.response_status is None else str(request.response_status)
    times = (in_utc(request.created_at), in_utc(request.expires_at))
    return request.key, *times, request.scope, request.principal or "-", _state(request), status


def _state(request: KnownRequest) -> str:
    lease = "" if request.locked_until is None else f", leased until {in_utc(request.locked_until)}"
    return f"{request.state}{lease}"


def _lines(request: KnownRequest) -> Iterator[str]:
    status = None if request.response_status is None else f"status {request.response_status}"
    again = "" if request.state == "expired" else "; a repetition gets it again"
    for label, text in (
        ("key", request.key),
        ("scope", request.scope),
        ("caller", request.principal or "anybody: the key is nobody's own"),
        ("state", _state(request)),
        ("answer", status and status + again),
        ("taken", in_utc(request.created_at)),
        ("kept until", in_utc(request.expires_at)),
    ):
        if text is not None:
            yield label.ljust(14) + printable(text)


app = group(
    "requests",
    "0 done, 1 failed or nothing known, 2 wrong usage or settings.",
    list=list_keys,
    show=show_key,
)
