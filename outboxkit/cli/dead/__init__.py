"""`outboxkit dead`: look at what was given up on, put it back, or discard it."""

import typer

from outboxkit.cli.dead import reading, resolving
from outboxkit.cli.options import Plain, PlainGroup

app = typer.Typer(
    cls=PlainGroup,
    name="dead",
    no_args_is_help=True,
    add_completion=False,
    help="Look at what was given up on, put it back into the outbox, or discard it.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 part of it could not be done.",
)
app.command("list", cls=Plain)(reading.list_)
for command in (reading.show, resolving.replay, resolving.discard):
    app.command(cls=Plain)(command)
