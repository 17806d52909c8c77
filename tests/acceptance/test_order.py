"""Order by key with many relays, while messages fail, connections are cut and a relay is killed."""

import itertools
import random
import signal
from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest
from sqlalchemy.orm import Session

from outboxkit import Message, outbox
from tests.acceptance.deployment import Deployment
from tests.servers import Server
from tests.support.night import by_night, chance
from tests.support.plain_client import PlainClient, Received

RELAYS = 4
AMOUNTS = by_night([(50, 20_000), (1, 5000), (1000, 8000)], else_=[(50, 1500), (1, 400)])
"""Keys, and messages on them."""
TAKEN, UNDONE = "StepTaken", "StepUndone"
FLAPS = by_night(30, else_=3)
"""How often the binding of one of the two types comes and goes, while messages of both are on their way."""
QUIET = {"OUTBOXKIT_LOG_LEVEL": "info", "OUTBOXKIT_MAX_ATTEMPTS": "1000"}


@pytest.mark.parametrize(("keys", "messages"), AMOUNTS)
def test_no_key_is_ever_inverted_and_nothing_is_missing(deployment: Deployment, keys: int, messages: int):
    """Four relays, of which one is killed and one loses its connection again and again; one message in twenty fails."""
    numbers = chance("order", keys)
    deployment.broker.bind(TAKEN, UNDONE)  # so that no relay knows yet that a message may be returned
    written = write(deployment, messages // 10, keys, numbers)
    with deployment.broker_behind_proxy() as (proxy, through):
        cut_off = deployment.relay(OUTBOXKIT_BROKER_URL=through, OUTBOXKIT_BATCH_SIZE="100", **QUIET)
        relays = [deployment.relay(OUTBOXKIT_BATCH_SIZE="200", **QUIET) for _ in range(RELAYS - 1)]
        for relay in (cut_off, *relays):
            relay.wait_for("relay started")
        with flapping(deployment.broker.url, deployment.broker, proxy.cut):
            for _ in range(9):
                written += write(deployment, messages // 10, keys, numbers)
                if relays[0].is_running:
                    relays[0].kill()
        deployment.wait_for_empty_outbox()
        assert [relay.stop() for relay in (cut_off, *relays[1:])] == [0] * (RELAYS - 1)
    assert relays[0].wait() == -signal.SIGKILL
    first = first_appearances(deployment.broker.take_all())
    assert inversions(first) == []
    assert sorted((key, number) for key, numbers in first.items() for number in numbers) == sorted(written)
    assert deployment.dead_letters() == []


_NUMBERS: dict[str, Iterator[int]] = {}


def write(deployment: Deployment, messages: int, keys: int, numbers: random.Random) -> list[tuple[str, int]]:
    """Messages in small transactions, numbered by key in the order in which they are added."""
    written: list[tuple[str, int]] = []
    with Session(deployment.engine) as session:
        while len(written) < messages:
            for _ in range(min(numbers.randint(1, 40), messages - len(written))):
                key = f"{deployment.broker.queue}-{numbers.randrange(keys)}"
                number = next(_NUMBERS.setdefault(key, itertools.count(1)))
                kind = UNDONE if numbers.random() < 0.05 else TAKEN
                outbox.add(session, Message(f"{key}:{number}", kind, b"%d" % number, key=key))
                written.append((key, number))
            session.commit()
    return written


@pytest.mark.parametrize("kind", ["quorum", pytest.param("classic", marks=pytest.mark.night)])
def test_order_outlives_restarts_of_the_broker(on_own_rabbitmq: Deployment, own_rabbitmq: Server, kind: str):
    """Three relays and many keys; the broker is stopped and killed, and each relay is killed once."""
    deployment, numbers, many = on_own_rabbitmq, chance("restarts", kind), by_night(1000, else_=100)
    deployment.broker.bind(TAKEN, UNDONE, arguments={"x-queue-type": kind})
    written = write(deployment, many, many, numbers)
    relays = [deployment.relay(**QUIET) for _ in range(3)]
    breaks = [own_rabbitmq.kill, own_rabbitmq.stop, own_rabbitmq.kill]
    for turn, break_ in enumerate(by_night(breaks, else_=breaks[:1])):
        relays[turn].wait_for("relay started")
        written += write(deployment, many, many, numbers)
        break_()
        written += write(deployment, many, many, numbers)
        relays[turn].kill()
        own_rabbitmq.start()
        relays.append(deployment.relay(**QUIET))
        written += write(deployment, many // 2, many, numbers)
    deployment.wait_for_empty_outbox()
    relays[-1].wait_for("relay started")
    left = relays[turn + 1 :]
    assert [relay.stop() for relay in left] == [0] * len(left)
    deployment.broker.disconnect()
    first = first_appearances(deployment.broker.take_all())
    assert inversions(first) == []
    assert sorted((key, number) for key, numbers in first.items() for number in numbers) == sorted(written)
    assert deployment.dead_letters() == []


class flapping:  # noqa: N801 - reads as what it does
    """Meanwhile the binding of one type comes and goes, and connections are cut; at the end it is there for good."""

    def __init__(self, url: str, broker: PlainClient, cut: Callable[[], None]) -> None:
        self._client = PlainClient(url)
        self._client.exchange, self._client.queue = broker.exchange, broker.queue
        self._cut = cut
        self._end = Event()
        self._thread = Thread(target=self._flap)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._client.bind(UNDONE)
        self._client.disconnect()

    def _flap(self) -> None:
        for _ in range(FLAPS):
            self._end.wait(0.3)
            self._client.unbind(UNDONE)
            self._end.wait(0.7)
            self._client.bind(UNDONE)
            self._cut()


def first_appearances(received: list[Received]) -> dict[str, list[int]]:
    """For each key the numbers in the order in which each was first seen in the queue."""
    seen: dict[str, list[int]] = {}
    known: set[str] = set()
    for message in received:
        if message.properties.message_id not in known:
            known.add(message.properties.message_id)
            seen.setdefault(message.properties.headers["outboxkit-key"], []).append(int(message.body))
    return seen


def inversions(first: dict[str, list[int]]) -> list[tuple[str, int, int]]:
    """Each key with a number that came after a higher one."""
    return [
        (key, before, after)
        for key, numbers in first.items()
        for before, after in itertools.pairwise(numbers)
        if after < before
    ]
