"""What an operator sees of a relay through an outage: its log, `outboxkit status`, and what arrives at the queue."""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from sqlalchemy import make_url, select

from outboxkit import tables
from tests.acceptance.deployment import Deployment
from tests.acceptance.shop import OrderConfirmed, send
from tests.acceptance.worker_process import WorkerProcess
from tests.polling import eventually

KEYS = 2


def states(process: WorkerProcess, what: str) -> Sequence[str]:
    """What a process has said about a server, in order."""
    said = {f"{what} is away, waiting": "away", f"{what} is back, work goes on": "back"}
    return [said[entry["event"]] for entry in process.entries() if entry["event"] in said]


class Witness:
    """Sends messages to one queue through a relay, and remembers which."""

    def __init__(self, deployment: Deployment, relay: WorkerProcess) -> None:
        self.deployment = deployment
        self.relay = relay
        self.sent: list[str] = []
        self.arrived: list[str] = []

    def send(self, count: int = 4) -> None:
        """Commit so many messages, of a few keys in turn."""
        for number in range(len(self.sent), len(self.sent) + count):
            (message,) = send(
                self.deployment.engine, OrderConfirmed(number, Decimal(1)), key=f"customer-{number % KEYS}"
            )
            self.sent.append(message.id)

    def collect(self) -> None:
        """Wait until all that was sent is published, and take it from the queue."""
        self.deployment.wait_for_empty_outbox()
        self.deployment.broker.disconnect()  # it may have gone with the outage
        self.arrived += [received.properties.message_id for received in self.deployment.broker.take_all()]

    def assert_away(self, what: str, *because: str) -> None:
        """The relay has said once that it waits, and why: one of these."""
        said = self.relay.wait_for(f"{what} is away, waiting")
        assert any(reason in said["error"] for reason in because), said["error"]
        assert "\n" not in said["error"]
        assert said["level"] == "warning"

    def assert_status(self, waiting: int) -> None:
        """`outboxkit status` answers: so many messages wait, and none of them is to blame."""
        answered = self.deployment.outboxkit("status", "--json")
        assert (answered.returncode, answered.stderr) == (0, "")
        found = json.loads(answered.stdout)
        outbox, seen = found["outbox"], self.blamed()
        assert outbox["pending"]["value"] == outbox["ready"]["value"] == waiting
        assert outbox["by_type"]["OrderConfirmed"]["failed_before"]["value"] == 0
        assert outbox["oldest_age_seconds"] > 0
        assert found["dead_letters"]["open"]["value"] == 0
        assert seen == []

    def blamed(self) -> list[Any]:
        """Rows of the outbox for which something was counted."""
        query = select(tables.outbox).where((tables.outbox.c.attempts > 0) | tables.outbox.c.last_error.is_not(None))
        with self.deployment.engine.connect() as connection:
            return list(connection.execute(query))

    def assert_all_arrived(self, what: str | None, *, times: int = 1) -> None:
        """Work has resumed by itself: all of it is there, in order, under its ids, and nothing was counted or buried.

        The log says once for each outage of `what` that it is away and that it is back, and nothing else that a
        person would look at: no failure, no traceback, no password.
        """
        self.collect()
        if what is not None:
            self.relay.wait_for(f"{what} is back, work goes on", times=times)
            assert states(self.relay, what) == ["away", "back"] * times
        assert self.relay.stop() == 0
        firsts = list(dict.fromkeys(self.arrived))
        assert [firsts_of(firsts, self.sent, key) for key in range(KEYS)] == [
            self.sent[key::KEYS] for key in range(KEYS)
        ]
        assert not self.deployment.dead_letters()
        told = self.relay.entries()
        assert not [entry for entry in told if entry["level"] == "error" or entry["event"] == "message not published"]
        assert len([entry for entry in told if entry["level"] == "warning"]) == (times if what else 0), told
        assert_discreet(self.relay.log.read_text(), self.deployment)


def firsts_of(arrived: list[str], sent: list[str], key: int) -> list[str]:
    """The first appearances of a key's messages."""
    wanted = set(sent[key::KEYS])
    return [message_id for message_id in arrived if message_id in wanted]


def assert_discreet(text: str, deployment: Deployment) -> None:
    """No traceback, no password."""
    assert "Traceback" not in text
    for url in ("OUTBOXKIT_DATABASE_URL", "OUTBOXKIT_BROKER_URL"):
        assert str(make_url(deployment.environment[url]).password) not in text


def status_says(deployment: Deployment) -> str:
    """The one line in which `outboxkit status` says that it cannot ask; AssertionError if it is not one line."""
    answered = eventually(lambda: deployment.outboxkit("status"), lambda done: done.returncode != 0)
    assert (answered.returncode, answered.stdout) == (1, "")
    (line,) = answered.stderr.splitlines()
    assert_discreet(line, deployment)
    return line
