"""Judgements of what no test can bring about on a real broker here: other versions, other machines, lost nodes."""

import shlex
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from outboxkit.brokers.rabbitmq.topology import SINGLE_ACTIVE_CONSUMER
from outboxkit.consumer.membership import Agreement
from outboxkit.operators.doctor.broker import access, limits, queues, server
from outboxkit.operators.doctor.broker.facts import ApiReports, Bound, NodeReport, QueueReport, Rights
from outboxkit.operators.doctor.broker.inspection import BrokerRefusal, Denied, Depth, Obstacle
from outboxkit.operators.doctor.broker.look import Look, Node, numbers_of
from outboxkit.operators.doctor.broker.subject import BrokerSubject, ExpectedQueue, TableFacts, with_facts
from outboxkit.operators.findings import Diagnosis, Severity
from outboxkit.runtime.sources import Shards

URL = "amqp://shop:hunter2@127.0.0.1/"
SUBJECT = BrokerSubject(urls=(URL,), exchange="outboxkit", vhost="/", queues=(ExpectedQueue(name="billing"),))


def look(version: str = "3.13.7", *, url: str = URL, **reports: Any) -> Look:
    subject = replace(SUBJECT, urls=(url,))
    return Look(subject, (Node(url, None, version),), reports=ApiReports(**reports) if reports else None)


def codes(findings: Any) -> dict[str, Severity]:
    each: list[Diagnosis] = list(findings)
    assert "hunter2" not in str(each)
    assert all(finding.why and finding.cure for finding in each)
    return {finding.code: finding.severity for finding in each}


@pytest.mark.parametrize(
    ("version", "is_old"),
    [("3.9.29", True), ("3.10.0", False), ("4.1.0", False), ("4.2.0-rc.1", False), ("unknown", False), ("", False)],
)
def test_versions(version: str, is_old: bool):
    assert codes(access.of_connection(look(version))) == ({"broker-version": Severity.PROBLEM} if is_old else {})


def test_the_numbers_of_a_version():
    assert [numbers_of(text) for text in ("3.10.8", "4.0.0+beta", "4.1.0-rc.2", "next")] == [
        (3, 10, 8),
        (4, 0, 0),
        (4, 1, 0),
        (),
    ]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://shop:hunter2@localhost/", set()),
        ("amqp://shop:hunter2@[::1]/", set()),
        ("amqp://shop:hunter2@127.8.9.1/", set()),
        ("amqp://shop:hunter2@mq.example/", {"broker-plain"}),
        ("amqps://shop:hunter2@mq.example/", set()),
        ("amqps://shop:hunter2@mq.example/?no_verify_ssl=1", {"broker-unverified"}),
    ],
)
def test_passwords_in_the_open(url: str, expected: set[str]):
    assert set(codes(access.of_encryption(look(url=url)))) == expected


def test_passwords_of_the_management_api_in_the_open():
    plain = look(nodes=())
    for url, expected in (("http://a:hunter2@mq.example:15672", {"management-plain"}), ("https://mq.example", set())):
        seen = replace(plain, subject=replace(SUBJECT, management=url))
        assert set(codes(access.of_encryption(seen))) == expected


def test_each_obstacle_once_for_all_nodes():
    refusals = [BrokerRefusal(Obstacle.LOGIN, "refused"), BrokerRefusal(Obstacle.LOGIN, "refused")]
    seen = Look(SUBJECT, [Node(f"amqp://shop:hunter2@node{n}/", each) for n, each in enumerate(refusals)])
    assert [each.code for each in access.of_connection(seen)] == ["broker-login"]


def test_narrowed_rights_spare_the_queues_that_the_database_knows():
    seen = look(rights=Rights(user="shop", configure=".*", write=".*", read=".*"))
    subject = replace(SUBJECT, queues=(), registered=(ExpectedQueue(name="mails"),))
    (finding,) = access.of_rights(replace(seen, subject=subject))
    assert finding.code == "broker-rights-wide"
    *_, write, read = shlex.split(finding.commands[0])
    assert write == r"^(outboxkit|mails|amq\.default|outboxkit\.retry|outboxkit\.unroutable)$"
    assert read == r"^(outboxkit|mails|mails\.dead|outboxkit\.retry|outboxkit\.unroutable)$"


def test_retry_queues_that_are_there_need_not_be_declared():
    subject = replace(SUBJECT, queues=(ExpectedQueue(name="billing"),), delays=(timedelta(seconds=10),))
    rights = access.rights_to_work(subject, is_shared=True)
    assert set(rights.configure) == {"outboxkit", "billing", "billing.dead"}
    assert set(rights.write) == {"outboxkit", "billing", "amq.default", "outboxkit.delay.10s"}
    assert set(rights.read) == {"outboxkit", "billing", "billing.dead", "outboxkit.retry"}


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
    assert access.allows(Rights("shop", pattern, "", ""), "configure", name) is expected


def test_names_in_rights_are_taken_literally():
    subject = replace(SUBJECT, queues=(ExpectedQueue(name="a.b+c"),))
    seen = replace(look(), subject=subject, reports=ApiReports(rights=Rights("shop", "", "", "")))
    (finding,) = access.of_rights(seen)
    assert r"a\.b\+c" in finding.commands[0]
    assert finding.commands[0].startswith("rabbitmqctl set_permissions -p / shop '^(")


@pytest.mark.parametrize(
    ("version", "arguments", "expected"),
    [
        ("3.13.7", {}, {}),
        ("4.1.0", {}, {"delivery-limit": Severity.PROBLEM}),
        ("4.1.0", {"x-delivery-limit": -1}, {}),
        ("4.1.0", {"x-dead-letter-exchange": "d"}, {}),
        ("3.13.7", {"x-dead-letter-exchange": "d", "x-delivery-limit": 10}, {"delivery-limit": Severity.WARNING}),
        ("3.13.7", {"x-dead-letter-exchange": "d", "x-delivery-limit": 11}, {}),
    ],
)
def test_delivery_limits(version: str, arguments: dict[str, Any], expected: dict[str, Severity]):
    queue = QueueReport("billing", "quorum", arguments)
    assert codes(limits.of_limits(look(version, queues={"billing": queue}))) == expected


def test_a_policy_is_for_one_queue_and_its_command_can_be_pasted():
    queue = QueueReport("billing v1.2", "quorum")
    (finding,) = limits.of_limits(look("4.1.0", queues={"billing v1.2": queue}))
    assert r" --apply-to queues 'billing v1.2-deliveries' '^billing\ v1\.2$' '{" in finding.commands[0]


def test_the_dead_queue_keeps_what_it_has():
    queue = QueueReport("billing.dead", "quorum")
    assert codes(limits.of_limits(look("4.1.0", queues={"billing.dead": queue}))) == {}


@pytest.mark.parametrize(
    ("version", "used", "sockets", "queues", "is_short"),
    [
        ("3.10.8", 10, 20, 266, False),
        ("3.10.8", 10, 22, 266, True),
        ("3.10.8", 820, 20, 0, True),
        ("4.1.0", 10, 22, 266, False),
    ],
)
def test_descriptors_that_are_open_or_reserved(version: str, used: int, sockets: int, queues: int, is_short: bool):
    node = NodeReport("a", running=True, fd_used=used, fd_total=1024, sockets_used=sockets)
    found = codes(server.of_files(look(version, nodes=(node,), all_queues=queues)))
    assert found == ({"broker-files": Severity.WARNING} if is_short else {})
    assert codes(server.of_files(look(version, nodes=(NodeReport("a"),)))) == {}


def test_of_two_limits_the_smaller_one_holds():
    queue = QueueReport("q", "quorum", {"x-max-length": 9}, effective_policy_definition={"max-length": 5})
    assert (queue.effective("max-length"), queue.is_by_policy("max-length")) == (5, True)
    queue = QueueReport("q", "quorum", {"x-max-length": 4}, effective_policy_definition={"max-length": 5})
    assert (queue.effective("max-length"), queue.is_by_policy("max-length")) == (4, False)
    assert QueueReport("q", effective_policy_definition=[]).effective("max-length") is None


@pytest.mark.parametrize(
    ("types", "text"),
    [
        (
            ("OrderConfirmd",),
            " It is bound for 'OrderConfirmed'. No handler here takes that; they take 'OrderConfirmd'.",
        ),
        (("OrderConfirmed", "X"), " It is bound for 'OrderConfirmed', of which another queue has a handler."),
        ((), ""),
    ],
)
def test_an_old_queue_tells_of_a_consumer_of_the_wrong_type(types: tuple[str, ...], text: str):
    old, bound = QueueReport("old", messages_ready=1), Bound("outboxkit", "old", "queue", "OrderConfirmed")
    found = look(queues={"old": old}, bindings=(bound,))
    subject = replace(SUBJECT, queues=(ExpectedQueue(name="billing", types=types),))
    (finding,) = queues.of_consumers(replace(found, subject=subject))
    assert finding.what == f"Nobody consumes queue 'old', and 1 message waits in it.{text}"
    assert codes([finding]) == {"queue-unconsumed": Severity.WARNING}


def test_lost_nodes():
    up, down, split = NodeReport("a", True), NodeReport("b"), NodeReport("c", True, partitions=("b",))
    assert codes(server.of_nodes(look(nodes=(up, split, down)))) == {
        "node-down": Severity.WARNING,
        "network-partition": Severity.PROBLEM,
    }
    assert codes(server.of_nodes(look(nodes=(up, down)))) == {"node-down": Severity.PROBLEM}
    assert codes(server.of_nodes(look(nodes=(up,)))) == {}


@pytest.mark.parametrize(
    ("members", "online", "expected"),
    [
        ("abc", "abc", {}),
        ("abc", "ab", {"queue-members-away": Severity.WARNING}),
        ("abc", "a", {"queue-members-away": Severity.PROBLEM}),
        ("a", "a", {"queue-one-member": Severity.WARNING}),
    ],
)
def test_members_of_quorum_queues(members: str, online: str, expected: dict[str, Severity]):
    queue = QueueReport("billing", "quorum", members=tuple(members), online=tuple(online))
    nodes = tuple(NodeReport(name, running=True) for name in "abc")
    assert codes(queues.of_queues(look(nodes=nodes, queues={"billing": queue}))) == expected


def test_a_classic_queue_in_a_cluster_is_a_problem():
    nodes = (NodeReport("a", running=True), NodeReport("b", running=True))
    findings = queues.of_queues(look(nodes=nodes, queues={"billing": QueueReport("billing")}))
    assert codes(findings) == {"queue-classic": Severity.PROBLEM}


STEPS = Shards("steps", 2)
SPLIT_CONSUMER = "outboxkit consume MODULE --queue steps --ordered --shards 2"


def split(**facts: Any) -> Look:
    subject = with_facts(
        replace(SUBJECT, queues=(ExpectedQueue(name="steps"),)),
        TableFacts(sharding={"steps": Agreement(STEPS.count, ())}, **facts),
    )
    return replace(look(), subject=subject)


def test_a_shard_is_consumed_with_the_others_and_never_deleted_or_forgotten_alone():
    gone, many_at_once = BrokerRefusal(Denied.MISSING, "gone"), BrokerRefusal(Denied.DIFFERENT, SINGLE_ACTIVE_CONSUMER)
    seen = replace(
        split(),
        depths={"steps": Depth(0, 0), "steps.2.0": Depth(3, 0), "steps.2.1": gone},
        differences=dict.fromkeys(("steps", "steps.2.0"), many_at_once),
    )
    found = {each.code: each for each in [*queues.of_queues(seen), *queues.of_consumers(seen)]}
    for code in ("queue-missing", "queue-order", "queue-unconsumed"):
        assert found[code].commands == (SPLIT_CONSUMER,)
    assert "no 'steps.2.1'" in found["queue-missing"].what
    assert "on 'steps.2.0', 'steps'" in found["queue-order"].what
    assert "consumes 'steps', 'steps.2.0', and 3 messages wait" in found["queue-unconsumed"].what
    assert len(list(queues.of_consumers(seen))) == 1


def test_a_split_queue_that_is_gone_is_forgotten_by_its_own_name():
    seen = replace(split(), depths=dict.fromkeys(STEPS.consumed, BrokerRefusal(Denied.MISSING, "gone")))
    (finding,) = queues.of_queues(seen)
    assert finding.commands == (SPLIT_CONSUMER, "outboxkit handlers forget steps")


def test_a_split_queue_is_ordered_whatever_the_settings_say():
    arguments = split().subject.declarations
    assert all(arguments[name]["x-single-active-consumer"] for name in STEPS.consumed)


def test_the_printed_command_of_an_ordered_queue_is_ordered():
    seen = replace(look(), subject=replace(SUBJECT, ordered=True), depths={"billing": Depth(0, 0)})
    (finding,) = queues.of_consumers(seen)
    assert finding.commands[0] == "outboxkit consume MODULE --queue billing --ordered"


def test_rights_of_a_split_queue_have_the_exchange_that_divides_it():
    needed = access.rights_to_work(split().subject)
    assert all("steps.2" in names for names in (needed.configure, needed.write, needed.read))
