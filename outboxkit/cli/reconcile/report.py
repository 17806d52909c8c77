"""The report of `outboxkit reconcile`; `--json` prints these names. The ids of missing messages may be in files."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Self

from outboxkit.errors import ConfigurationError
from outboxkit.errors.wording import shell_word
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.reconciliation import HandlerTally, Reconciled, Terms

FEW = 5
"""Ids of a handler that a command has as options; if there are more, it names a file."""


class MissingIds:
    """Takes the ids of missing messages, whatever their number: beyond a few they are written as they come.

    Args:
        folder: the folder of the files. None: a new temporary folder, made for the first file.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._few: dict[str, list[str]] = {}
        self._files: dict[str, tuple[Path, IO[str]]] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is left, and close the files."""
        self._open.close()

    def add(self, handler: str, id_: str) -> None:
        """Take an id.

        Raises:
            ConfigurationError: the folder cannot be written.
        """
        few = self._few.setdefault(handler, [])
        if len(few) < FEW:
            few.append(id_)
            return
        if handler not in self._files:
            self._files[handler] = self._begin(handler)
            self._files[handler][1].writelines(f"{each}\n" for each in few)
        self._files[handler][1].write(f"{id_}\n")

    def few(self, handler: str) -> list[str]:
        """All ids of a handler, if they are few; else none."""
        return [] if handler in self._files else self._few.get(handler, [])

    def file(self, handler: str) -> str | None:
        """The file with the ids of a handler; None if they are few."""
        return str(self._files[handler][0]) if handler in self._files else None

    def _begin(self, handler: str) -> tuple[Path, IO[str]]:
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="outboxkit-missing-"))
            self._folder.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"[^A-Za-z0-9._-]", "_", handler)[:80]
            path = self._folder / f"{len(self._files) + 1}-{name}.txt"
            return path, self._open.enter_context(path.open("w"))
        except OSError as error:
            raise ConfigurationError(
                f"--save is {str(self._folder)!r}: it cannot be written ({error.strerror}); a folder is accepted"
            ) from None


@dataclass(frozen=True)
class OfHandler:
    """The messages of one handler, by what became of them. If many are missing, their ids are in a file."""

    handler: str
    queues: tuple[str, ...]
    expected: int
    processed: int
    dead: int
    waiting: int
    in_flight: int
    missing: int
    missing_ids: tuple[str, ...]
    missing_file: str | None
    replay: tuple[str, ...]


@dataclass(frozen=True)
class ReconciliationReport:
    """All of it."""

    producer: str
    consumer: str
    since: datetime
    until: datetime
    margin_seconds: float
    published: int
    first: datetime | None
    last: datetime | None
    oldest_kept: datetime | None
    handlers: tuple[OfHandler, ...]
    without_handler: dict[str, int]
    missing: int
    ambiguous_ids: int
    ambiguous: dict[str, int]
    advice: tuple[str, ...]


def reconciliation_report(
    result: Reconciled, terms: Terms, missing: MissingIds, *, producer: str, consumer: str, producer_file: str | None
) -> ReconciliationReport:
    """The report on a result."""
    return ReconciliationReport(
        producer=producer,
        consumer=consumer,
        since=result.since,
        until=result.until,
        margin_seconds=terms.margin.total_seconds(),
        published=result.published,
        first=result.first,
        last=result.last,
        oldest_kept=result.oldest_kept,
        handlers=tuple(
            _of_handler(tally, missing, tuple(_replays(tally, result, terms, missing, producer_file)))
            for tally in result.handlers.values()
        ),
        without_handler=dict(result.without_handler),
        missing=result.missing,
        ambiguous_ids=result.ambiguous_ids,
        ambiguous=result.ambiguous,
        advice=tuple(_advice(result, producer_file)),
    )


def _of_handler(tally: HandlerTally, missing: MissingIds, replay: tuple[str, ...]) -> OfHandler:
    return OfHandler(
        tally.handler,
        tally.queues,
        tally.expected,
        tally.processed,
        tally.dead,
        tally.waiting,
        tally.in_flight,
        tally.missing,
        tuple(missing.few(tally.handler)),
        missing.file(tally.handler),
        replay,
    )


def _replays(
    tally: HandlerTally, result: Reconciled, terms: Terms, missing: MissingIds, producer_file: str | None
) -> Iterator[str]:
    """The command that replays exactly the missing messages of a handler."""
    if not tally.missing:
        return
    queue = tally.queues[0] if tally.queues else "QUEUE"
    parts = ["outboxkit", "replay", "--to-queue", queue, "--handler", tally.handler]
    parts += ["--since", _iso(result.first), "--until", _iso(result.until)]
    if terms.destination != DEFAULT_DESTINATION:
        parts += ["--destination", terms.destination]
    if (file := missing.file(tally.handler)) is not None:
        parts += ["--ids-file", file]
    for id_ in missing.few(tally.handler):
        parts += ["--id", id_]
    if producer_file is not None:
        parts += ["--database-url-file", producer_file]
    yield " ".join(map(shell_word, parts))


def _advice(result: Reconciled, producer_file: str | None) -> Iterator[str]:
    if result.oldest_kept is None:
        yield ("nothing was proven: no published message is kept. Set OUTBOXKIT_PUBLISHED_RETENTION at the relay")
    elif not result.published:
        yield f"nothing was proven: no message of this period is kept; kept ones begin at {_iso(result.oldest_kept)}"
    elif result.oldest_kept > result.since:
        yield f"kept messages begin at {_iso(result.oldest_kept)}: what was published before was not compared"
    for type_, count in sorted(result.without_handler.items()):
        yield f"no handler is known to take {type_!r}: {count} not compared. Name one with --handler and --type"
    for id_, count in result.ambiguous.items():
        yield (
            f"{count} messages with different payloads were published under the id {id_!r}: every handler has had one "
            "of them alone. Give each an id of its own: leave message_id out, or derive it from what tells them apart"
        )
    if result.missing:
        yield (
            "a missing message may still be in its queue, or wait there for its next attempt: the tables cannot tell. "
            "A longer --margin leaves it time. To a handler that gets it twice it is a duplicate"
        )
        if producer_file is None:
            yield "replay publishes from the producer's database: OUTBOXKIT_DATABASE_URL has to name that one"
        if any(tally.missing and not tally.queues for tally in result.handlers.values()):
            yield "QUEUE stands for the handler's queue, which its database does not know"


def _iso(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
