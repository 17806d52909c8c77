"""The plan of one batch: what leaves together, what waits, which message a closed channel is blamed on. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from outboxkit.brokers import CONFIRMED, Receipt, Verdict
from outboxkit.brokers.rabbitmq.confirms import NACKED, Loss, Receipts
from outboxkit.brokers.rabbitmq.topology import Refusals
from outboxkit.brokers.reserved import addressed_to
from outboxkit.message import Message

CARE_SECONDS = 600.0
"""How long a route's messages go one by one after a return, and all messages after a nack, which names no queue."""
PROVEN_ROUTES = 10_000
"""Routing keys that are remembered as reaching a queue; where there are more, each is proven anew."""


def route(message: Message) -> str:
    """What decides which queues a message reaches: its routing key, or the queue that it is addressed to."""
    queue = addressed_to(message.headers) if message.headers else None
    return message.routing_key if queue is None else f"\0{queue}"  # no routing key holds a NUL


@dataclass(slots=True)
class SerializedRoutes:
    """Routes whose messages are sent one at a time within their key, because the broker may well refuse them.

    They are those that no confirm on this connection has proven, those that reached no queue lately, and all after a
    nack, which names no queue. `refusals` are the routes that were nacked last.
    """

    clock: Callable[[], float]
    refusals: Refusals = field(init=False)
    _until: float = float("-inf")
    _unroutable: dict[str, float] = field(default_factory=dict)
    _proven: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.clock)

    def unroutable(self, message: Message) -> None:
        """The broker returned this message."""
        self._unroutable[route(message)] = self.clock() + CARE_SECONDS
        self._proven.discard(route(message))

    def nacked(self) -> None:
        """The broker nacked a message, whatever connection it came on."""
        self._until = self.clock() + CARE_SECONDS

    def proven(self, found: str) -> None:
        """A message of this route has reached a queue."""
        if len(self._proven) >= PROVEN_ROUTES:
            self._proven.clear()
        self._proven.add(found)

    def has_proven(self, found: str) -> bool:
        """Whether a message of this route has reached a queue on this connection."""
        return found in self._proven

    def connected(self) -> None:
        """A connection is new: nothing is proven, since a broker that is back may lack its queues."""
        self._proven.clear()

    def doubts(self, routes: set[str]) -> set[str]:
        """Those of the routes whose messages are handled with care now."""
        now = self.clock()
        if self._until > now:
            return routes
        if self._unroutable:
            self._unroutable = {each: until for each, until in self._unroutable.items() if until > now}
        return {each for each in routes if each not in self._proven or each in self._unroutable}


CAREFUL_WAVES = 64
"""How many messages of one key a batch publishes one by one, at most; the others come with a later batch."""
INTERNAL_ERROR = 541
BLAMED_ON_CONTENT = frozenset({311, 406, 501, 502, 503, 505, 540, INTERNAL_ERROR})
"""With which the broker closes a channel or a connection because of what it was sent (section 1.2)."""


def blames_a_message(loss: Loss) -> bool:
    """Whether the broker closed because of a message; access to a topic, unlike to an exchange, is about one."""
    return loss.code in BLAMED_ON_CONTENT or (loss.code == 403 and "access to topic" in loss.reason)


@dataclass(frozen=True, slots=True)
class Suspects:
    """Ids at one of which the broker closed a channel or a connection, and whether other messages pass."""

    ids: frozenset[str] = frozenset()
    others_pass: bool = False


NOBODY = Suspects()


class PublishPlan:
    """The messages of one `publish` and their receipts, so far.

    A wave is what may be on its way at the same time: no id twice, because a returned message is told apart by its id
    alone; nothing behind one of its key that is handled with care; and of one key only messages of one route, since a
    queue may be unbound at any moment, and then the broker refuses all of a route, and takes those of another.

    Args:
        messages: in order.
        caution: of the publisher, for longer than one batch. If a route was nacked last, one message of it goes ahead,
            or none.
        suspects: what an earlier batch has found out and could not finish.
    """

    def __init__(self, messages: Sequence[Message], caution: SerializedRoutes, suspects: Suspects = NOBODY) -> None:
        self.messages = messages
        self.receipts: Receipts = [None] * len(messages)
        self._caution = caution
        self._refusals = caution.refusals
        self._paused = set(self._refusals.paused()) if self._refusals else set()
        self._nacked: set[str] = set()
        self._suspects = suspects
        self._failed: dict[str, int] = {}
        self._routes = {route(message) for message in messages if message.key is not None}
        self._careful, self._wave, self._waves = set[str](), list[int](), 0
        every = range(len(messages))
        known = [index for index in every if messages[index].id in suspects.ids] if suspects.ids else []
        first, stop = (known[0], known[-1] + 1) if known else (0, 0)
        # The last group is the next one. Parts of a batch that follow each other keep the order of every key.
        self._groups: list[Sequence[int]] = (
            [every[stop:], *_halves(every[first:stop]), every[:first]] if known else [every]
        )

    def next_wave(self) -> list[int]:
        """The indexes of what is to be sent now, in order; none where everything is decided."""
        self._learn()
        self._careful = self._caution.doubts(self._routes)
        self._waves += 1
        wave: list[int] = []
        while self._groups and not wave:
            wave, later = self._split(self._groups.pop())
            if later:
                self._groups.append(later)
        self._wave = wave
        return wave

    def refuse(self, index: int, receipt: Receipt) -> None:
        """This message failed by itself: what is behind it, of its key, is held."""
        self.receipts[index] = receipt
        key = self.messages[index].key
        if key is not None:
            self._failed[key] = min(index, self._failed.get(key, index))

    def refused_by_broker(self, indexes: Sequence[int]) -> None:
        """The broker returned or nacked these."""
        for index in indexes:
            receipt = self.receipts[index]
            if receipt is not None:
                self.refuse(index, receipt)
                if receipt is NACKED:
                    self._nacked.add(route(self.messages[index]))
                else:
                    self._caution.unroutable(self.messages[index])

    def is_held(self, index: int) -> bool:
        """Whether an earlier message of its key has failed, or its route was nacked; it has its receipt then."""
        key = self.messages[index].key
        if key is not None and index > self._failed.get(key, index):
            self.receipts[index] = Receipt(Verdict.NOT_SENT, f"an earlier message of key {key!r} has failed")
            return True
        if not (self._nacked or self._paused):
            return False
        found = route(self.messages[index])
        if found not in self._nacked and found not in self._paused:
            return False
        self.refuse(index, NACKED)
        return True

    def broke(self, loss: Loss, unanswered: Sequence[int], unsent: Sequence[int]) -> None:
        """The broker ended the channel or connection because of one of these: find out of which."""
        if unsent:
            self._groups.append(unsent)
        if len(unanswered) > 1:
            self._suspects = Suspects(frozenset(self.messages[index].id for index in unanswered))
            self._groups += _halves(unanswered)
        elif unanswered and (loss.code != INTERNAL_ERROR or self._others_pass()):
            self.refuse(unanswered[0], Receipt(Verdict.REJECTED, f"the broker closed: {loss.reason}"))
        elif unanswered:
            self.refuse(unanswered[0], Receipt(Verdict.UNKNOWN, f"the broker closed: {loss.reason}"))

    def still_suspect(self) -> Suspects:
        """What the next batch should know."""
        unsettled = {
            message.id
            for message, receipt in zip(self.messages, self.receipts, strict=True)
            if receipt is None or receipt.verdict is Verdict.UNKNOWN
        }
        ids = self._suspects.ids & unsettled if self._suspects.ids else frozenset()
        return Suspects(ids, others_pass=self._others_pass()) if ids else NOBODY

    def _others_pass(self) -> bool:
        return self._suspects.others_pass or CONFIRMED in self.receipts

    def wants_new_connection(self, opened_at: float) -> bool:
        """Whether it is to leave on a connection opened later than this, after nacks on this one."""
        return bool(self._refusals) and self._refusals.want_new_connection(map(route, self.messages), opened_at)

    def finish(self, reason: str) -> list[Receipt]:
        """All receipts; what has none is unknown, for this reason."""
        self._learn()
        unknown = Receipt(Verdict.UNKNOWN, reason)
        if not (self._nacked or self._paused):
            return [unknown if receipt is None else receipt for receipt in self.receipts]
        verdicts = self._judge_routes()
        return [
            verdicts[route(message)] if receipt is NACKED else receipt or unknown
            for message, receipt in zip(self.messages, self.receipts, strict=True)
        ]

    def _judge_routes(self) -> dict[str, Receipt]:
        """What a nack means for each route: nobody knows at first; then the route waits, and no message is blamed."""
        confirmed, paused = self._confirmed_routes(), self._refusals.paused()
        verdicts = {}
        for found in self._nacked:
            name = shown(found)
            if found in confirmed:
                reason = f"nacked by the broker, which takes some for {name}: a queue is full"
            elif found in self._refusals:
                reason = f"nacked by the broker, on a new connection too: for {name} a queue is full, or has no leader"
            else:
                self._refusals.refused(found, "", doubts_connection=True)
                if self._caution.has_proven(found):
                    self._caution.nacked()
                verdicts[found] = Receipt(Verdict.UNKNOWN, f"the broker nacked all for {name} on this connection")
                continue
            self._refusals.refused(found, reason, doubts_connection=found not in confirmed)
            self._caution.nacked()
            verdicts[found] = Receipt(Verdict.POSTPONED, reason, after=self._wait(found))
        for found in self._paused - self._nacked:
            verdicts[found] = Receipt(Verdict.POSTPONED, paused.get(found) or str(NACKED.reason), self._wait(found))
        return verdicts

    def _wait(self, found: str) -> timedelta:
        return timedelta(seconds=self._refusals.seconds_left(found))

    def _confirmed_routes(self) -> set[str]:
        answered = zip(self.messages, self.receipts, strict=True)
        return {route(message) for message, receipt in answered if receipt is CONFIRMED}

    def _learn(self) -> None:
        """Every routing key of which the last wave has brought a message into a queue is proven."""
        for index in self._wave if self._refusals else ():
            if self.receipts[index] is CONFIRMED and (found := route(self.messages[index])) not in self._nacked:
                self._refusals.accepted(found)
        for index in self._wave if self._careful else ():
            if self.receipts[index] is CONFIRMED and (found := route(self.messages[index])) in self._careful:
                self._caution.proven(found)

    def _split(self, group: Sequence[int]) -> tuple[list[int], list[int]]:
        messages = self.messages
        ids = {messages[index].id for index in group}
        at_ease = not self._careful and not self._failed and not self._refusals
        if at_ease and len(self._routes) <= 1 and len(ids) == len(group):
            return list(group), []
        wave, later = list[int](), list[int]()
        waiting, seen, ahead = set[str](), set[str](), set[str]()
        routes: dict[str, str] = {}
        for index in group:
            message = messages[index]
            if self.receipts[index] is not None or self.is_held(index):
                continue
            found = route(message)
            turns = message.key is not None and routes.setdefault(message.key, found) != found
            if turns or message.id in seen or message.key in waiting or found in ahead:
                if message.key is not None:
                    waiting.add(message.key)
                later.append(index)
                continue
            seen.add(message.id)
            wave.append(index)
            if found in self._refusals:
                ahead.add(found)
            if message.key is not None and (found in ahead or found in self._careful):
                waiting.add(message.key)
        return wave, later if self._waves < CAREFUL_WAVES else self._put_off(later)

    def _put_off(self, later: list[int]) -> list[int]:
        """Leave the keys of these to a later batch; the rest of them."""
        for index in later:
            if self.messages[index].key is not None:
                self.receipts[index] = Receipt(Verdict.NOT_SENT, "its key is published with care, and goes on later")
        return [index for index in later if self.receipts[index] is None]


def shown(found: str) -> str:
    """A route, for people."""
    return f"queue {found[1:]!r}" if found.startswith("\0") else f"routing key {found!r}"


def _halves(group: Sequence[int]) -> list[Sequence[int]]:
    """The second half and the first."""
    middle = (len(group) + 1) // 2
    return [group[middle:], group[:middle]]
