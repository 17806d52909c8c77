"""`HandlerSession`: the session of a worker's transaction, in which handlers that only add are written together."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

WRITTEN_TOGETHER = 100
"""The number of objects that do not wait for more: of a flush of so many each has a hundredth of a round trip."""


class HandlerSession(Session):
    """The session of a worker for one transaction of handlers, which it commits right after them.

    Objects that a handler of a batch has only added wait for those of the next ones, so that one flush writes them all.
    They are written before another handler reaches the database: it finds their rows, and none is in its savepoints.
    """

    _waiting: Collection[object] = ()

    def waits(self) -> bool:
        """Whether what the handler has left in the session waits for the next one; else it is to be flushed now.

        It does not if the application listens to flushes: its listeners may add messages of this handler's.
        """
        if self.dirty or self.deleted:
            return False
        own = self.dispatch
        heard = [*own.before_flush, *own.after_flush, *own.after_flush_postexec, *own.pending_to_persistent]
        if not all(getattr(each, "__module__", "").startswith("outboxkit.") for each in heard):
            return False
        self._waiting = self.new
        return len(self._waiting) < WRITTEN_TOGETHER

    def flush(self, objects: Sequence[Any] | None = None) -> None:
        """Flush, as any session does. Objects of earlier handlers expire: this one reads them anew."""
        waiting, self._waiting = self._waiting, ()
        super().flush(objects)
        for each in waiting:
            if each in self:
                self.expire(each)

    def expunge_all(self) -> None:
        """Forget all objects but those of earlier handlers."""
        super().expunge_all()
        self.add_all(self._waiting)

    def _connection_for_bind(self, *args: Any, **options: Any) -> Connection:
        """The connection for a handler's statement. A flush has another way to it.

        The handler's own new objects stay as they are: it may complete or expunge them yet.
        """
        if self._waiting:
            own = [each for each in self.new if each not in self._waiting]
            for each in own:
                if each in self:  # not gone with one before it, by a cascade
                    self.expunge(each)
            self.flush()
            self.add_all(own)
        return super()._connection_for_bind(*args, **options)
