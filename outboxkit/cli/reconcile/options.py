"""The options of `outboxkit reconcile`: two databases, and what is compared."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer

from outboxkit.cli.options import duration, point_in_time
from outboxkit.errors import ConfigurationError
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.reconciliation import Terms
from outboxkit.runtime import compose
from outboxkit.runtime.outage import utc_now
from outboxkit.runtime.settings import Settings, load, unknown_variables

Producer = Annotated[
    str | None,
    typer.Option(
        "--producer", metavar="URL", help="The database of the service that published; else OUTBOXKIT_DATABASE_URL."
    ),
]
ProducerFile = Annotated[
    str | None, typer.Option("--producer-file", metavar="FILE", help="A file that holds this URL.")
]
Consumer = Annotated[
    str | None,
    typer.Option(
        "--consumer", metavar="URL", help="The database of the service that handles; else OUTBOXKIT_DATABASE_URL."
    ),
]
ConsumerFile = Annotated[
    str | None, typer.Option("--consumer-file", metavar="FILE", help="A file that holds this URL.")
]
Since = Annotated[
    str,
    typer.Option("--since", metavar="WHEN", help="Messages published since: 2026-03-01T12:00Z, or 1d for a day ago."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Messages published before. As --since.")]
Margin = Annotated[
    str, typer.Option("--margin", metavar="DURATION", help="Messages published so shortly ago may be in flight.")
]
Handlers = Annotated[
    list[str] | None, typer.Option("--handler", metavar="NAME", help="Only this handler; may be repeated.")
]
Types = Annotated[
    list[str] | None, typer.Option("--type", metavar="NAME", help="Only messages of this type; may be repeated.")
]
Destination = Annotated[
    str, typer.Option("--destination", metavar="NAME", help="Messages that went to this destination.")
]
Save = Annotated[
    str | None, typer.Option("--save", metavar="FOLDER", help="The folder of the files with ids of missing messages.")
]


@dataclass(frozen=True, slots=True)
class Databases:
    """The URLs of the two databases, and the file that holds the producer's, if one does."""

    producer: str
    consumer: str
    producer_file: str | None


def _databases(
    producer: str | None, producer_file: str | None, consumer: str | None, consumer_file: str | None
) -> Databases:
    for line in unknown_variables():
        typer.echo(f"outboxkit: {line}", err=True)
    return Databases(
        compose.database_url(_settings("producer", producer, producer_file)),
        compose.database_url(_settings("consumer", consumer, consumer_file)),
        producer_file,
    )


def _settings(side: str, url: str | None, file: str | None) -> Settings:
    try:
        return load({"database_url": url, "database_url_file": file})
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("--database-url", f"--{side}")) from error.__cause__


def with_databases(command: Callable[..., None]) -> Callable[..., None]:
    """Turn `command(databases, ...)` into one that takes the options of two databases instead."""

    def with_options(
        *,
        producer: Producer = None,
        producer_file: ProducerFile = None,
        consumer: Consumer = None,
        consumer_file: ConsumerFile = None,
        **own: Any,
    ) -> None:
        command(_databases(producer, producer_file, consumer, consumer_file), **own)

    return _replacing(command, with_options)


def with_terms(command: Callable[..., None]) -> Callable[..., None]:
    """Turn `command(databases, terms, ...)` into one that takes the options of the terms instead."""

    def with_options(
        databases: Databases,
        *,
        since: Since = "1d",
        until: Until = None,
        margin: Margin = "1m",
        handlers: Handlers = None,
        types: Types = None,
        destination_: Destination = DEFAULT_DESTINATION,
        **own: Any,
    ) -> None:
        now = utc_now()
        first, last = point_in_time("--since", since, now), point_in_time("--until", until, now)
        if first is not None and first >= min(last or now, now):
            raise ConfigurationError(
                f"--since is {since}: a past time before --until is accepted, such as 1d or 2026-03-01T12:00Z"
            )
        terms = Terms(
            since=first or now,
            until=last or now + timedelta(days=1),  # the database's clock may be ahead; it ends at its own present time
            margin=duration("--margin", margin),
            handlers=tuple(dict.fromkeys(handlers or ())),
            types=tuple(dict.fromkeys(types or ())),
            destination=destination_,
        )
        command(databases, terms, **own)

    return _replacing(command, with_options)


def _replacing(command: Callable[..., None], wrapper: Callable[..., None]) -> Callable[..., None]:
    """The wrapper with the options of both: the command's first parameters are made from the wrapper's."""
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [each for each in inspect.signature(command).parameters.values() if each.kind is kind]
    new = [
        each
        for each in inspect.signature(wrapper).parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    wrapper.__signature__ = inspect.Signature([*new, *own])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in (*new, *own)}
    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    return wrapper
