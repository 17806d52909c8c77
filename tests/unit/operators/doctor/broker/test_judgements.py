"""Judgements of what no test can bring about on a real broker here: other versions, other machines, lost nodes."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from outboxkit.brokers.rabbitmq.topology import SINGLE_ACTIVE_CONSUMER
from outboxkit.consumer.membership import Agreement
from outboxkit.operators.doctor.broker import checks
from outboxkit.operators.doctor.broker.expected import ExpectedBroker, ExpectedQueue, TableFacts, with_facts
from outboxkit.operators.doctor.broker.snapshot import (
    ApiReports,
    Bound,
    BrokerRefusal,
    Depth,
    QueueReport,
    Rights,
    Snapshot,
    numbers_of,
)
from outboxkit.operators.findings import Diagnosis, Severity
from outboxkit.runtime.sources import Shards

URL = "amqp://shop:hunter2@127.0.0.1/"
EXPECTED = ExpectedBroker(urls=(URL,), exchange="outboxkit", vhost="/", queues=(ExpectedQueue(name="billing"),))


def look(version: str = "3.13.7", **reports: Any) -> Snapshot:
    return Snapshot(
        EXPECTED, version=numbers_of(version), is_open=True, reports=ApiReports(**reports) if reports else None
    )


def codes(findings: Any) -> dict[str, Severity]:
    each: list[Diagnosis] = list(findings)
    assert "hunter2" not in str(each)
    assert all(finding.why and finding.cure for finding in each)
    return {finding.code: finding.severity for finding in each}


def test_retry_queues_that_are_there_need_not_be_declared():
    expected = replace(EXPECTED, queues=(ExpectedQueue(name="billing"),), delays=(timedelta(seconds=10),))
    rights = checks.rights_to_work(expected, is_shared=True)
    assert set(rights.configure) == {"outboxkit", "billing", "billing.dead"}
    assert set(rights.write) == {"outboxkit", "billing", "amq.default", "outboxkit.delay.10s"}
    assert set(rights.read) == {"outboxkit", "billing", "billing.dead", "outboxkit.retry"}


def test_nothing_passes_that_was_not_read_since_the_broker_left_in_the_middle():
    interrupted = replace(look(), interrupted="it closed the connection")
    known = {check.name for check in checks.CHECKS if check.is_known(interrupted)}
    assert not known & {"exchange", "queues", "consumers"}
    assert set(codes(checks.of_connection(interrupted))) == {"not-checked"}


def test_a_refusal_may_hold_braces():
    reason = "vhost ${VHOST} not found"
    refused = replace(look(), is_open=False, refusals={URL: BrokerRefusal("vhost", reason)})
    (finding,) = checks.of_connection(refused)
    assert f"it has no virtual host '/': {reason}" in finding.what


def test_a_queue_is_not_called_unknown_if_the_tables_could_not_be_read():
    other = QueueReport("billing", "quorum", {}, messages_ready=1)
    bound = [Bound("outboxkit", "billing", "queue", "OrderPlaced")]
    unread = with_facts(replace(EXPECTED, queues=()), TableFacts(are_known=False))
    seen = replace(look(queues={"billing": other}, bindings=bound), expected=unread)
    texts = [each.what for each in checks.of_consumers(seen)]
    assert len(texts) == 1
    assert "could not be read" in texts[0]
    assert "No consumer" not in texts[0]


def test_queues_with_the_same_handlers_are_told_as_a_possible_mistake():
    facts = TableFacts(types={"biling": ("OrderPlaced",), "billing": ("OrderPlaced",), "mail": ("MailSent",)})
    depths = {name: Depth(1, 0) for name in facts.types}
    seen = replace(look(), expected=with_facts(replace(EXPECTED, queues=()), facts), depths=depths)
    texts = [each.what for each in checks.of_consumers(seen)]
    assert [("mistake" in text, "mail" in text) for text in texts] == [(True, False), (True, False), (False, True)]


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("", "billing", False),
        ("", "", True),
        (".*", "billing", True),
        ("^bill$", "billing", False),
        ("bill", "my billing", True),
        ("(?<n>a)++[[:alpha:]]", "billing", True),  # what Python cannot read is believed
    ],
)
def test_rights_are_searched_for(pattern: str, name: str, expected: bool):
    assert checks.allows(Rights("shop", pattern, "", ""), "configure", name) is expected


ORDERED = {"x-single-active-consumer": True}


@pytest.mark.parametrize(
    ("version", "arguments", "expected"),
    [
        ("3.13.7", {}, {}),
        ("4.1.0", {}, {"queue-drops": Severity.PROBLEM}),
        ("4.1.0", {"x-delivery-limit": -1}, {}),
        ("4.1.0", {"x-dead-letter-exchange": "d"}, {}),
        ("4.1.0", {"x-dead-letter-exchange": "d", **ORDERED}, {"queue-drops": Severity.WARNING}),
        ("4.1.0", {"x-dead-letter-exchange": "d", **ORDERED, "x-delivery-limit": 100}, {}),
        ("3.13.7", {"x-dead-letter-exchange": "d", **ORDERED}, {}),
        ("3.13.7", {"x-dead-letter-exchange": "d", "x-delivery-limit": 10}, {"queue-drops": Severity.WARNING}),
        ("3.13.7", {"x-dead-letter-exchange": "d", "x-delivery-limit": 11}, {}),
    ],
)
def test_delivery_limits(version: str, arguments: dict[str, Any], expected: dict[str, Severity]):
    queue = QueueReport("billing", "quorum", arguments)
    assert codes(checks.of_limits(look(version, queues={"billing": queue}))) == expected


def test_a_policy_is_for_one_queue_and_its_command_can_be_pasted():
    queue = QueueReport("billing v1.2", "quorum")
    (finding,) = checks.of_limits(look("4.1.0", queues={"billing v1.2": queue}))
    assert r" --apply-to queues 'billing v1.2-deliveries' '^billing\ v1\.2$' '{" in finding.commands[0]


@pytest.mark.parametrize(
    ("types", "text"),
    [
        (("OrderConfirmd",), " It is bound for 'OrderConfirmed', and handlers here take 'OrderConfirmd'."),
        (("OrderConfirmed", "X"), " It is bound for 'OrderConfirmed', of which another queue has a handler."),
        ((), " No consumer on this database knows it."),
    ],
)
def test_an_old_queue_tells_of_a_consumer_of_the_wrong_type(types: tuple[str, ...], text: str):
    old, bound = QueueReport("old", messages_ready=1), Bound("outboxkit", "old", "queue", "OrderConfirmed")
    found = look(queues={"old": old}, bindings=(bound,))
    expected = replace(EXPECTED, queues=(ExpectedQueue(name="billing", types=types),))
    (finding,) = checks.of_consumers(replace(found, expected=expected))
    assert finding.what == f"Nobody consumes queue 'old', and 1 message waits there.{text}"
    assert codes([finding]) == {"queue-unconsumed": Severity.WARNING}


STEPS = Shards("steps", 2)
SPLIT_CONSUMER = "outboxkit consume MODULE --queue steps --ordered --shards 2"


def split(**facts: Any) -> Snapshot:
    expected = with_facts(
        replace(EXPECTED, queues=(ExpectedQueue(name="steps"),)),
        TableFacts(agreements={"steps": Agreement(STEPS.count, ())}, **facts),
    )
    return replace(look(), expected=expected)


def test_a_shard_is_consumed_with_the_others_and_never_deleted_or_forgotten_alone():
    gone, many_at_once = BrokerRefusal("missing", "gone"), BrokerRefusal("different", SINGLE_ACTIVE_CONSUMER)
    seen = replace(
        split(),
        depths={"steps": Depth(0, 0), "steps.2.0": Depth(3, 0), "steps.2.1": gone},
        differences=dict.fromkeys(("steps", "steps.2.0"), many_at_once),
    )
    found = {each.code: each for each in [*checks.of_queues(seen), *checks.of_consumers(seen)]}
    for code in ("queue-missing", "queue-kind", "queue-unconsumed"):
        assert found[code].commands == (SPLIT_CONSUMER,)
    assert "no queue 'steps.2.1'" in found["queue-missing"].what
    assert "Queue 'steps', 'steps.2.0' is not as" in found["queue-kind"].what
    assert "consumes queues 'steps', 'steps.2.0', and 3 messages wait" in found["queue-unconsumed"].what
    assert len(list(checks.of_consumers(seen))) == 1


def test_rights_of_a_split_queue_have_the_exchange_that_divides_it():
    needed = checks.rights_to_work(split().expected)
    assert all("steps.2" in names for names in (needed.configure, needed.write, needed.read))
