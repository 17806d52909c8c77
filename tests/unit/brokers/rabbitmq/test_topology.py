"""Names and arguments of the queues, and what is said where one is there with other arguments."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit.brokers.rabbitmq.topology import (
    CopyRoute,
    Queues,
    delay_name,
    retry_queue,
    shared_declarations,
)
from outboxkit.runtime.settings import parse_duration

STEPS = st.integers(1, 7 * 86_400_000).map(lambda number: timedelta(milliseconds=number))


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (timedelta(milliseconds=1), "billing.retry.1ms"),
        (timedelta(milliseconds=1500), "billing.retry.1500ms"),
        (timedelta(seconds=10), "billing.retry.10s"),
        (timedelta(seconds=90), "billing.retry.90s"),
        (timedelta(minutes=10), "billing.retry.10m"),
        (timedelta(hours=2), "billing.retry.2h"),
        (timedelta(hours=36), "billing.retry.36h"),
        (timedelta(days=7), "billing.retry.7d"),
        (timedelta(0), "billing.retry.0ms"),
    ],
)
def test_a_retry_queue_is_named_after_its_step(step: timedelta, name: str):
    assert retry_queue("billing", step) == name


@given(STEPS)
def test_the_name_reads_as_the_duration_that_it_is(step: timedelta):
    assert parse_duration(retry_queue("q", step).removeprefix("q.retry.")) == step


@given(STEPS, st.text("abc.dely", min_size=1))
def test_no_queue_has_a_retry_queue_of_its_own_with_a_shared_name(step: timedelta, queue: str):
    assert retry_queue(queue, step) not in shared_declarations([step])


def test_a_copy_of_a_declared_queue_waits_with_those_of_all_others():
    ten = timedelta(seconds=10)
    assert Queues("billing", "outboxkit", [], [ten], False).route(ten) == CopyRoute("outboxkit.delay.10s", "billing")
    assert Queues("billing", None, [], [ten], False).route(ten) == CopyRoute("", "billing.retry.10s")
    assert shared_declarations([ten])[delay_name(ten)] == {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "outboxkit.retry",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-message-ttl": 10_000,
    }


@pytest.mark.parametrize(("ordered", "before", "anew"), [(True, "without", "with"), (False, "with", "without")])
def test_a_queue_of_the_other_kind_is_explained_with_both_cures(ordered: bool, before: str, anew: str):
    refusal = "inequivalent arg 'x-single-active-consumer' for queue 'billing'"
    text = Queues("billing", "outboxkit", [], [], ordered, vhost="shop's")._explain(refusal)
    assert refusal in text
    name = "OUTBOXKIT_ORDERED" if ordered else "--ordered (OUTBOXKIT_ORDERED)"  # a command says the option it was given
    assert f"consume {before} {name} as before" in text
    assert f"rabbitmqctl delete_queue -p 'shop'\"'\"'s' billing) and start them again {anew} --ordered" in text


def test_any_other_difference_is_explained_with_its_cure():
    text = Queues("billing", "outboxkit", [], [], True)._explain("inequivalent arg 'x-queue-type'")
    assert "choose another OUTBOXKIT_QUEUE" in text
    assert "--ordered" not in text
