"""The commands by name, each with a sentence of help. A command's module is imported when it is used."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

LISTED = {
    "migrate": ("migrate", "Create the tables, or bring them to this version."),
    "run": ("run", "Run relay, consumer and retention in one process: for development and for small services."),
    "console": ("console", "Serve the page for operators on this machine."),
    "relay": ("workers", "Publish the messages that committed transactions added for a destination."),
    "consume": ("workers", "Receive messages and run their handlers, each effect once."),
    "status": (
        "status",
        "Show what needs attention, waiting messages, dead letters, and the processes at work.",
    ),
    "doctor": (
        "doctor",
        "Say whether this installation is safe: what is wrong, why it matters, and the cure. It changes nothing.",
    ),
    "trace": (
        "trace",
        "Show a message's way: when it was added, why it waits, which handlers had it, and what it caused.",
    ),
    "reconcile": ("reconcile", "Prove that what one service published the other has handled."),
    "pause": ("pause", "Hold the relays of a destination, or the consumers of a queue."),
    "resume": ("pause", "Let the relays of a destination, or the consumers of a queue, go on."),
    "audit": ("audit", "List the actions of operators."),
    "handlers": ("handlers", "List the handlers that consumers have registered, or forget those of a queue."),
    "prune": ("prune", "Delete rows older than their retention."),
    "republish": ("republish", "Publish kept messages again, same ids, to one queue: to rebuild a read model."),
    "schema": ("schemas", "Export the schemas of events, and find changes that break consumers."),
    "demo": ("demo", "Take orders, roll some back, deliver messages twice, crash the relay; then count effects."),
    "requests": ("requests", "List the idempotency keys of HTTP requests, or show one: state, lease, status."),
    "waiting": ("waiting", "List messages that wait for a time, make them due at once, or cancel them."),
    "dead": ("dead", "List dead letters, put them back into the outbox, or discard them."),
}
"""For each command its module of `outboxkit.cli`, which has it as a function of its name or as `app`, and its help."""
GROUPS = {
    "Begin": ("demo", "run"),
    "Work": ("migrate", "relay", "consume", "prune"),
    "Look": ("console", "status", "doctor", "trace", "handlers", "requests", "audit", "reconcile"),
    "Repair": ("dead", "waiting", "pause", "resume", "republish"),
    "Events": ("schema",),
}
"""The commands in the order of the help."""
_APP: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None}


class Plain(TyperCommand):
    """A command whose help has a section for each panel, and names no Python types, such as `<bool>`."""

    def get_params(self, ctx: Any) -> Any:
        """The options and arguments."""
        return _without_types(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options and arguments."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if (line := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append(line)
        for title, lines in sections.items():
            with formatter.section(title):
                formatter.write_dl(lines)


class PlainGroup(TyperGroup):
    """A group of commands with such a help."""

    def get_params(self, ctx: Any) -> Any:
        """The options."""
        return _without_types(super().get_params(ctx))


def group(name: str, epilog: str, **commands: Callable[..., None]) -> typer.Typer:
    """The app of a command that has commands of its own."""
    app = typer.Typer(
        cls=PlainGroup, name=name, no_args_is_help=True, help=LISTED[name][1], epilog=f"Exit codes: {epilog}", **_APP
    )
    app.callback()(lambda: None)  # without one, typer takes an app of one command for that command
    for own, command in commands.items():
        first_line, *_ = (command.__doc__ or "").splitlines()
        app.command(own, cls=Plain, short_help=first_line)(command)
    return app


def _without_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        parameter.display_type = lambda ctx: ""  # noqa: ARG005 - as typer calls it
    return parameters


class Listing(Mapping[str, Any]):
    """The commands, each imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        module = import_module(f"outboxkit.cli.{LISTED[name][0]}")
        app: typer.Typer | None = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(**_APP)
            app.command(name, cls=Plain)(getattr(module, name))
        return typer.main.get_command(app)

    def __iter__(self) -> Iterator[str]:
        return iter(LISTED)

    def __len__(self) -> int:
        return len(LISTED)


class Commands(PlainGroup):
    """The group of all commands, which prints its own help without importing one of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = cast("Any", Listing())

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's signature
        """Write the list."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, LISTED[name][1]) for name in names])
