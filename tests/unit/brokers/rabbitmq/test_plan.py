"""The plan of a batch, played against a broker that is a few lines long: order, holding back, blame."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outboxkit import Message
from outboxkit.brokers import CONFIRMED, Receipt, Verdict
from outboxkit.brokers.rabbitmq import plan
from outboxkit.brokers.rabbitmq.confirms import Loss
from outboxkit.brokers.rabbitmq.plan import NO_CANDIDATES, Candidates, PublishPlan, SerializedRoutes, blames_a_message
from tests.unit.shop import message

TOO_LARGE = Loss(406, "PRECONDITION_FAILED - too large", connection_too=False)
CRASH = Loss(541, "INTERNAL_ERROR", connection_too=True)
FORCED = Loss(320, "CONNECTION_FORCED", connection_too=True)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Broker:
    """Handles what is on its way in order; some of what it has accepted is confirmed when it closes.

    Attributes:
        poison: ids at which it closes.
        refused: ids that it returns.
        accepted: ids, in order of their arrival.
    """

    poison: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    loss: Loss = TOO_LARGE
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    accepted: list[str] = field(default_factory=list)

    def take(self, plan: PublishPlan, group: Sequence[int]) -> None:
        cut = next((n for n, index in enumerate(group) if plan.messages[index].id in self.poison), None)
        arrived = group if cut is None else group[:cut]
        for index in arrived:
            if plan.messages[index].id not in self.refused:
                self.accepted.append(plan.messages[index].id)
        answered = arrived if cut is None else [index for index in arrived if self.chance.random() < 0.3]
        for index in answered:
            if plan.messages[index].id in self.refused:
                plan.receipts[index] = Receipt(Verdict.UNROUTABLE)
                plan.record_refused([index])
            else:
                plan.receipts[index] = CONFIRMED
        if cut is not None:
            plan.bisect(self.loss, [index for index in group if plan.receipts[index] is None], [])

    def play(self, plan: PublishPlan, *, groups: int = 1000) -> list[Receipt]:
        for _ in range(groups):
            if not (group := plan.next_group()):
                break
            self.take(plan, group)
        return plan.finish("out of time")


def serialized_routes(*, probing: bool = False) -> SerializedRoutes:
    made = SerializedRoutes(Clock())
    if not probing:
        confirm_all(made)
    return made


def confirm_all(serialized: SerializedRoutes) -> None:
    """Every routing key of these tests has reached a queue before."""
    for route in (message().routing_key, "good", "lost"):
        serialized.record_confirm(route)


KEYS = st.sampled_from([None, "a", "b", "c"])
MESSAGES = st.lists(st.tuples(KEYS, st.sampled_from(["fine", "fine", "fine", "poison", "refused"])), max_size=40)
IDS = st.lists(st.sampled_from("abcd"), max_size=12)


def messages_of(kinds: Sequence[tuple[str | None, str]]) -> tuple[list[Message], Broker]:
    found = [message(id=str(n), key=key) for n, (key, _) in enumerate(kinds)]
    broker = Broker(
        {str(n) for n, (_, kind) in enumerate(kinds) if kind == "poison"},
        {str(n) for n, (_, kind) in enumerate(kinds) if kind == "refused"},
    )
    return found, broker


def first_arrivals(broker: Broker) -> list[str]:
    return list(dict.fromkeys(broker.accepted))


@given(MESSAGES, st.booleans())
@example([(None, "fine"), (None, "fine"), ("a", "fine"), ("a", "refused"), (None, "poison")], False)
def test_every_message_gets_the_verdict_that_it_deserves(kinds: list[tuple[str | None, str]], probing: bool):
    messages, broker = messages_of(kinds)
    receipts = broker.play(PublishPlan(messages, serialized_routes(probing=probing)))
    deserved = {"fine": Verdict.CONFIRMED, "poison": Verdict.REJECTED, "refused": Verdict.UNROUTABLE}
    failed: set[str | None] = set()
    for (key, kind), receipt in zip(kinds, receipts, strict=True):
        if receipt.verdict is Verdict.NOT_SENT:
            assert key in failed, "held for no reason"
        else:
            assert receipt.verdict is deserved[kind]
        if kind != "fine" and key is not None:
            failed.add(key)


@given(MESSAGES)
def test_what_is_accepted_of_a_key_is_accepted_in_order(kinds: list[tuple[str | None, str]]):
    messages, broker = messages_of(kinds)
    broker.play(PublishPlan(messages, serialized_routes()))
    for key in ("a", "b", "c"):
        arrived = [int(id_) for id_ in first_arrivals(broker) if kinds[int(id_)][0] == key]
        assert arrived == sorted(arrived)


@given(MESSAGES)
def test_of_a_serialized_route_nothing_of_a_key_is_accepted_behind_what_failed(kinds: list[tuple[str | None, str]]):
    messages, broker = messages_of(kinds)
    serialized = serialized_routes()
    serialized.record_nack()  # serializes all routes
    broker.play(PublishPlan(messages, serialized))
    failed: set[str | None] = set()
    for number, (key, kind) in enumerate(kinds):
        assert key not in failed or str(number) not in broker.accepted
        if kind != "fine" and key is not None:
            failed.add(key)


@given(MESSAGES, st.integers(1, 3))
def test_calls_that_run_out_of_time_find_the_poison_together(kinds: list[tuple[str | None, str]], groups: int):
    kinds = [(None, kind) for _, kind in kinds]
    todo, broker = messages_of(kinds)
    serialized, candidates = serialized_routes(), NO_CANDIDATES
    verdicts: dict[str, Verdict] = {}
    for _ in range(200):
        plan = PublishPlan(todo, serialized, candidates)
        receipts, candidates = broker.play(plan, groups=groups), plan.remaining_candidates()
        verdicts |= {sent.id: receipt.verdict for sent, receipt in zip(todo, receipts, strict=True)}
        todo = [sent for sent in todo if verdicts[sent.id] is Verdict.UNKNOWN]
    assert not todo, "it never ends"
    assert {id_ for id_, verdict in verdicts.items() if verdict is Verdict.REJECTED} == broker.poison


def test_one_poisonous_message_costs_a_few_channels_only():
    messages, broker = [message(id=str(number)) for number in range(1024)], Broker({"777"})
    plan, groups = PublishPlan(messages, serialized_routes()), 0
    while group := plan.next_group():
        broker.take(plan, group)
        groups += 1
    assert groups <= 2 * 10 + 1
    assert [number for number, receipt in enumerate(plan.receipts) if receipt is not CONFIRMED] == [777]


def test_a_crash_of_the_broker_is_blamed_on_a_message_only_if_others_pass():
    broker = Broker({"bad"}, loss=CRASH)
    alone = PublishPlan([message(id="bad")], serialized_routes())
    assert [receipt.verdict for receipt in broker.play(alone)] == [Verdict.UNKNOWN]
    assert alone.remaining_candidates() == NO_CANDIDATES, (
        "one message alone is no suspicion: it is the first of the next batch anyway"
    )
    among = PublishPlan([message(id="good"), message(id="bad"), message(id="fine")], serialized_routes())
    assert [receipt.verdict for receipt in broker.play(among)] == ["confirmed", "rejected", "confirmed"]


def test_a_crash_at_the_head_of_a_batch_is_decided_by_the_next():
    broker, serialized = Broker({"bad"}, loss=CRASH), serialized_routes()
    messages = [message(id="bad"), message(id="fine")]
    first = PublishPlan(messages, serialized)
    assert [receipt.verdict for receipt in broker.play(first)] == ["unknown", "confirmed"]
    assert first.remaining_candidates() == Candidates(frozenset({"bad"}), others_pass=True)
    second = PublishPlan(messages[:1], serialized, first.remaining_candidates())
    assert [receipt.verdict for receipt in broker.play(second)] == ["rejected"]


@pytest.mark.parametrize(
    ("loss", "blamed"),
    [
        (TOO_LARGE, True),
        (CRASH, True),
        (FORCED, False),
        *((Loss(code, "", connection_too=True), True) for code in (501, 502, 503, 505, 540)),
        (Loss(404, "NOT_FOUND - no exchange 'outboxkit'", connection_too=False), False),
        (Loss(0, "the socket is gone", connection_too=True), False),
        (Loss(403, "ACCESS_REFUSED - access to exchange 'outboxkit' refused", connection_too=False), False),
        (Loss(403, "ACCESS_REFUSED - write access to topic 'x' refused", connection_too=False), True),
    ],
)
def test_who_is_to_blame(loss: Loss, blamed: bool):
    assert blames_a_message(loss) is blamed


@given(IDS)
def test_no_group_has_an_id_twice_and_the_groups_keep_the_order_of_an_id(ids: list[str]):
    plan, groups = PublishPlan([message(id=id_) for id_ in ids], serialized_routes()), []
    while group := plan.next_group():
        groups.append(group)
        for index in group:
            plan.receipts[index] = CONFIRMED
    assert sorted(index for group in groups for index in group) == list(range(len(ids)))
    assert len(groups) == max(map(ids.count, ids), default=0)
    for group in groups:
        assert len({ids[index] for index in group}) == len(group)
        assert group == sorted(group)
    for id_ in set(ids):
        order = [index for group in groups for index in group if ids[index] == id_]
        assert order == sorted(order)


def test_without_serialized_routes_a_batch_is_one_group():
    keyed = [message(id=str(number), key="one") for number in range(10)]
    assert PublishPlan(keyed, serialized_routes()).next_group() == list(range(10))


def test_of_one_key_only_messages_of_one_route_are_on_their_way_together():
    routes = ["good", "good", "lost", "good", "good"]
    plan = PublishPlan(
        [message(id=str(n), key="one", topic=route) for n, route in enumerate(routes)], serialized_routes()
    )
    groups = []
    while group := plan.next_group():
        groups.append(group)
        for index in group:
            plan.receipts[index] = CONFIRMED
    assert groups == [[0, 1], [2], [3, 4]]


def test_the_first_group_of_a_connection_is_a_probe():
    keyed = [message(id=str(number), key="one" if number % 2 else None) for number in range(10)]
    plan = PublishPlan(keyed, serialized_routes(probing=True))
    first = plan.next_group()
    assert first == [0, 1, 2, 4, 6, 8]
    for index in first:
        plan.receipts[index] = CONFIRMED
    assert plan.next_group() == [3, 5, 7, 9]


def test_the_groups_of_a_single_key_are_limited():
    clock = Clock()
    serialized = SerializedRoutes(clock)
    confirm_all(serialized)
    serialized.record_nack()
    messages = [message(id=str(n), key="one") for n in range(500)]
    broker = Broker()
    receipts = broker.play(PublishPlan([*messages, message(id="other")], serialized))
    assert [receipt.verdict for receipt in receipts] == [
        *[Verdict.CONFIRMED] * plan.MAX_GROUPS, *[Verdict.NOT_SENT] * (500 - plan.MAX_GROUPS), Verdict.CONFIRMED
    ]  # fmt: skip


def test_what_the_limit_of_groups_holds_back_is_not_overtaken_by_a_later_part():
    """Two parts: the messages up to the candidates, and the candidates with later messages of the same keys."""
    messages = [message(id=str(n), key="one", topic="ab"[n % 2]) for n in range(200)] + [message(id="200", key="one")]
    suspects = PublishPlan(messages, serialized_routes(), Candidates(frozenset({"198", "199"})))
    receipts = Broker().play(suspects)
    sent = [receipt is CONFIRMED for receipt in receipts]
    assert sent == [True] * plan.MAX_GROUPS + [False] * (201 - plan.MAX_GROUPS)
    assert {receipt.verdict for receipt in receipts[plan.MAX_GROUPS :]} == {Verdict.NOT_SENT}


def test_what_became_known_meanwhile_holds_back_what_has_not_left():
    messages = [message(id=str(n), key=key) for n, key in enumerate(["one", "one", "two", None])]
    plan = PublishPlan(messages, serialized_routes())
    plan.next_group()
    plan.fail(0, Receipt(Verdict.REJECTED, "cannot be written"))
    assert [plan.is_blocked(index) for index in range(1, 4)] == [True, False, False]
    assert plan.receipts[1] == Receipt(Verdict.NOT_SENT, "an earlier message of key 'one' has failed")


def test_what_was_not_written_is_sent_after_the_candidates():
    messages = [message(id=str(number)) for number in range(8)]
    plan = PublishPlan(messages, serialized_routes())
    plan.next_group()
    plan.bisect(TOO_LARGE, [0, 1, 2], [3, 4, 5, 6, 7])
    assert [plan.next_group() for _ in range(4)] == [[0, 1], [2], [3, 4, 5, 6, 7], []]


def test_a_batch_learns_which_routing_keys_reach_a_queue():
    serialized = SerializedRoutes(Clock())
    broker = Broker(refused={"lost"})
    batch_ = [message(id=id_, key="one", topic=id_) for id_ in ("good", "lost")]
    broker.play(PublishPlan(batch_, serialized))
    assert serialized.among({"good", "lost"}) == {"lost"}
