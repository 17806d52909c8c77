"""What to do about an effect, from what is known of it. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

Policy = Literal["skip", "repeat"]
Outcome = Literal["made", "remembered", "skipped", "repeated"]
Errors = tuple[type[BaseException], ...]

AMBIGUOUS: Errors = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError, EOFError)
"""After one of these, raised by a call or the cause of what it raised, nobody knows whether the call was made."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What became of an effect.

    Attributes:
        outcome: `made` now; `remembered` from an earlier run; `skipped`, or `repeated`, because an earlier run has left
            unknown whether it was made.
        result: what the call returned, as its JSON reads: the same at each run. None where it was skipped.
    """

    outcome: Outcome
    result: Any = None


@dataclass(frozen=True, slots=True)
class Found:
    """A row that was there: `now` is the database's time."""

    state: str
    token: str
    result: bytes | None
    started_at: datetime
    locked_until: datetime
    now: datetime


def decide(found: Found, *, alone: bool) -> Effect | timedelta | None:
    """What is known of an effect that was begun before; how long another run may be busy with it; None for unknown."""
    if found.state in ("done", "repeated"):
        return Effect("remembered", msgspec.json.decode(found.result) if found.result is not None else None)
    if found.state == "skipped":
        return Effect("skipped")
    return None if alone or found.locked_until <= found.now else found.locked_until - found.now


def may_have_been_made(error: BaseException | None, ambiguous: Errors) -> bool:
    """Whether a call that raised this may have had its effect all the same."""
    while error is not None:
        if not isinstance(error, Exception) or isinstance(error, ambiguous):
            return True
        error = error.__cause__
    return False
