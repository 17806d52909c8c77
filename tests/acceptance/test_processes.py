"""`--processes`: several processes of one command, and the supervisor that keeps them."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outboxkit.codec import payloads
from outboxkit.runtime.urls import ListenAddress
from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.shop import GATE, OrderGated, take_orders
from tests.acceptance.worker_process import WorkerProcess
from tests.support.admin_client import get
from tests.support.polling import eventually

TWO = ("--processes", "2")


@pytest.fixture(autouse=True)
def _commands(deployment: Deployment) -> Iterator[None]:
    deployment.programs = "outboxkit"
    yield
    for worker in deployment.processes:
        for pid in pids(worker):
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)


def pids(worker: WorkerProcess) -> list[int]:
    """The processes that a supervisor has started so far."""
    return [entry["pid"] for entry in worker.entries("process started")]


def is_gone(pid: int) -> bool:
    """Whether a process has ended, though nobody may have asked for its exit code."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def consumers(deployment: Deployment, **settings: str) -> WorkerProcess:
    """Two consumers, once both are connected."""
    started = deployment.start("consumer", HANDLERS, *TWO, **settings)
    started.wait_for("consumer connected", times=2)
    return started


def publish_gated(deployment: Deployment, count: int) -> None:
    for number in range(count):
        body, id_ = payloads.encode(OrderGated(number)), f"gated-{number}"
        deployment.broker.publish(body, topic="OrderGated", type="OrderGated", message_id=id_)


def test_a_killed_process_is_started_again_and_nothing_is_lost_or_doubled(deployment: Deployment):
    workers = [consumers(deployment), deployment.start("relay", *TWO)]
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(take_orders, deployment.engine, range(1, 301), roll_back_every=7)
        for worker in workers:
            worker.wait_for("process started", times=2)
            os.kill(pids(worker)[0], signal.SIGKILL)
        for worker in workers:
            died = worker.wait_for("process died, starts again")
            assert (died["process_number"], died["why"], died["after"]) == (1, "signal 9: Killed", "1s")
            worker.wait_for("process started", times=3)
        kept = taking.result()
    assert deployment.wait_for_effects(len(kept)) == dict.fromkeys(kept, 1)
    for worker in workers:
        assert worker.stop() == 0
        assert all(map(is_gone, pids(worker)))
    assert deployment.effects() == dict.fromkeys(kept, 1)


def test_processes_end_with_a_supervisor_that_is_killed(deployment: Deployment):
    worker = consumers(deployment)
    with deployment.lock_held(GATE):
        publish_gated(deployment, 1)
        eventually(lambda: deployment.waiting_on("advisory") == 1)
        worker.kill()
        assert deployment.effects() == {}
    for pid in pids(worker):
        eventually(lambda pid=pid: is_gone(pid))
    assert deployment.effects() == {0: 1}


def test_a_stop_finishes_what_is_in_hand_though_each_process_gets_the_signal_too(deployment: Deployment):
    worker = consumers(deployment, OUTBOXKIT_CONCURRENCY="1", OUTBOXKIT_SHUTDOWN_TIMEOUT="1h")
    with deployment.lock_held(GATE):
        publish_gated(deployment, 4)
        eventually(lambda: deployment.waiting_on("advisory") == 2)
        for pid in pids(worker):
            os.kill(pid, signal.SIGTERM)
        worker.terminate()
        assert deployment.effects() == {}
    assert worker.wait() == 0
    assert deployment.effects().total() == 2
    assert eventually(deployment.broker.depth, lambda depth: depth == 2)


def test_a_refused_start_is_one_line_with_its_own_exit_code(deployment: Deployment):
    deployment.broker.bind("Other", arguments={"x-queue-type": "classic"})
    ended = deployment.outboxkit("consume", HANDLERS, *TWO)
    (line,) = [each for each in ended.stderr.splitlines() if not each.startswith("{")]
    assert (ended.returncode, line.partition(" with other")[0]) == (
        2,
        f"outboxkit: the broker has queue {deployment.broker.queue!r}, or '{deployment.broker.queue}.dead',",
    )
    assert "starts again" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("relay", "--database-url", "sqlite:///shop.db"), "--processes is 2, and the database is SQLite"),
        (("run", "shop", "--reload"), "--reload"),
    ],
)
def test_what_does_not_go_together_is_refused(deployment: Deployment, arguments: tuple[str, ...], reason: str):
    ended = deployment.outboxkit(*arguments, "--processes", "2")
    assert ended.returncode == 2
    assert reason in ended.stderr


@pytest.mark.night
def test_a_drain_ends_when_all_have_drained(deployment: Deployment):
    deployment.declare_queue()
    take_orders(deployment.engine, range(1, 21))
    relayed = deployment.outboxkit("relay", "--drain", *TWO)
    assert (relayed.returncode, sum(int(line.split()[1]) for line in relayed.stdout.splitlines())) == (0, 20)
    consumed = deployment.outboxkit("consume", HANDLERS, "--drain", *TWO)
    assert (consumed.returncode, len(consumed.stdout.splitlines())) == (0, 2)
    assert deployment.effects() == dict.fromkeys(range(1, 21), 1)


def test_one_admin_port_answers_for_all(deployment: Deployment):
    worker = consumers(deployment, OUTBOXKIT_ADMIN_PORT="0")
    host, _, port = worker.wait_for("admin port open")["address"].rpartition(":")
    address = ListenAddress(host, int(port))
    connected = [f"process {number}: database: connected, broker: connected" for number in (1, 2)]
    assert get(address, "/readyz").lines == ["ready", *connected]
    assert get(address, "/livez").lines == ["live", "process 1: live", "process 2: live"]
    metrics = get(address, "/metrics").lines
    for number in "12":
        assert any(line.startswith(f'process_open_fds{{process_number="{number}"}} ') for line in metrics)
    assert metrics.count("# TYPE process_open_fds gauge") == 1
    os.kill(pids(worker)[0], signal.SIGKILL)
    worker.wait_for("process died, starts again")
    assert worker.entries("consumer connected")[0]["process_number"] in (1, 2)
    assert get(address, "/livez").status == 200
    assert get(address, "/readyz").lines[:2] == [
        "not ready",
        "process 1: died (signal 9: Killed), starts again after 1 s",
    ]
    eventually(lambda: get(address, "/readyz").status == 200)
    os.kill(pids(worker)[1], signal.SIGSTOP)
    assert get(address, "/livez").lines[::2] == ["not live", "process 2: no answer within 5 s"]
    os.kill(pids(worker)[1], signal.SIGCONT)
    assert worker.stop() == 0
