"""Dead letters as people read them: a list, and one in full. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row

from outboxkit.codec.payloads import plain_payload
from outboxkit.codec.rows import decode_headers
from outboxkit.errors import DecodeError
from outboxkit.errors.figures import in_utc, number, printable_name, span
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.deadletters import Refusal, Survey

HEX_BYTES = 64
LABEL = 16
SIGNS = 60
HIDDEN = ("payload", "headers")
COLUMNS = {
    "no.": "number",
    "message id": "whole",
    **dict.fromkeys(("type", "key", "side", "reason"), "folded"),
    **dict.fromkeys(("attempts", "age"), "number"),
    "state": "folded",
}
CONTENT = ("content_type", "content_encoding", "created_at", "topic", "correlation_id", "causation_id")


def cells(row: Row[Any], why: Refusal | None, now: datetime) -> tuple[str, ...]:
    """The line of a dead letter in the list."""
    age = span(max((now - row.dead_at).total_seconds(), 0))
    texts = (_cut(text) for text in (row.message_id, row.type, row.key, _side(row), row.reason))
    return str(row.id), *texts, str(row.attempts), age, state(row, why)


def group_cells(row: Row[Any]) -> tuple[str, ...]:
    """The line of a group."""
    return number(row.rows), in_utc(row.first), in_utc(row.last), str(row.example), row.value or "-"


def state(row: Row[Any], why: Refusal | None) -> str:
    """The state in a word: how it was resolved, `parked`, `open`, or why a replay would refuse it."""
    if row.resolution is not None:
        return printable_name(row.resolution)
    if row.parked:
        return "parked"
    return "open" if why is None else str(why)


def legend(rows: Sequence[tuple[Row[Any], Refusal | None]]) -> Iterator[str]:
    """A line of explanation for each state of a list that a replay refuses."""
    reasons = {why for row, why in rows if row.resolution is None and why is not None}
    for why in Refusal:
        if why in reasons:
            yield f"{why}: {why.plain}"


def one(row: Row[Any], why: Refusal | None, now: datetime) -> Iterator[str]:
    """One dead letter in full, a line for each fact."""
    yield f"dead letter {row.id} of the {row.side}: {printable_name(row.reason)}"
    for label, text in (
        ("message id", row.message_id),
        ("type", row.type),
        ("version", str(row.version) if row.version != 1 else None),
        ("key", row.key),
        ("destination", _elsewhere(row)),
        ("reply", row.reply),
        ("queue", row.queue),
        ("handler", row.handler),
        ("error", row.error),
    ):
        if text is not None:
            yield _line(label, printable_name(text))
    yield _line("attempts", number(row.attempts))
    if row.first_failed_at is not None:
        yield _line("first failed", in_utc(row.first_failed_at))
    yield _line("dead since", f"{in_utc(row.dead_at)}, {span(max((now - row.dead_at).total_seconds(), 0))} ago")
    if row.position is not None:
        yield _line("position", str(row.position))
    if row.parked:
        yield _line("parked", "yes: later messages of its key wait until it is replayed or discarded")
    if row.resolution is None:
        yield _line("replay", _replay(row, why))
    yield _line("audit", audit(row) or "open: neither replayed nor discarded")
    yield from _content(row)


def _content(row: Row[Any]) -> Iterator[str]:
    for name in CONTENT:
        if (value := getattr(row, name)) is not None:
            yield _line(name.replace("_", " "), in_utc(value) if isinstance(value, datetime) else printable_name(value))
    for name, value in headers(row.headers).items():
        yield _line("header", f"{printable_name(name)}: {printable_name(str(value))}")
    plain = _plain(row)
    inflated = "" if plain is row.payload else f", {number(len(plain))} inflated"
    yield _line("payload", f"{number(len(row.payload))} bytes{inflated}")
    yield from (f"  {line}" for line in _payload(plain))
    if row.traceback is not None:
        yield "traceback"
        yield from (f"  {printable_name(line)}" for line in row.traceback.splitlines())


def audit(row: Row[Any]) -> str | None:
    """The resolution, by whom and when; None for an open one."""
    if row.resolution is None:
        return None
    return f"{row.resolution} by {printable_name(row.resolved_by)} at {in_utc(row.resolved_at)}"


def listed(row: Row[Any], why: Refusal | None) -> dict[str, Any]:
    """The columns of the list, for JSON, and as `refused` the reason for which a replay would leave it as it is."""
    columns = {name: value for name, value in row._mapping.items() if name not in HIDDEN}  # noqa: SLF001 - its public view
    return columns | {"refused": why if row.resolution is None else None}


def detailed(row: Row[Any], why: Refusal | None) -> dict[str, Any]:
    """All columns, for JSON. The payload, inflated, is `payload` if it is text, else it is in `payload_base64`."""
    text = _text(_plain(row))
    payload = {"payload_base64": row.payload} if text is None else {"payload": text}
    return listed(row, why) | {"headers": headers(row.headers), "payload_bytes": len(row.payload)} | payload


def kinds(survey: Survey, *, replayable: bool) -> Iterator[str]:
    """A line for each kind of a selection: how many there are, or how many can be replayed."""
    for (side, type_, reason), count, left in survey.kinds:
        if part := left if replayable else count:
            yield f"  {number(part)} {printable_name(type_)} ({side}, {printable_name(reason)})"


def refusals(survey: Survey) -> Iterator[str]:
    """Lines about the dead letters that a replay refuses, with the reason, and about stale ones that it takes."""
    for why, count in survey.refusals.items():
        yield f"refused: {number(count)}, {why}: {why.plain}"
    if survey.accepted:
        stale = "they get the time of the replay, and their effects may happen twice"
        yield f"accepted: {number(survey.accepted)}, stale: {stale}"


def headers(stored: bytes) -> Mapping[str, object]:
    """The headers; stored bytes that cannot be decoded are shown as they are."""
    try:
        return decode_headers(stored)
    except (ValueError, RecursionError):
        return {"(unreadable)": repr(stored[:HEX_BYTES])}


def _side(row: Row[Any]) -> str:
    """The outbox with its destination, unless that is `default`, or the inbox with its queue and handler."""
    where = ", ".join(name for name in (_elsewhere(row), row.queue, row.handler) if name)
    return f"{row.side}: {where}" if where else str(row.side)


def _elsewhere(row: Row[Any]) -> str | None:
    return None if row.destination == DEFAULT_DESTINATION else str(row.destination)


def _replay(row: Row[Any], why: Refusal | None) -> str:
    if why is not None:
        return f"{why}: {why.plain}"
    if row.side == "outbox":
        return "goes back to its place in the outbox"
    return f"goes back to its queue, for {'all handlers' if row.handler is None else 'this handler'}"


def _payload(payload: bytes) -> Iterator[str]:
    text = _text(payload)
    if text is None:
        yield payload[:HEX_BYTES].hex(" ") + (" …" if len(payload) > HEX_BYTES else "")
        return
    with suppress(msgspec.DecodeError, RecursionError):
        text = msgspec.json.format(payload, indent=2).decode()
    yield from (printable_name(line) for line in text.split("\n"))


def _plain(row: Row[Any]) -> bytes:
    """The payload, inflated if it is compressed and can be inflated; else as it is stored."""
    try:
        return plain_payload(row.payload, row.content_encoding)
    except DecodeError:
        payload: bytes = row.payload
        return payload


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _line(label: str, text: str) -> str:
    return label.ljust(LABEL) + text


def _cut(text: str | None) -> str:
    whole = printable_name(text)
    return whole if len(whole) <= SIGNS else whole[: SIGNS - 1] + "…"
