"""What an operator sees of a relay through an outage: its log, `outboxkit status`, and what arrives at the queue."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from sqlalchemy import make_url, select, text
from sqlalchemy.orm import Session

from outboxkit import outbox, tables
from tests.acceptance.deployment import Deployment
from tests.acceptance.shop import OrderConfirmed
from tests.acceptance.worker_process import WorkerProcess
from tests.support.polling import eventually

KEYS = 2
POLLS = "commits cannot wake this relay, it polls"
"""A warning of the test servers' own: they allow prepared transactions."""


def states(process: WorkerProcess, what: str) -> Sequence[str]:
    """What a process has said about a server, in order."""
    said = {f"{what} is away, waiting": "away", f"{what} is back, work goes on": "back"}
    return [said[entry["event"]] for entry in process.entries() if entry["event"] in said]


class Witness:
    """Sends messages to one queue through a relay, and remembers which."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.sent: list[str] = []
        self.arrived: list[str] = []
        self._relay: WorkerProcess | None = None

    @property
    def relay(self) -> WorkerProcess:
        """The one that was started last."""
        assert self._relay is not None, "start a relay first"
        return self._relay

    def start_relay(self, **settings: str) -> None:
        """Start a relay."""
        self._relay = self.deployment.relay(**settings)

    def send(self, count: int = 4, *, first: str = "SELECT") -> None:
        """Commit so many messages, of a few keys in turn, in one transaction, which begins with this statement."""
        numbers = range(len(self.sent), len(self.sent) + count)
        with Session(self.deployment.engine) as session, session.begin():
            session.execute(text(first))
            self.sent += [
                outbox.add(session, OrderConfirmed(number, Decimal(1)), key=f"customer-{number % KEYS}").id
                for number in numbers
            ]

    def collect(self) -> None:
        """Wait until all that was sent is published, and take it from the queue."""
        eventually(self.deployment.pending, lambda count: count == 0 or not self.relay.is_running)
        assert self.relay.is_running, self.relay.log.read_text()
        self.deployment.broker.disconnect()  # it may have gone with the outage
        self.arrived += [received.properties.message_id for received in self.deployment.broker.take_all()]

    def assert_status(self, waiting: int) -> None:
        """`outboxkit status` answers: so many messages wait, and none of them is to blame."""
        answered = self.deployment.outboxkit("status", "--json")
        assert (answered.returncode, answered.stderr) == (0, "")
        found = json.loads(answered.stdout)["figures"]
        assert found["outbox"]["pending"]["value"] == found["outbox"]["ready"]["value"] == waiting
        if waiting:
            assert found["outbox"]["by_type"]["OrderConfirmed"]["failed_before"]["value"] == 0
            assert found["outbox"]["oldest_age_seconds"] is not None  # to a tenth, so it may be 0.0
        assert found["dead_letters"]["open"]["value"] == 0
        assert self.blamed() == []

    def blamed(self) -> list[Any]:
        """Rows of the outbox for which something was counted."""
        query = select(tables.outbox).where((tables.outbox.c.attempts > 0) | tables.outbox.c.last_error.is_not(None))
        with self.deployment.engine.connect() as connection:
            return list(connection.execute(query))

    def assert_all_arrived(self, what: str, *, is_refusal: bool = False) -> None:
        """Work has resumed by itself: all of it is there, in order, under its ids, and nothing was counted or buried.

        The log says once that `what` is away and that it is back, and nothing else that a person would look at: no
        failure, no traceback, no password.
        """
        self.collect()
        self.relay.wait_for(f"{what} is back, work goes on")
        assert is_refusal or states(self.relay, what) == ["away", "back"]
        assert self.relay.stop() == 0
        firsts = list(dict.fromkeys(self.arrived))
        assert [firsts_of(firsts, self.sent, key) for key in range(KEYS)] == [
            self.sent[key::KEYS] for key in range(KEYS)
        ]
        assert not self.deployment.dead_letters()
        told = [entry["event"] for entry in self.relay.entries() if entry["level"] in ("warning", "error")]
        if is_refusal:  # it may be lost before it is refused
            told = sorted(set(told) - {POLLS, f"{what} is away, waiting"})
            assert told == [f"{what} refuses this process, waiting"]
        else:
            assert [event for event in told if event != POLLS] == [f"{what} is away, waiting"]
        assert_discreet(self.relay.log.read_text(), self.deployment)


def declare(deployment: Deployment) -> None:
    """The queue; a classic one, because quorum queues take their time when their node or vhost goes."""
    deployment.broker.bind("OrderConfirmed", arguments={"x-queue-type": "classic"})


def begin(deployment: Deployment, **settings: str) -> Witness:
    """A relay that has published a few messages already."""
    declare(deployment)
    witness = Witness(deployment)
    witness.start_relay(**settings)
    witness.send()
    witness.collect()
    return witness


def firsts_of(arrived: list[str], sent: list[str], key: int) -> list[str]:
    """The first appearances of a key's messages."""
    wanted = set(sent[key::KEYS])
    return [message_id for message_id in arrived if message_id in wanted]


def assert_discreet(text: str, deployment: Deployment) -> None:
    """No traceback but those of handlers, no password."""
    of_others = [line for line in text.splitlines() if '"event": "handler failed' not in line]
    assert "Traceback" not in "\n".join(of_others)
    for url in ("OUTBOXKIT_DATABASE_URL", "OUTBOXKIT_BROKER_URL"):
        assert str(make_url(deployment.environment[url]).password) not in text


def status_says(deployment: Deployment) -> str:
    """The advice in which `outboxkit status` says that it cannot ask, and names the database without its password."""
    answered = eventually(lambda: deployment.outboxkit("status"), lambda done: done.returncode != 0)
    assert (answered.returncode, answered.stderr) == (1, "")
    assert_discreet(answered.stdout, deployment)
    assert "advice        problem: " in answered.stdout
    return " ".join(answered.stdout.split())


@contextmanager
def read_only(deployment: Deployment) -> Iterator[None]:
    """The whole server answers as a standby would."""
    with deployment.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as person:
        person.execute(text("ALTER SYSTEM SET default_transaction_read_only = on"))
        person.execute(text("SELECT pg_reload_conf()"))
        try:
            yield
        finally:
            person.execute(text("ALTER SYSTEM RESET default_transaction_read_only"))
            person.execute(text("SELECT pg_reload_conf()"))
