"""Messages: a list with filters, one with its way and what is in it, the search, and keys that wait."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, get_args

from sqlalchemy import Connection
from starlette.exceptions import HTTPException
from starlette.responses import Response

from outboxkit.console.visit import Visit, cursor, page
from outboxkit.errors.figures import number
from outboxkit.operators import messages as reading
from outboxkit.operators.deadletters import DeadLetters, Selection
from outboxkit.operators.messages import Choice, MessagePage
from outboxkit.operators.sql.listing import WaitingState, walks_of
from outboxkit.operators.trace import Caused, MessageTrace, Trace, TraceQuery, trace_messages

ROWS = 50
MOST_TRACEBACKS = 5
IDENTITIES = ("message_id", "key", "correlation_id")
STATES: tuple[WaitingState, ...] = get_args(WaitingState)
FILTERS = ("type", "key", "destination", "correlation_id", "prefix")
_OF_COLUMN: dict[str, Any] = {"position": int, "published_at": datetime, "due_at": datetime}


async def messages(visit: Visit) -> Response:
    """Show a page of messages that wait, or that are kept."""
    kept = visit.asked("place") == "kept"
    state: Any = None if kept else visit.choice("state", STATES)
    ages = {name: visit.age(name) for name in ("older", "newer")}
    texts = {name: visit.asked(name) for name in FILTERS}

    def read(connection: Connection) -> MessagePage:
        now = reading.read_now(connection)
        before, since = (None if age is None else now - age for age in ages.values())
        filter_ = Choice(kept=kept, state=state, before=before, since=since, **texts)
        order = walks_of(filter_)[0].order
        kinds: Any = tuple[*(_OF_COLUMN.get(name, str) for name in order)]  # type: ignore[misc]
        return reading.read_page(connection, filter_, after=visit.place(kinds), limit=ROWS)

    found = await visit.read(read)
    return visit.page(
        "messages.html",
        found=found,
        kept=kept,
        state=state,
        states=STATES,
        more=cursor(found.after),
        bounds=_bounds(found, kept=kept, texts=texts, state=state),
        is_filtered=any(visit.asked(name) for name in (*FILTERS, "state", "older", "newer")),
    )


def _bounds(found: MessagePage, *, kept: bool, texts: dict[str, str | None], state: str | None) -> str:
    """How the list was bounded, in a sentence or two."""
    order = (
        "The last published first"
        if kept
        else "By time of becoming due"
        if state not in (None, "ready")
        else "The oldest first"
    )
    text = f"{order}, {ROWS} on a page."
    if found.is_searched:
        text += f" {number(reading.WINDOW)} rows were searched for these; further ones may match."
    if texts["key"] is not None and state is None and not kept:
        text += " Delayed messages of a key are found by their state alone."
    return text


async def message(visit: Visit) -> Response:
    """Show one message: its way, what caused it and what it caused, and with the right what is in it."""
    id_ = visit.asked("id")
    if id_ is None:
        raise HTTPException(400, "No id was given: open a message from a list, or search for it.")
    trace = await _trace(visit, TraceQuery(message_id=id_))
    content = None
    if visit.may("payload") and trace.messages:
        content = await visit.read(reading.read_content, id_)
    letters: Sequence[Any] = ()
    failures: Sequence[Any] = ()
    if any(each.kind == "dead" for one in trace.messages for each in one.why):
        dead, chosen = DeadLetters(visit.console.engine), Selection(message_ids=(id_,))
        letters = (await dead.find(chosen, limit=ROWS)).rows
        if visit.may("payload"):
            failures = [each for each in await dead.read(chosen, limit=MOST_TRACEBACKS) if each.traceback]
    one = next(iter(trace.messages), None)
    tree, flow = ((), None) if one is None else await _tree(visit, one)
    shown: dict[str, Any] = {}
    if content is not None:
        redaction = visit.console.redaction
        text, remark = redaction.payload(content.type or "", content.payload, content.content_encoding)
        shown = {"text": text, "remark": remark, "headers": redaction.headers(content.headers)}
    return visit.page(
        "message.html",
        asked=id_,
        trace=trace,
        one=one,
        tree=tree,
        flow=flow,
        content=content,
        letters=letters,
        failures=failures,
        shown=shown,
    )


async def _tree(visit: Visit, one: MessageTrace) -> tuple[Sequence[tuple[int, MessageTrace | Caused]], Trace | None]:
    """The tree of causes that a message is in, with the depth of each, and the trace that it is of."""
    if not one.caused and not one.causation_id:
        return (), None
    flow = await _trace(visit, TraceQuery(correlation_id=one.correlation_id or one.message_id))
    rows, known = list[tuple[int, MessageTrace | Caused]](), {each.message_id for each in flow.messages}
    if one.message_id not in known:  # of a large flow the oldest are shown, and this one
        flow = replace(flow, messages=(*flow.messages, one))
    for depth, each in flow.tree:
        rows.append((depth, each))
        if each.message_id == one.message_id:
            rows += [(depth + 1, child) for child in one.caused if child.message_id not in known]  # not shown else
    return rows, flow


async def search(visit: Visit) -> Response:
    """Find messages by an id, a key or a correlation id, in this order; or by the one that a link names."""
    asked, only = visit.asked("q"), visit.choice("by", IDENTITIES)
    if asked is not None and only is None:  # it was typed
        asked = asked.strip() or None
    if asked is None:
        return visit.page("search.html", asked="", by="", trace=None)
    for by in IDENTITIES if only is None else (only,):
        query: dict[str, Any] = {by: asked}
        trace = await _trace(visit, TraceQuery(**query))
        if trace.messages and by == "message_id":
            return visit.back_to("message", id=asked)
        if trace.messages:
            break
    return visit.page("search.html", asked=asked, by=by.replace("_", " "), trace=trace)


async def _trace(visit: Visit, query: TraceQuery) -> Trace:
    engines = [visit.console.engine, *visit.console.others]
    return await trace_messages(engines, query, hides_errors=not visit.may("payload"))


async def keys(visit: Visit) -> Response:
    """Show keys whose messages wait for one of them; with a state, those that are parked or held."""
    state = visit.choice("state", ("parked", "held"))
    found = [key for key in await visit.read(reading.read_keys) if state in (None, key.state)]
    return visit.page("keys.html", keys=found, state=state, most=reading.MOST_KEYS)


ROUTES = (page("/messages", messages), page("/message", message), page("/search", search), page("/keys", keys))
