"""`outboxkit console`: the page for operators, on this machine alone."""

import asyncio
from typing import Annotated

import typer

from outboxkit.cli.connections import connected
from outboxkit.cli.options import Also, By, url_of_option, with_options
from outboxkit.cli.workers import run_service
from outboxkit.operators import audit
from outboxkit.operators.doctor.examine import examine_database
from outboxkit.operators.doctor.installation import Installation
from outboxkit.runtime.settings import Settings

PORT = 8321

Port = Annotated[
    int,
    typer.Option(
        "--port", metavar="PORT", min=0, max=65535, show_default=True, help="Of 127.0.0.1; 0 is any free one."
    ),
]
Payload = Annotated[bool, typer.Option("--payload", help="Show what is in messages: payloads and headers.")]
Operate = Annotated[bool, typer.Option("--operate", help="Allow what changes something.")]


@with_options()
def console(
    settings: Settings, *, port: Port = PORT, payload: Payload = False, operate: Operate = False, also: Also = None,
    by: By = None,
) -> None:  # fmt: skip
    """Serve the page for operators on this machine, until Ctrl-C. Open the link that it prints, which works once.

    It only reads, without payloads, unless an option says otherwise.

    Example: outboxkit console --payload
    """
    from outboxkit.console import serving  # noqa: PLC0415 - an extra

    page = serving.serve(
        settings,
        port=port,
        user=by or audit.system_user(),
        may=("read", *(("payload",) if payload else ()), *(("operate",) if operate else ())),
        also=[url_of_option("--also", value) for value in also or []],
        say=lambda link: typer.echo(f"The console is at {link}\nThe link works once. Ctrl-C ends the console."),
    )

    async def service(stop: asyncio.Event) -> int:
        await _warn(settings)
        await page(stop)
        return 0

    run_service(settings, service)


async def _warn(settings: Settings) -> None:
    """Say why the pages will have nothing to show, if that is so."""
    async with connected(settings.database_url.get_secret_value(), "console") as engine:
        report = await examine_database(Installation(settings, engine), checks=())
    for each in report.findings:
        typer.echo(f"outboxkit: {each.what} {each.cure}", err=True)
