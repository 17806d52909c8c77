"""The report of `outboxkit trace` as lines for people. Pure."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from outboxkit.cli.trace.report import Caused, Happened, Report, Traced
from outboxkit.cli.wording import many, printable_name
from outboxkit.message import DEFAULT_DESTINATION

LABEL = 14
NARROWEST = 60


def story_lines(report: Report, *, width: int) -> Iterator[str]:
    """The whole report, folded to the width."""
    for label, text in _parts(report):
        start = label.ljust(LABEL)
        inner = len(text) - len(text.lstrip())
        folded = textwrap.wrap(
            start + text,
            max(width, NARROWEST),
            subsequent_indent=" " * (LABEL + inner + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        yield from folded or [""]


def _parts(report: Report) -> Iterator[tuple[str, str]]:
    places = _places(report)
    for name, place in places.items():
        yield f"database{place}", printable_name(name)
    if not report.messages:
        (what, value), *_ = report.asked.items()
        yield "found", f"nothing is known of {what.replace('_', ' ')} {printable_name(value)}"
    for message in report.messages:
        yield "", ""
        yield from _message(message, places)
    if report.more:
        yield "", ""
        yield (
            "more",
            f"{many(report.more, 'message')} not shown: --json has no more of them either; trace one by its id",
        )
    yield from _list("not known", report.unknown)
    yield from _list("not searched", report.not_searched)
    if report.not_searched:
        yield "", "--search 10s looks longer"


def _message(message: Traced, places: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    yield "message", printable_name(message.message_id)
    key = f", key {printable_name(message.key)}" if message.key is not None else ""
    elsewhere = message.destination not in (None, DEFAULT_DESTINATION)
    to = f", to {printable_name(message.destination)}" if elsewhere else ""
    queue = f", for queue {printable_name(message.queue)} alone" if message.queue else ""
    yield "type", f"{printable_name(message.type)}{key}{to}{queue}"
    for label, value in (
        ("correlation", message.correlation_id),
        ("caused by", message.causation_id),
        ("trace", message.trace_id),
    ):
        if value is not None:
            yield label, printable_name(value)
    yield "state", message.state
    for number, why in enumerate(message.why):
        yield "why" * (number == 0), printable_name(why.text) + places.get(why.database, "")
        for cure in why.cure:
            yield "", f"  cure: {printable_name(cure)}"
    yield from _list("timeline", [_moment(each, places) for each in message.timeline])
    yield from _list("caused", list(_tree(message.caused, "")))
    yield from _list("not known", message.unknown)


def _list(label: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(texts):
        yield label * (number == 0), text


def _places(report: Report) -> dict[str, str]:
    """A number for each database behind what it says, if there are several."""
    several = len(report.databases) > 1
    return {name: f" [{number}]" if several else "" for number, name in enumerate(report.databases, 1)}


def _moment(each: Happened, places: Mapping[str, str]) -> str:
    return f"{_written(each.at)}  {printable_name(each.text)}{places.get(each.database or '', '')}"


def _written(at: datetime | None) -> str:
    return "at some time" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def _tree(messages: Sequence[Caused], before: str) -> Iterator[str]:
    for number, each in enumerate(messages, 1):
        is_last = number == len(messages)
        branch, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield f"{before}{branch}{printable_name(each.type)} {printable_name(each.message_id)}: {each.state}"
        yield from _tree(each.caused, before + below)
