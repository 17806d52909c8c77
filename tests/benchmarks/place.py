"""Where a case runs: a database with outboxkit's tables, a broker, and how long it may take."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.benchmarks import backlog
from tests.benchmarks.raw_publisher import EXCHANGE, RawPublisher
from tests.benchmarks.relays import Relays
from tests.benchmarks.rounds import Figures, Line, Measure
from tests.benchmarks.running_relay import Orders, Report


@dataclass(frozen=True)
class Place:
    """The servers, and the size of a run."""

    database_url: str
    broker_url: str
    quick: bool
    memory_rows: int
    memory_messages: int
    key_rows: int

    def orders(self, **more: Any) -> Orders:
        """What a relay is told here."""
        return Orders(database_url=self.database_url, broker_url=self.broker_url, exchange=EXCHANGE, **more)

    @contextmanager
    def queue(self, kind: str, **arguments: Any) -> Iterator[RawPublisher]:
        """A queue of its own, and the raw publisher that fills it."""
        name = f"benchmark-{secrets.token_hex(4)}"
        with RawPublisher(self.broker_url, name, {"x-queue-type": kind, **arguments}) as raw:
            yield raw

    def drain(
        self, raw: RawPublisher, *, count: int, size: int = 1024, keys: int = 0, relays: int = 1, blocked: bool = False,
        analyzed: bool = True, **orders: Any,
    ) -> list[Report]:  # fmt: skip
        """Fill the outbox, and have relays publish it all into the raw publisher's queue."""
        backlog.fill(self.database_url, count=count, size=size, keys=keys, analyzed=analyzed)
        raw.purge()
        with (
            backlog.blocking_vacuum(self.database_url, wanted=blocked),
            Relays(self.orders(**orders), relays) as running,
        ):
            running.begin()
            running.await_confirmed(count)
            reports = running.stop()
        if rows := backlog.left(self.database_url):
            raise RuntimeError(f"{rows} rows are left in the outbox of a relay that has published everything")
        return reports


@dataclass(frozen=True)
class Case:
    """Something to measure.

    Attributes:
        name: for `--case`.
        about: in a few words, for `--help`.
        prepare: opens what the variants need, and yields them.
        lines: what the table shows.
        most_rounds: where more would say nothing new.
    """

    name: str
    about: str
    prepare: Callable[[Place], AbstractContextManager[Mapping[str, Measure]]]
    lines: tuple[Line, ...]
    most_rounds: int | None = None


def speed(reports: list[Report]) -> Figures:
    """Messages a second, from the word go to the last confirm; client CPU a message; and memory."""
    count = sum(number for report in reports for _, number in report.confirmed)
    last = max(at for report in reports for at, _ in report.confirmed)
    seconds = (last - min(report.started for report in reports)) / 1e9
    return {
        "rate": count / seconds,
        "cpu": sum(report.cpu for report in reports) * 1e6 / count,
        "resident": max(max(report.resident) for report in reports if report.resident),
    }


def slices(report: Report, size: int) -> list[float]:
    """The rate of each slice of `size` messages, in their order."""
    rates, since, sent = [], report.started, 0
    for at, number in report.confirmed:
        sent += number
        if sent >= size:
            rates.append(sent * 1e9 / (at - since))
            since, sent = at, 0
    return rates
