"""The relay's decisions: the fate of each row of a batch, from the broker's receipts alone. Pure.

Only a confirm lets a row go as published. An answer of an HTTP destination may become a reply, a message of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, NamedTuple

from outboxkit import defaults, ids
from outboxkit.brokers import Answer, Receipt, Verdict
from outboxkit.message import NAME_LIMIT, Message, caused_by, changed, storable
from outboxkit.relay.order import Batch, ClaimedRow
from outboxkit.retry import Backoff
from outboxkit.tables import PARKED

EMPTY_ANSWER = Answer(b"{}")
"""The reply to a message that was confirmed without an answer: an event without fields."""


class Reply(NamedTuple):
    """A new message for the outbox, and the position of the row that it answers."""

    at_position: int
    message: Message


def reply_to(row: ClaimedRow, reply_type: str, answer: Answer | None, *, now: datetime) -> Reply:
    """The reply to a row's message: caused by it, with its correlation id and its key.

    Its id is derived from the message's: a message that is published twice has one reply, which an inbox recognises.
    Every answer becomes a row that can be stored and sent: otherwise its settlement would never commit.
    """
    content, cause = answer or EMPTY_ANSWER, row.message
    fields = {
        "id": ids.derive("reply", cause.id),
        "type": reply_type,
        "payload": bytes(content.payload) or EMPTY_ANSWER.payload,
        "topic": None,
        "created_at": now,
        "content_type": _short(content.content_type),
        "content_encoding": None,
        "queue": None,
        "version": 1,  # as every message of a system that knows no versions
    }
    return Reply(row.position, changed(cause, **caused_by(cause, fields)))


def _short(content_type: str) -> str:
    """The content type as an AMQP short string; it has the same limit as ids and types."""
    text = storable(content_type).encode()[:NAME_LIMIT].decode(errors="ignore")
    return text or EMPTY_ANSWER.content_type


class Reason(StrEnum):
    """The reason for which a message of the outbox is dead."""

    UNROUTABLE = Verdict.UNROUTABLE.value
    REJECTED = Verdict.REJECTED.value
    EXPIRED = "expired"


LARGEST_ATTEMPTS = 2**31 - 1
"""The maximum of the column `attempts`."""
TOO_LATE = "its expires_at had passed before it could be published"

BACKOFFS: Mapping[Verdict, Backoff] = {
    Verdict.UNROUTABLE: Backoff(),
    Verdict.REJECTED: Backoff(base=timedelta(milliseconds=500)),
    Verdict.POSTPONED: Backoff(base=timedelta(seconds=10), minimum=timedelta(seconds=1)),
}
"""The delay after each kind of failure: a person has to bind a queue, a full one empties by itself.

After `POSTPONED` without a time the delay does not grow, because no attempt is counted.
"""


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """The rules for messages that cannot be published.

    Attributes:
        max_attempts: after so many failures a message becomes a dead letter.
        unroutable: the fate of a message that no queue wants: `bury` it after all attempts, or `discard` it at once, as
            its event's `unroutable="discard"` does.
        dead_key: whether later messages of a dead one's key are parked (`park`) or `continue`. Behind an unroutable
            one, which no consumer has missed, they always continue.
        backoffs: the delays for each kind of failure; the built-in one for a kind that is missing.
    """

    max_attempts: int = defaults.ATTEMPTS
    unroutable: Literal["bury", "discard"] = "bury"
    dead_key: Literal["park", "continue"] = "park"
    backoffs: Mapping[Verdict, Backoff] = field(default_factory=lambda: BACKOFFS)


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that failed and is due again later.

    `attempts` counts this failure, too, and `failures` is what the row's own attempts grow by. That is 0 for a message
    that was postponed, which is never given up for that. The destination has not refused it, and only its own
    `expires_at` limits how long it is tried.
    """

    position: int
    attempts: int
    message: Message
    reason: str
    due_at: datetime
    failures: int = 1


@dataclass(frozen=True, slots=True)
class Dead:
    """A row to bury. `failures` is what its attempts grow by."""

    position: int
    message: Message
    reason: Reason
    error: str
    failures: int
    parked: bool


@dataclass(slots=True)
class Settlement:
    """The fate of each row of a batch. A row in no list stays as it is, and no attempt is counted.

    Attributes:
        replies: new messages, for the answers that a destination gave.
        discarded: positions that no queue wanted and that are to be deleted.
        waiting: positions that wait behind an earlier one of their key, by the time until which they wait.
        parked: positions to park behind a dead one of their key.
        unknown: the reasons for which receipts are missing.
        blocked_until: keys that cannot go on now, with the time from which they may, if it is known.
    """

    published: list[int] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)
    failed: list[FailedRow] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)
    waiting: dict[datetime, list[int]] = field(default_factory=dict)
    parked: list[int] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    blocked_until: dict[str, datetime | None] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        """Whether any row got an answer."""
        return bool(self.published or self.discarded or self.failed or self.dead)

    @property
    def moves(self) -> bool:
        """Whether there is anything to write; if not, every row has to wait for another relay."""
        return self.answered or bool(self.waiting or self.parked)


def settlement_of(batch: Batch, receipts: Sequence[Receipt], *, now: datetime, policy: RelayPolicy) -> Settlement:
    """Decide the fate of each row: of those that were sent by their receipts, of the others as the batch says."""
    settlement = Settlement()
    for row, receipt in zip(batch.send, receipts, strict=True):
        match receipt.verdict:
            case Verdict.CONFIRMED:
                if row.reply is not None and not _add_reply(settlement, row, row.reply, receipt, now):
                    _give_up(settlement, row, Reason.REJECTED, f"{receipt.verdict}: {receipt.reason}", policy)
                    continue
                settlement.published.append(row.position)
            case Verdict.UNKNOWN:
                settlement.unknown.append(receipt.reason or "the broker did not answer")
                _block(settlement, row, None)
            case Verdict.NOT_SENT:
                _wait(settlement, row, now)
            case Verdict.POSTPONED:
                after = receipt.after or _backoff(policy, receipt.verdict).after(row.attempts + 1)
                _try_again(settlement, row, receipt, now + after, failures=0)
            case _:
                _fail(settlement, row, receipt, now, policy)
    for due, positions in batch.waiting.items():
        settlement.waiting.setdefault(due, []).extend(positions)
    settlement.parked.extend(batch.parked)
    for row in batch.expired:
        settlement.dead.append(Dead(row.position, row.message, Reason.EXPIRED, TOO_LATE, 0, parked=False))
    return settlement


def _fail(settlement: Settlement, row: ClaimedRow, receipt: Receipt, now: datetime, policy: RelayPolicy) -> None:
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


def _try_again(settlement: Settlement, row: ClaimedRow, receipt: Receipt, due_at: datetime, *, failures: int) -> None:
    reason = f"{receipt.verdict}: {receipt.reason}"
    settlement.failed.append(
        FailedRow(row.position, row.attempts + failures, row.message, reason, due_at, failures=failures)
    )
    _block(settlement, row, due_at)


def _give_up(settlement: Settlement, row: ClaimedRow, cause: Reason, error: str, policy: RelayPolicy) -> None:
    parked = policy.dead_key == "park" and cause is not Reason.UNROUTABLE and row.message.key is not None
    failures = 1 if row.attempts < LARGEST_ATTEMPTS else 0
    settlement.dead.append(Dead(row.position, row.message, cause, error, failures, parked))
    if parked:
        _block(settlement, row, PARKED)


def _add_reply(settlement: Settlement, row: ClaimedRow, reply_type: str, receipt: Receipt, now: datetime) -> bool:
    """Add the reply. False if the publisher got an answer that it could not keep, although a reply is expected."""
    if receipt.answer is None and receipt.reason is not None:
        return False
    settlement.replies.append(reply_to(row, reply_type, receipt.answer, now=now))
    return True


def _backoff(policy: RelayPolicy, verdict: Verdict) -> Backoff:
    return policy.backoffs.get(verdict, BACKOFFS[verdict])


def _may_be_discarded(row: ClaimedRow, policy: RelayPolicy) -> bool:
    """Whether an unroutable row is discarded. One that an operator replayed to a single queue is not."""
    is_unwanted = row.discard_unroutable or policy.unroutable == "discard"
    return is_unwanted and row.message.queue is None


def _block(settlement: Settlement, row: ClaimedRow, until: datetime | None) -> None:
    if row.message.key is not None:
        settlement.blocked_until.setdefault(row.message.key, until)


def _wait(settlement: Settlement, row: ClaimedRow, now: datetime) -> None:
    key = row.message.key
    due_at = settlement.blocked_until.get(key) if key is not None else None
    if due_at == PARKED:
        settlement.parked.append(row.position)
    elif due_at is not None and due_at > now:
        settlement.waiting.setdefault(due_at, []).append(row.position)
    else:
        _block(settlement, row, None)
