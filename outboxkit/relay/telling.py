"""A log that says the same thing once every few seconds, with a count, and not fifteen thousand times."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

SECONDS = 5.0
"""How long lines of one kind are only counted after one of them was written."""
KINDS = 1000
"""How many kinds are remembered; where there are more, what was counted is written and remembering starts anew."""


@dataclass(slots=True)
class _Kind:
    written_at: float
    level: int = logging.WARNING
    event: str = ""
    fields: dict[str, Any] | None = None
    count: int = 0


class LimitedLog:
    """Writes the first line of a kind at once; of those that follow soon the last one, with how many they were.

    Args:
        process: the name for the log, such as `relay`.
        monotonic: seconds, for tests.
    """

    def __init__(self, process: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = structlog.get_logger("outboxkit").bind(process=process)
        self._monotonic = monotonic
        self._kinds: dict[tuple[str, ...], _Kind] = {}

    def say(self, level: int, event: str, *kind: str, **fields: Any) -> None:
        """Write a line, or count it: lines of one event and one kind are alike."""
        now, name = self._monotonic(), (event, *kind)
        known = self._kinds.get(name)
        if known is None:
            if len(self._kinds) >= KINDS:
                self.flush(everything=True)
            self._kinds[name] = _Kind(now)
            self._log.log(level, event, **fields)
            return
        known.level, known.event, known.fields, known.count = level, event, fields, known.count + 1
        if now - known.written_at >= SECONDS:
            self._write(known, now)

    def flush(self, *, everything: bool = False) -> None:
        """Write what was counted for long enough, or all of it; forget what did not come again."""
        now = self._monotonic()
        for name, known in list(self._kinds.items()):
            if not everything and now - known.written_at < SECONDS:
                continue
            if known.count:
                self._write(known, now)
            else:
                del self._kinds[name]
        if everything:
            self._kinds.clear()

    def _write(self, known: _Kind, now: float) -> None:
        repeated = {"count": known.count} if known.count > 1 else {}
        self._log.log(known.level, known.event, **(known.fields or {}), **repeated)
        known.written_at, known.count, known.fields = now, 0, None
