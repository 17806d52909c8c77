"""Dead letters as people read them: a list, and one in full. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Row

import outboxkit
from outboxkit.codec.payloads import plain_payload
from outboxkit.codec.rows import decode_headers
from outboxkit.errors import DecodeError
from outboxkit.errors.wording import in_utc, many, number, printable_name, span
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.deadletters import Refusal, Survey

HEX_BYTES = 64
LABEL = 16
SIGNS = 60
HIDDEN = ("payload", "headers")
UNDECODABLE = "undecodable"
_FRAME = re.compile(r'\s*File "(?P<path>[^"]+)"')
_OURS = str(Path(outboxkit.__file__).parent)
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


def state(row: Row[Any], why: Refusal | None) -> str:
    """The state in a word: how it was resolved, `parked`, `open`, or why a replay would refuse it."""
    if row.resolution is not None:
        return printable_name(row.resolution)
    if row.parked:
        return "parked"
    return "open" if why is None else str(why)


def legend(rows: Sequence[Row[Any]], refused: Sequence[Refusal | None]) -> Iterator[str]:
    """A line of explanation for each state of a list that a replay refuses."""
    reasons = {why for row, why in zip(rows, refused, strict=True) if row.resolution is None and why is not None}
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
    parts = [_traceback(row), _payload_of(row)]
    for part in parts[::-1] if row.reason == UNDECODABLE else parts:
        yield from part


def _traceback(row: Row[Any]) -> Iterator[str]:
    """The traceback, unless all of its frames are the decoder's, with no news in them."""
    lines = row.traceback.splitlines() if row.traceback is not None else []
    if lines and (row.reason != UNDECODABLE or any(map(_is_users, lines))):
        yield "traceback"
        yield from (f"  {printable_name(line)}" for line in lines)


def _payload_of(row: Row[Any]) -> Iterator[str]:
    plain = _plain(row)
    inflated = "" if plain is row.payload else f", {number(len(plain))} inflated"
    yield _line("payload", f"{number(len(row.payload))} bytes{inflated}")
    yield from (f"  {line}" for line in _payload(plain))


def _is_users(line: str) -> bool:
    """Whether a line of a traceback begins a frame of the application, and not one of outboxkit or of a library."""
    frame = _FRAME.match(line)
    return frame is not None and not (frame["path"].startswith(_OURS) or "-packages/" in frame["path"])


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
    for kind, count in survey.kinds:
        part = survey.replayable_of(kind) if replayable else count
        if part:
            side, type_, reason = kind
            yield f"  {number(part)} {printable_name(type_)} ({side}, {printable_name(reason)})"


def refusals(survey: Survey) -> Iterator[str]:
    """Lines about the dead letters that a replay refuses, with the reason, and about stale ones that it takes."""
    for why, count in survey.refusals.items():
        yield f"refused: {number(count)}, {why}: {why.plain}"
    if survey.accepted:
        stale = "they get the time of the replay, and their effects may happen twice"
        yield f"accepted: {number(survey.accepted)}, stale: {stale}"


def behind(survey: Survey) -> Iterator[str]:
    """A line about the keys that the selection parks, if there are any."""
    if survey.keys:
        yield f"parked by them: {many(survey.keys, 'key')}, with {many(survey.waiting, 'waiting message')}"


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
