"""`HandlerSession`: the session of a worker for one transaction of handlers, who do not meet in it."""

from weakref import ref

from sqlalchemy import event, inspect
from sqlalchemy.orm import Session, make_transient


class HandlerSession(Session):
    """The session of a worker for one transaction of handlers, which it commits right after them."""

    _inserted: list[ref[object]] | None = None

    def leave(self) -> None:
        """Let go of the objects of one handler of a batch, so that the next one does not meet them.

        Like those of any session that is closed, they stay loaded. If the transaction is not committed, those that it
        has inserted are new again once this session is closed, so that another try may add them.
        """
        self.expunge_all()

    def note_inserted(self) -> None:
        """Note the objects that are inserted from here on: the first thing in a batch."""
        self._inserted = []
        event.listen(self, "pending_to_persistent", _note)
        event.listen(self, "after_commit", _forget)

    def close(self) -> None:
        """Close it, as any session."""
        super().close()
        for each in self._inserted or ():
            if (instance := each()) is not None and inspect(instance).detached:
                make_transient(instance)


def _note(session: HandlerSession, instance: object) -> None:
    if session._inserted is not None:  # noqa: SLF001 - of this module
        session._inserted.append(ref(instance))  # noqa: SLF001


def _forget(session: HandlerSession) -> None:
    session._inserted = None  # noqa: SLF001
