"""The run of one request: its key is taken, and its work is committed together with its answer.

An integration translates its framework's request and response, and calls a `Run` with plain values.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from outboxkit.http import answer, ledger
from outboxkit.http.answer import Fresh, InProgress, Mismatch, Response
from outboxkit.http.request import RequestKey, Rules

Added = tuple[tuple[str, str], ...]
"""Headers that an answer gets beside its own."""


class Run:
    """One run of a request. Each method is given the session to work on, and ends its transaction where it says so.

    Args:
        request_key: the ledger's key for the request; None: it has no idempotency key, and needs none.

    Attributes:
        fresh: the key that `begin` has taken; None: it has taken none.
    """

    def __init__(
        self, rules: Rules, request_key: RequestKey | None, principal: str | None, lease: timedelta | None = None
    ) -> None:
        self.fresh: Fresh | None = None
        self._rules = rules
        options = {"principal": principal, "retention": rules.retention, "lease": lease}
        self._question: dict[str, Any] = {} if request_key is None else request_key._asdict() | options

    def begin(self, session: Session) -> Response | None:
        """Take the key, with a lease in a transaction of its own. Returns the answer to a request that is not new."""
        if not self._question:
            return None
        outcome = ledger.begin_request(session, **self._question)
        answer.count(outcome)
        if not isinstance(outcome, Fresh):
            ledger.roll_back(session)
            return answer.answered(outcome)
        if outcome.lease is not None:
            session.commit()
        self.fresh = outcome
        return None

    def end(self, session: Session, status: int, whole: Callable[[], Response]) -> Added:
        """Commit the work, and with it the answer, or roll it back if an answer with this status is not remembered.

        `whole` gives the answer with its body, and is called if it is remembered.

        Raises:
            ConfigurationError: the answer is too large. This and other errors leave the rollback to the caller.
        """
        if not self._rules.stored(status):
            ledger.roll_back(session)
        elif self.fresh is None:
            session.commit()
        else:
            return self._keep(session, self.fresh, whole())
        return ()

    def remember(self, session: Session, status: int, whole: Callable[[], Response]) -> Added | Response:
        """Commit the answer to an error alone, after a rollback of the work, if its status says so.

        Arguments and errors are those of `end`. If another run of the request was quicker, returns its answer, or 409
        while it has none: it may do the work that failed here, and this error must not be taken for the outcome.
        """
        if not self._question or not self._rules.stored(status):
            return ()
        outcome = ledger.begin_request(session, **self._question)
        if isinstance(outcome, Fresh):
            return self._keep(session, outcome, whole())
        ledger.roll_back(session)
        return () if isinstance(outcome, Mismatch) else answer.answered(outcome)

    def release(self, session: Session, *, forget: bool = False) -> None:
        """End the lease of a run that failed, so that the next one need not wait for it."""
        assert self.fresh is not None  # noqa: S101 - it has begun
        ledger.release(session, self.fresh, forget=forget)
        session.commit()

    def taken_over(self, session: Session) -> Response:
        """The answer after the loss of the lease: that of the run that has taken over, or 409 until it has one."""
        outcome = ledger.begin_request(session, **self._question)
        ledger.roll_back(session)
        return answer.answered(InProgress() if isinstance(outcome, Fresh) else outcome)

    def _keep(self, session: Session, fresh: Fresh, whole: Response) -> Added:
        limit = self._rules.max_response
        ledger.complete(session, fresh, answer.remembered_part(whole.status, whole.headers, whole.body, limit))
        session.commit()
        return (answer.expires_header(fresh),)
