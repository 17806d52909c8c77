"""The relay's decisions: what becomes of each row of a batch, from the broker's answers alone. Pure.

Only a confirm lets a row go. An answer of an HTTP destination may become a reply, a message of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, NamedTuple

from outboxkit import codec, ids
from outboxkit.brokers import Answer, Receipt, Verdict, reserved
from outboxkit.message import NAME_LIMIT, Message, storable
from outboxkit.relay.order import BatchPlan
from outboxkit.relay.rows import Claimed
from outboxkit.retry import Backoff
from outboxkit.tables import PARKED

NOTHING_SAID = Answer(b"{}")
"""The reply to a message that was confirmed without a word: an event without fields."""

_TRACE_HEADERS = ("traceparent", "tracestate")


class Reply(NamedTuple):
    """A new row of the outbox, in the columns of `statements.settle.REPLY`, and the position of what it answers."""

    at_position: int
    message_id: str
    type: str
    payload: bytes
    key: str | None
    headers: bytes
    correlation_id: str | None
    causation_id: str
    created_at: datetime
    content_type: str


def reply_to(row: Claimed, wanted: str, answer: Answer | None, *, now: datetime) -> Reply:
    """The reply of type `wanted`: caused by the row's message, part of its story, and in the order of its key.

    Its id is derived from the message's: a message that is published twice has one reply, which an inbox recognises.
    Nothing that a destination says makes a reply that cannot be stored and sent: its settlement would never commit.
    """
    said, cause = answer or NOTHING_SAID, row.message
    trace = {name: cause.headers[name] for name in _TRACE_HEADERS if isinstance(cause.headers.get(name), str)}
    return Reply(
        at_position=row.position,
        message_id=ids.derive("reply", cause.id),
        type=wanted,
        payload=bytes(said.payload) or NOTHING_SAID.payload,
        key=cause.key,
        headers=codec.encode_headers(trace),
        correlation_id=cause.correlation_id or cause.id,
        causation_id=cause.id,
        created_at=now,
        content_type=_short(said.content_type),
    )


def _short(content_type: str) -> str:
    """It is an AMQP short string on its way, as long as ids and types may be."""
    kept = storable(content_type).encode()[:NAME_LIMIT].decode(errors="ignore")
    return kept or NOTHING_SAID.content_type


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
            case Verdict.NOT_SENT:
                _wait_behind(settlement, row, now)
            case Verdict.POSTPONED:
                after = receipt.after or _backoff(policy, receipt.verdict).after(row.attempts + 1)
                _try_again(settlement, row, receipt, now + after, failures=0)
            case _:
                _fail(settlement, row, receipt, now, policy)
    return settlement


def take_over(lineup: BatchPlan, settlement: Settlement) -> None:
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
    return wanted and reserved.addressed_to(row.message.headers) is None


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
