"""The report of `outboxkit trace`; `--json` prints these names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from outboxkit.errors.wording import in_utc
from outboxkit.operators.trace import SHORTEST, Archive, Clue, Life, lives, selected

DEEPEST = 20
"""Levels of the tree."""
MOST_SHOWN = 50
"""Messages of a key or a story that are shown in full."""


@dataclass(frozen=True)
class Why:
    """A sentence about a message's state, and what repairs it."""

    kind: str
    text: str
    cure: tuple[str, ...]
    database: str


@dataclass(frozen=True)
class Happened:
    """A moment of the timeline."""

    at: datetime | None
    what: str
    text: str
    database: str | None


@dataclass(frozen=True)
class Caused:
    """A message that a handler added, with those that its own handlers added."""

    message_id: str
    type: str | None
    state: str
    caused: tuple["Caused", ...]


@dataclass(frozen=True)
class Traced:
    """One message; `handlers` are those that have handled it, or were there to take it."""

    message_id: str | None
    type: str | None
    key: str | None
    destination: str | None
    queue: str | None
    correlation_id: str | None
    causation_id: str | None
    trace_id: str | None
    state: str
    handled_by: int
    handlers: int
    why: tuple[Why, ...]
    timeline: tuple[Happened, ...]
    caused: tuple[Caused, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """All of it; `more` counts messages that are not shown, `not_searched` has what was not looked at."""

    asked: dict[str, str]
    databases: tuple[str, ...]
    messages: tuple[Traced, ...]
    more: int
    not_searched: tuple[str, ...]
    unknown: tuple[str, ...]


def report_of(clue: Clue, archives: Sequence[Archive]) -> Report:
    """The report on what was found."""
    known = lives(archives)
    all_ = selected(clue, known)
    names = {"message_id": clue.message_id, "key": clue.key, "correlation_id": clue.correlation_id}
    return Report(
        asked={name: value for name, value in names.items() if value is not None},
        databases=tuple(archive.database for archive in archives),
        messages=tuple(_traced(life, known) for life in all_[:MOST_SHOWN]),
        more=len(all_[MOST_SHOWN:]),
        not_searched=tuple(_not_searched(archives)),
        unknown=() if all_ else tuple(_nothing(clue, archives)),
    )


def _traced(life: Life, known: Mapping[str, Life]) -> Traced:
    message = life.message
    return Traced(
        message_id=message.message_id,
        type=message.type,
        key=message.key,
        destination=message.destination,
        queue=message.queue,
        correlation_id=message.correlation_id,
        causation_id=message.causation_id,
        trace_id=message.trace_id,
        state=life.state,
        handled_by=life.handled_by,
        handlers=life.handlers,
        why=tuple(Why(each.kind, each.text, each.cure, each.database) for each in life.reasons),
        timeline=tuple(Happened(each.at, each.what, each.text, each.database) for each in life.timeline),
        caused=_tree(life, known, frozenset([message.message_id or ""])),
        unknown=life.unknown,
    )


def _tree(life: Life, known: Mapping[str, Life], above: frozenset[str]) -> tuple[Caused, ...]:
    """The messages that it caused. Ids are anybody's, so that a circle is possible: it is cut."""
    if len(above) > DEEPEST:
        return ()
    below = [(id_, known[id_]) for id_ in life.caused if id_ in known and id_ not in above]
    return tuple(Caused(id_, each.message.type, each.state, _tree(each, known, above | {id_})) for id_, each in below)


def _not_searched(archives: Sequence[Archive]) -> Iterator[str]:
    for archive in archives:
        for rest in archive.cut.values():
            yield f"{rest} in {archive.database}"


def _nothing(clue: Clue, archives: Sequence[Archive]) -> Iterator[str]:
    """Reasons for which a message may exist although nothing is known of it; its age excludes some."""
    now = max(archive.now for archive in archives)
    yield "whether its transaction has been committed: until then nobody sees it, and after a rollback there is nothing"
    oldest = min((archive.oldest_kept for archive in archives if archive.oldest_kept is not None), default=None)
    if oldest is None:
        yield "whether it was published: OUTBOXKIT_PUBLISHED_RETENTION at the relay keeps published messages"
        yield "whether it waits at the broker: no table has what is in a queue; ask its consumer and `outboxkit doctor`"
    elif clue.begun is None or clue.begun < oldest:
        yield f"whether it was published before {in_utc(oldest)}, at which kept messages begin"
    if any(archive.may_have_forgotten(clue.begun) for archive in archives):
        yield "whether it was handled longer ago than OUTBOXKIT_INBOX_RETENTION"
    if clue.begun is None or now - clue.begun > SHORTEST:
        yield "whether it died longer ago than OUTBOXKIT_DEAD_RETENTION"
    if len(archives) == 1:
        yield "what another service's database has: name it with --also"
