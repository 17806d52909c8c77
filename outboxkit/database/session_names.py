"""The names of outboxkit's sessions, by which doctor, status and trace know its processes. Pure.

While a batch of messages is handled, a consumer's name ends with a mark.
"""

import re
from collections.abc import Sequence

from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.statements.inbox import MARK, NAME_BYTES

OURS = "outboxkit "
"""The begin of the name of every session of outboxkit's own processes."""
RELAY_SESSION, CONSUMER_SESSION, RETENTION_SESSION = "outboxkit relay", "outboxkit consumer", "outboxkit retention"
RELAY_LISTENER = f"{RELAY_SESSION} listener"
"""The session on which an idle relay of the destination `default` listens."""
_SEPARATOR = ", "


def session_name(process: str, names: Sequence[str] = ()) -> str:
    """The name of a process's sessions: the process, and the destination or the queues that it works for."""
    return _ascii(" ".join((process, _SEPARATOR.join(names))).rstrip())[:NAME_BYTES]


def relay_name(destination: str) -> str:
    """The `application_name` of a relay's sessions: with its destination, unless that is the broker."""
    return session_name(RELAY_SESSION, () if destination == DEFAULT_DESTINATION else (destination,))


def is_of_consumer(session: str | None) -> bool:
    """Whether a session of this name is a consumer's."""
    return (session or "").startswith(f"{CONSUMER_SESSION} ")


def without_mark(session: str) -> str:
    """The name of a session, in a batch as before it."""
    return session.removesuffix(MARK)


def queues_of(session: str) -> str:
    """The queues in the name of a consumer's session, cut off if they are long."""
    return without_mark(session).removeprefix(f"{CONSUMER_SESSION} ")


def may_be_of_queue(session: str, queue: str) -> bool:
    """Whether a session of this name may be that of the queue's consumer."""
    if not is_of_consumer(session):
        return False
    name, is_cut = _ascii(queue), len(without_mark(session)) >= NAME_BYTES
    shown = {queues_of(session), session.removeprefix(f"{CONSUMER_SESSION} ")}  # a queue's name may end as a mark does
    rests = [*shown, *(names[each.end() :] for names in shown for each in re.finditer(_SEPARATOR, names))]
    return any(
        rest == name.rstrip()
        or f"{rest}{_SEPARATOR}".startswith(f"{name}{_SEPARATOR}")
        or (is_cut and f"{name}{_SEPARATOR}".startswith(rest))
        for rest in rests
    )


def _ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode()
