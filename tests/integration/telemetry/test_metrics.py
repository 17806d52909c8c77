"""A scrape of a relay and a consumer at work on PostgreSQL and RabbitMQ, by the real exporter."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from outboxkit import effects, event, inbox_handler, outbox
from outboxkit.brokers.rabbitmq import RabbitPublisher
from outboxkit.http import answer
from outboxkit.http.ledger import Mismatch
from outboxkit.relay import Relay, RelayPolicy
from outboxkit.runtime.retention import Periods, Retention
from outboxkit.telemetry import catalogue, metrics, table_gauges
from tests.integration.consumer.running_consumer import Ordered, starter
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

HOUR = timedelta(hours=1)
KNOWN = {
    each.prometheus_name: each
    for group, metrics_of_it in catalogue.CATALOGUE.items()
    for each in metrics_of_it
    if group != "The file of reconcile"
}
"""All but those that no process has: a command writes them to a file."""
POLICY = RelayPolicy(max_attempts=1)
PARKED = """
    INSERT INTO outboxkit_dead_letter (side, type, key, payload, headers, content_type, reason, attempts, parked)
    VALUES ('outbox', 'T', 'parked', '', '{}', 'x', 'rejected', 10, true)
"""
PAUSED = "INSERT INTO outboxkit_pause VALUES ('relay', 'nobody', now(), NULL, 'moved', 'ada')"


@event("Unwanted")
@dataclass(frozen=True)
class Unwanted:
    """An event that no queue is bound to."""


class Scrape:
    """The text of a scrape of this process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def text(self) -> str:
        return generate_latest(self._registry).decode()

    def names(self) -> set[str]:
        """Names of metrics that have a series; a counter's with its suffix, as the catalogue has it."""
        return {
            family.name + ("_total" if family.type == "counter" else "")
            for family in text_string_to_metric_families(self.text())
            if family.samples
        }


@contextmanager
def scraping() -> Iterator[Scrape]:
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
    provider = MeterProvider([reader])
    metrics.use(provider)
    try:
        yield Scrape(registry)
    finally:
        metrics.use(None)
        provider.shutdown()


@asynccontextmanager
async def working(engine: AsyncEngine, sync_engine: Engine, broker: PlainClient) -> AsyncIterator[None]:
    """A relay, a consumer and a retention that run, and something of everything that they measure."""
    tries: list[int] = []

    @inbox_handler("Handles", batch=True)
    async def handles(session: AsyncSession, event: Ordered) -> None:
        tries.append(event.number)
        if event.number == 1 and tries.count(1) < 3:
            raise ValueError("boom")

    with sync_engine.begin() as connection:
        connection.execute(text(PARKED))
        connection.execute(text(PAUSED))
    sessions = sessionmaker(sync_engine)
    publisher = RabbitPublisher(broker.url, exchange=broker.exchange)
    relay, retention = Relay(engine, publisher, policy=POLICY), Retention(engine, Periods(inbox=HOUR))
    stop = asyncio.Event()
    async with starter(engine, broker)(handles):
        running = [asyncio.create_task(work) for work in (relay.run(stop), retention.run(stop, interval=HOUR))]
        with sessions.begin() as session:
            outbox.add_all(session, [Ordered(number) for number in range(20)])
            outbox.add(session, Unwanted())
        effects.once(sessions, "e", lambda: None, on_unknown="skip")
        answer.count(Mismatch())
        yield
        stop.set()
        await asyncio.gather(*running)


async def missing(scrape: Scrape, names: set[str]) -> set[str]:
    return names - await asyncio.to_thread(scrape.names)


@pytest.fixture
async def scraped(
    async_pg_engine: AsyncEngine, pg_engine: Engine, broker: PlainClient, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The text of a scrape in which every metric has a series."""
    monkeypatch.setattr(table_gauges, "KEPT_SECONDS", 1)  # each scrape reads once
    wanted = set(KNOWN)
    with scraping() as scrape, pg_engine.connect() as other_relay:
        with Session(pg_engine) as session, session.begin():
            outbox.add_all(session, [Ordered(100), Ordered(101)], key="k")
        other_relay.execute(text("SELECT FROM outboxkit_outbox ORDER BY position LIMIT 1 FOR UPDATE"))
        async with working(async_pg_engine, pg_engine, broker):
            await eventually_async(lambda: missing(scrape, wanted), lambda found: not found)
            scraped = await asyncio.to_thread(scrape.text)
            other_relay.rollback()
    return scraped


def test_a_scrape_has_the_whole_catalogue_and_nothing_else(scraped: str):
    families = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(scraped)
    }
    assert families.keys() == KNOWN.keys()
    for name, family in families.items():
        assert (family.type, family.documentation) == (KNOWN[name].kind, KNOWN[name].description)
        accepted = {attribute.replace(".", "_") for attribute in KNOWN[name].attributes} | {"le"}
        for sample in family.samples:
            assert sample.labels.keys() <= accepted, name
            assert all(len(value) < 40 for value in sample.labels.values()), "a value that looks like an id"


@pytest.mark.night
def test_promtool_finds_nothing_to_complain_of(scraped: str):
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=scraped, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
