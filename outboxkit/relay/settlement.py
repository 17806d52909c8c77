"""What becomes of each row of a batch, decided from the broker's answers alone. Pure: only a confirm lets a row go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from outboxkit.brokers import Receipt, Verdict, marks
from outboxkit.message import Message
from outboxkit.relay.order import Lineup
from outboxkit.relay.reply import Reply, reply_to
from outboxkit.relay.rows import Claimed
from outboxkit.retry import Backoff
from outboxkit.tables import PARKED


class Reason(StrEnum):
    """Why a message of the outbox is dead."""

    UNROUTABLE = "unroutable"
    REJECTED = "rejected"
    EXPIRED = "expired"


MOST_ATTEMPTS = 2**31 - 1
"""The column holds no more."""
TOO_LATE = "its expires_at had passed before it could be published"

BACKOFFS: Mapping[Verdict, Backoff] = {
    Verdict.UNROUTABLE: Backoff(),
    Verdict.REJECTED: Backoff(base=timedelta(milliseconds=500)),
    Verdict.POSTPONED: Backoff(base=timedelta(seconds=10), floor=timedelta(seconds=1)),
}
"""How long a message waits after a failure: a queue is bound by people, a full one empties by itself. Who asked to come
again later, without a time, is asked at an even pace: nothing is counted that could let the delay grow."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do with messages that cannot be published.

    Attributes:
        max_attempts: after so many failures a message goes to the dead letters.
        unroutable: what to do with a message that no queue wants: `bury` it after all attempts, or `discard` it at
            once, as its event's `unroutable="discard"` does.
        dead_key: whether later messages of a dead one's key wait for an operator (`park`) or `continue`. Behind an
            unroutable one, which nobody has missed, they always go on.
        backoffs: the delays after a failure, for each kind of failure; the built-in one for a kind that is missing.
    """

    max_attempts: int = 10
    unroutable: Literal["bury", "discard"] = "bury"
    dead_key: Literal["park", "continue"] = "park"
    backoffs: Mapping[Verdict, Backoff] = field(default_factory=lambda: BACKOFFS)


@dataclass(frozen=True, slots=True)
class Failure:
    """A row to settle as failed: due again later, for this reason. `failures` is what is added to its attempts.

    It is 0 for a message that was postponed. Such a message is never given up for that: only its own `expires_at`
    bounds how long it is tried, as the destination has said nothing against it.
    """

    position: int
    attempts: int
    message: Message
    reason: str
    due_at: datetime
    failures: int = 1


@dataclass(frozen=True, slots=True)
class Dead:
    """A row to bury. `failures` is what is to be added to its attempts."""

    position: int
    message: Message
    reason: Reason
    error: str
    failures: int
    parked: bool


@dataclass(slots=True)
class Settlement:
    """What to do with each row of a batch. A row in no list keeps its place, and no attempt is counted.

    Attributes:
        published: positions that the broker confirmed.
        replies: what the answers to some of these become.
        discarded: positions that no queue wanted, to be forgotten.
        failed: rows that are to be tried again.
        dead: rows that were given up.
        waiting: positions to hold behind an earlier one of their key, by the moment until which they wait.
        parked: positions to park behind a dead one of their key.
        unknown: what was heard instead of an answer.
        stuck: keys that cannot go on now, with the moment from which they may, if it is known.
    """

    published: list[int] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)
    waiting: dict[datetime, list[int]] = field(default_factory=dict)
    parked: list[int] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    stuck: dict[str, datetime | None] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        """Whether any row got an answer."""
        return bool(self.published or self.discarded or self.failed or self.dead)

    @property
    def moves(self) -> bool:
        """Whether there is anything to write; if not, every row has to wait for somebody else."""
        return self.answered or bool(self.waiting or self.parked)


def settle(rows: Sequence[Claimed], receipts: Sequence[Receipt], *, now: datetime, policy: Policy) -> Settlement:
    """Decide what becomes of each row that was sent; rows and receipts are in position order."""
    settlement = Settlement()
    for row, receipt in zip(rows, receipts, strict=True):
        match receipt.verdict:
            case Verdict.CONFIRMED:
                if row.reply is not None and not _is_answered(settlement, row, row.reply, receipt, now):
                    _give_up(settlement, row, Reason.REJECTED, f"{receipt.verdict}: {receipt.reason}", policy)
                    continue
                settlement.published.append(row.position)
            case Verdict.UNKNOWN:
                settlement.unknown.append(receipt.reason or "the broker did not answer")
                _stick(settlement, row, None)
            case Verdict.HELD:
                _wait_behind(settlement, row, now)
            case Verdict.POSTPONED:
                after = receipt.after or _backoff(policy, receipt.verdict).after(row.attempts + 1)
                _try_again(settlement, row, receipt, now + after, failures=0)
            case _:
                _fail(settlement, row, receipt, now, policy)
    return settlement


def take_over(lineup: Lineup, settlement: Settlement) -> None:
    """Add what was decided before anything was sent: rows that must wait, and rows that are too late."""
    for due, positions in lineup.waiting.items():
        settlement.waiting.setdefault(due, []).extend(positions)
    settlement.parked.extend(lineup.parked)
    for row in lineup.expired:
        settlement.dead.append(Dead(row.position, row.message, Reason.EXPIRED, TOO_LATE, 0, parked=False))


def _fail(settlement: Settlement, row: Claimed, receipt: Receipt, now: datetime, policy: Policy) -> None:
    unroutable = receipt.verdict is Verdict.UNROUTABLE
    if unroutable and _may_be_discarded(row, policy):
        settlement.discarded.append(row.position)
        return
    attempts = row.attempts + 1
    if attempts < policy.max_attempts and not (receipt.final and not unroutable):
        backoff = _backoff(policy, receipt.verdict).after(attempts)
        _try_again(settlement, row, receipt, now + max(receipt.after or backoff, backoff), failures=1)
        return
    cause = Reason.UNROUTABLE if unroutable else Reason.REJECTED
    _give_up(settlement, row, cause, f"{receipt.verdict}: {receipt.reason}", policy)


def _try_again(settlement: Settlement, row: Claimed, receipt: Receipt, due_at: datetime, *, failures: int) -> None:
    reason = f"{receipt.verdict}: {receipt.reason}"
    settlement.failed.append(
        Failure(row.position, row.attempts + failures, row.message, reason, due_at, failures=failures)
    )
    _stick(settlement, row, due_at)


def _give_up(settlement: Settlement, row: Claimed, cause: Reason, error: str, policy: Policy) -> None:
    parked = policy.dead_key == "park" and cause is not Reason.UNROUTABLE and row.message.key is not None
    failures = 1 if row.attempts < MOST_ATTEMPTS else 0
    settlement.dead.append(Dead(row.position, row.message, cause, error, failures, parked))
    if parked:
        _stick(settlement, row, PARKED)


def _is_answered(settlement: Settlement, row: Claimed, wanted: str, receipt: Receipt, now: datetime) -> bool:
    """Add the reply; False where there was an answer and the publisher could not keep it: somebody waits for that."""
    if receipt.answer is None and receipt.reason is not None:
        return False
    settlement.replies.append(reply_to(row, wanted, receipt.answer, now=now))
    return True


def _backoff(policy: Policy, verdict: Verdict) -> Backoff:
    return policy.backoffs.get(verdict, BACKOFFS[verdict])


def _may_be_discarded(row: Claimed, policy: Policy) -> bool:
    """Not what is for one queue: somebody has replayed it there, and that the queue is gone is news."""
    wanted = row.discard_unroutable or policy.unroutable == "discard"
    return wanted and marks.addressed_to(row.message.headers) is None


def _stick(settlement: Settlement, row: Claimed, until: datetime | None) -> None:
    if row.message.key is not None:
        settlement.stuck.setdefault(row.message.key, until)


def _wait_behind(settlement: Settlement, row: Claimed, now: datetime) -> None:
    key = row.message.key
    due_at = settlement.stuck.get(key) if key is not None else None
    if due_at == PARKED:
        settlement.parked.append(row.position)
    elif due_at is not None and due_at > now:
        settlement.waiting.setdefault(due_at, []).append(row.position)
    else:
        _stick(settlement, row, None)
