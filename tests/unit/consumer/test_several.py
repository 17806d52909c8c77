"""Several queues in one process: which handlers each of them has, and how their consumers end together."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from outboxkit import ConfigurationError, Message, inbox
from outboxkit.brokers.memory import MemoryBroker, MemorySubscriber
from outboxkit.codec.envelopes import CloudEvents
from outboxkit.consumer import Concurrency, Consumer, Consumers, ShardedConsumer
from outboxkit.inbox import Handler
from outboxkit.runtime import compose, settings
from outboxkit.runtime.queues import assign
from tests.unit.shop import NOW, OrderConfirmed


async def work(session: Any, event: OrderConfirmed) -> None: ...


def handler(name: str, queue: str | None = None, function: Callable[..., Any] = work) -> Handler:
    """One function may be several handlers here."""
    marked = inbox.inbox_handler(name, queue=queue)(function)
    return replace(inbox.handler_of(marked), name=name, queue=queue)


def names(assigned: dict[str, list[Handler]]) -> dict[str, list[str]]:
    return {queue: [each.name for each in handlers] for queue, handlers in assigned.items()}


def test_the_only_queue_has_all_handlers_that_name_none_or_it():
    handlers = [handler("a"), handler("b", "billing")]
    assert names(assign(handlers, ["billing"])) == {"billing": ["a", "b"]}


def test_each_of_several_queues_has_the_handlers_that_name_it():
    handlers = [handler("a", "mails"), handler("b", "billing"), handler("c", "mails")]
    assert names(assign(handlers, ["billing", "mails"])) == {"billing": ["b"], "mails": ["a", "c"]}


def test_handlers_of_other_queues_are_left_out_with_a_warning():
    with structlog.testing.capture_logs() as logged:
        assigned = assign([handler("a"), handler("b", "mails"), handler("c", "mails")], ["billing"])
    assert names(assigned) == {"billing": ["a"]}
    (line,) = logged
    assert line["log_level"] == "warning"
    assert line["queues"] == {"mails": ["b", "c"]}


@pytest.mark.parametrize(
    ("handlers", "queues", "text"),
    [
        (
            [handler("a"), handler("b", "mails")],
            ["billing", "mails", "news"],
            "handler 'a' names no queue, and OUTBOXKIT_QUEUE names billing, mails and news: .*queue=\"billing\"",
        ),
        ([handler("a", "mails")], ["billing"], "no handler for queue 'billing': .*; those found name mails"),
        (
            [handler("a", "mails")],
            ["mails", "billing"],
            "no handler for queue 'billing': mark one with .*billing\"\\)$",
        ),
    ],
    ids=["no queue", "another queue", "an idle queue"],
)
def test_a_set_up_that_can_be_read_in_two_ways_is_refused(handlers: list[Handler], queues: list[str], text: str):
    with pytest.raises(ConfigurationError, match=text):
        assign(handlers, queues)


@pytest.mark.parametrize("queue", ["", 5, ["mails"]])
def test_a_queue_is_a_name(queue: Any):
    with pytest.raises(
        ConfigurationError, match=r"@inbox_handler\('a'\): queue is .*; the name of a queue is accepted"
    ):
        inbox.inbox_handler("a", queue=queue)


class Pair:
    """Two consumers of a memory broker's queues."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine, self.broker, self.stop = engine, MemoryBroker(), asyncio.Event()
        self.subscribers = {name: MemorySubscriber(self.broker, name, ["#"]) for name in ("billing", "mails")}

    def put(self, queue: str, *ids: str) -> None:
        for id_ in ids:
            message = Message(id=id_, type="OrderConfirmed", payload=b'{"order_id":1,"total":"5"}', created_at=NOW)
            self.subscribers[queue].queue.put(message)

    def consumers(self, timeout: timedelta | None = None, **functions: Callable[..., Any]) -> Consumers:
        return Consumers(
            [
                Consumer(
                    self.engine,
                    self.subscribers[queue],
                    [handler(queue, queue, function)],
                    queue=queue,
                    concurrency=Concurrency(1),
                    clock=lambda: NOW,
                )
                for queue, function in functions.items()
            ],
            shutdown_timeout=timeout,
        )


@pytest.fixture
async def pair(async_engine: AsyncEngine) -> Pair:
    return Pair(async_engine)


async def test_a_drain_ends_when_all_queues_are_empty_and_counts_all(pair: Pair):
    pair.put("billing", "1", "2")
    pair.put("mails", "1", "3", "4")
    done = await pair.consumers(billing=work, mails=work).drain(pair.stop)
    assert dict(done.outcomes) == {"processed": 5}
    assert not any(each.queue.ready or each.unacked for each in pair.subscribers.values())


async def test_the_first_error_stops_the_others(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    consumers = pair.consumers(billing=work, mails=work)

    async def refused() -> None:
        raise ConfigurationError("another kind of queue")

    monkeypatch.setattr(pair.subscribers["mails"], "connect", refused)
    with pytest.raises(ConfigurationError, match="another kind"):
        await asyncio.wait_for(consumers.run(pair.stop), 10)
    with pytest.raises(ConfigurationError, match="another kind"):
        await asyncio.wait_for(consumers.drain(pair.stop), 10)


async def test_settings_become_a_consumer_for_each_queue(database_url: str):
    chosen = settings.load(
        {"database_url": database_url, "queue": "billing,mails:2", "concurrency": "5", "publish_timeout": "1s"}
    )
    handlers = [handler("a", "billing"), handler("b", "mails")]
    async with compose.consumer(chosen, handlers, drain=True) as made:
        assert isinstance(made, Consumers)
        found = {each._log._context["queue"]: each for each in made._consumers}
        assert {name: each._concurrency.transactions for name, each in found.items()} == {"billing": 5, "mails": 2}
        shares = {each._subscriber.max_unacked_bytes for each in found.values()}  # type: ignore[attr-defined]
        assert made._grace == chosen.shutdown_timeout
        assert shares == {16 * 1024 * 1024}
        assert found["mails"].handlers == [handlers[1]]
    own = MemorySubscriber(MemoryBroker(), "billing", [])
    with pytest.raises(ConfigurationError, match="a subscriber of your own serves one queue; OUTBOXKIT_QUEUE has 2"):
        async with compose.consumer(chosen, handlers, subscriber=own):
            pass
    moved = [replace(each, queue="billing") for each in handlers]
    with pytest.raises(ConfigurationError, match="no handler for queue 'mails'"):
        async with compose.consumer(chosen, moved):
            pass


SHARDS: dict[str, object] = {"ordered": "true", "shards": "3"}


async def test_settings_become_the_consumers_of_shards(database_url: str):
    chosen = settings.load({"database_url": database_url, "queue": "billing", "publish_timeout": "30s"} | SHARDS)
    async with compose.consumer(chosen, [handler("a")]) as made:
        assert isinstance(made, ShardedConsumer)
        assert made._publish_timeout == 30, "so long a message may be on its way to an old shard"
        own, shard = (made._make(name).consumer for name in ("billing", "billing.3.0"))
        assert (own._registers, shard._registers) == (True, False), "it is one queue to those who know its handlers"
        subscriber: Any = shard._subscriber
        assert subscriber.max_unacked_bytes == 8 * 1024 * 1024


@pytest.mark.parametrize("more", [{"ordered": "true"}, SHARDS], ids=["one queue", "shards"])
async def test_settings_become_the_rules_of_an_ordered_queue(database_url: str, more: dict[str, object]):
    rules = {"retry_delays": "2s,3s", "max_attempts": "4", "inbox_retention": "9d", "ignore": "Stock*"}
    options = {"database_url": database_url, "queue": "billing", "readers": "cloudevents"} | rules | more
    async with compose.consumer(settings.load(options), [handler("a")]) as made:
        consumer: Any = made._make("billing.3.0").consumer if isinstance(made, ShardedConsumer) else made
        subscriber, policy = consumer._subscriber, consumer._runner.policy
        assert (subscriber._queues.ordered, subscriber._prefetch) == (True, 500)
        assert subscriber.delays == policy.delays == (timedelta(seconds=2), timedelta(seconds=3))
        assert (policy.max_attempts, policy.retention, policy.ignore) == (4, timedelta(days=9), ("Stock*",))
        assert consumer._routing._policy is policy
        assert [type(reader) for reader in consumer._routing._readers] == [CloudEvents]


@pytest.mark.parametrize("more", [{}, SHARDS], ids=["one queue", "shards"])
@pytest.mark.parametrize(("drain", "patience"), [(False, None), (True, 10)])
async def test_only_a_drain_gives_up_an_outage(
    database_url: str, more: dict[str, object], *, drain: bool, patience: float | None
):
    chosen = settings.load({"database_url": database_url, "queue": "billing"} | more)
    async with compose.consumer(chosen, [handler("a")], drain=drain) as made:
        consumer: Any = made
        assert consumer._outage._patience == patience
