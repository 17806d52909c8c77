"""A consumer's lifespan in a process: it begins before the first message, and ends after the last handler."""

import pytest

from tests.acceptance.deployment import Deployment
from tests.acceptance.wired import GATE
from tests.acceptance.worker_process import WorkerProcess
from tests.support.polling import eventually

MODULE = "tests.acceptance.wired"


def start(deployment: Deployment, *, fate: str = "", **settings: str) -> WorkerProcess:
    return deployment.start("consumer", MODULE, LIFESPAN=fate, **settings)


def ring(deployment: Deployment, number: int = 1) -> None:
    body = b'{"number":%d}' % number
    deployment.broker.publish(body, topic="Rung", message_id=f"ring-{number}", type="Rung", correlation_id="story")


def told(consumer: WorkerProcess) -> list[str]:
    """What the module has logged, and the consumer's end."""
    wanted = ("lifespan begins", "rung", "lifespan ends", "consumer stopped")
    return [entry["event"] for entry in consumer.entries() if entry["event"] in wanted]


def test_handlers_in_flight_end_before_it_does(deployment: Deployment):
    consumer = start(deployment)
    consumer.wait_for("consumer connected")
    with deployment.lock_held(GATE):
        ring(deployment)
        eventually(lambda: deployment.waiting_on("advisory"))
        consumer.terminate()
        consumer.wait_for("stopping when the running handlers have ended; a second signal stops at once")
        assert told(consumer) == ["lifespan begins"]
    assert consumer.wait() == 0
    assert told(consumer) == ["lifespan begins", "rung", "consumer stopped", "lifespan ends"]
    for event in ("rung", "rung plainly"):
        assert consumer.entries(event)[0]["is_open"]


def test_after_the_deadline_it_ends_when_the_handlers_were_given_up(deployment: Deployment):
    consumer = start(deployment, OUTBOXKIT_SHUTDOWN_TIMEOUT="100ms")
    consumer.wait_for("consumer connected")
    with deployment.lock_held(GATE):
        ring(deployment)
        eventually(lambda: deployment.waiting_on("advisory"))
        assert consumer.stop() == 0
    assert "rung" not in told(consumer)
    assert told(consumer)[-1] == "lifespan ends"


def test_one_that_does_not_end_is_cancelled(deployment: Deployment):
    consumer = start(deployment, fate="hangs", OUTBOXKIT_SHUTDOWN_TIMEOUT="100ms")
    consumer.wait_for("consumer connected")
    assert consumer.stop() == 0
    assert told(consumer) == ["lifespan begins", "consumer stopped", "lifespan ends"]


@pytest.mark.parametrize("fate", ["fails at start", "fails at end"])
def test_its_failure_is_told_and_is_the_exit_code(deployment: Deployment, fate: str):
    consumer = start(deployment, fate=fate)
    if fate == "fails at end":
        consumer.wait_for("consumer connected")
        consumer.terminate()
    assert consumer.wait() == 1
    *_, last = (line for line in consumer.log.read_text().splitlines() if not line.startswith("{"))
    when = fate.removeprefix("fails at ")
    where = "the lifespan tests.acceptance.wired.lifespan"
    assert last.endswith(f": {where} failed at its {when}: ConnectionRefusedError: no bell at port 1")
    assert '"event": "the lifespan failed"' in consumer.log.read_text()
    assert "wired.py" in consumer.log.read_text()


def test_lines_of_handlers_have_their_message_and_the_start_says_what_runs(deployment: Deployment):
    consumer = start(deployment, OUTBOXKIT_LOG_LEVEL="info")
    consumer.wait_for("consumer connected")
    ring(deployment)
    consumer.wait_for("rung plainly")
    assert consumer.stop() == 0
    for event, handler in (("rings 1", "wired.Ring"), ("rung", "wired.Ring"), ("rung plainly", "wired.RingPlainly")):
        fields = {"message_id": "ring-1", "type": "Rung", "handler": handler, "correlation_id": "story"}
        (line,) = consumer.entries(event)
        assert {name: line.get(name) for name in fields} == fields
    (starting,) = consumer.entries("consumer starting")
    assert starting["queue"] == deployment.broker.queue
    assert starting["exchange"] == deployment.broker.exchange
    assert (starting["handlers"], "@" in starting["broker"], "@" in starting["database"]) == (2, False, False)
    loaded = [(line["handler"], line["type"], line["function"]) for line in consumer.entries("handler loaded")]
    assert loaded == [
        ("wired.Ring", "Rung", f"{MODULE}.ring"),
        ("wired.RingPlainly", "Rung", f"{MODULE}.ring_plainly"),
    ]
