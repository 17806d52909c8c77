"""`outboxkit dead`: list dead letters, put them back, or discard them."""

import typer

from outboxkit.cli.dead import reading, resolving
from outboxkit.cli.listing import Plain, PlainGroup

app = typer.Typer(
    cls=PlainGroup,
    name="dead",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List dead letters, put them back into the outbox, or discard them.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 part of it could not be done.",
)
for name, command in (
    ("list", reading.list_),
    ("show", reading.show),
    ("replay", resolving.replay),
    ("discard", resolving.discard),
):
    first_line, *_ = (command.__doc__ or "").splitlines()
    app.command(name, cls=Plain, short_help=first_line)(command)
