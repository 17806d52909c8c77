"""The admin port of real processes: what it tells in outages, and that nobody who asks there slows them down."""

import socket

import pytest

from outboxkit.runtime.urls import ListenAddress
from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.worker_process import WorkerProcess
from tests.support.admin_client import Answered, connect, get
from tests.support.polling import eventually

ANY = {"OUTBOXKIT_ADMIN_PORT": "0"}


def address_of(worker: WorkerProcess) -> ListenAddress:
    host, _, port = worker.wait_for("admin port open")["address"].rpartition(":")
    return ListenAddress(host, int(port))


def becomes(address: ListenAddress, status: int, line: str) -> Answered:
    """The answer of /readyz once it has this status and a line that begins so."""
    return eventually(
        lambda: get(address, "/readyz"),
        lambda answer: answer.status == status and any(each.startswith(line) for each in answer.lines),
    )


@pytest.mark.parametrize("name", ["relay", "consumer", "retention"])
def test_each_worker_is_live_ready_and_measured(deployment: Deployment, name: str):
    worker = deployment.start(name, *([HANDLERS] if name == "consumer" else []), **ANY)
    address = address_of(worker)
    assert address.host == "127.0.0.1"
    becomes(address, 200, "database: connected")
    assert get(address, "/livez").status == 200
    scrape = get(address, "/metrics")
    assert (scrape.status, scrape.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"\nprocess_resident_memory_bytes " in scrape.body
    assert worker.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        connect(address)


@pytest.mark.parametrize("name", [pytest.param("relay", marks=pytest.mark.night), "consumer"])
def test_an_outage_makes_a_worker_not_ready_and_leaves_it_live(deployment: Deployment, name: str):
    with (
        deployment.broker_behind_proxy() as (broker, broker_url),
        deployment.database_behind_proxy() as (database, url),
    ):
        through = {"OUTBOXKIT_BROKER_URL": broker_url, "OUTBOXKIT_DATABASE_URL": url}
        worker = deployment.start(name, *([HANDLERS] if name == "consumer" else []), **ANY, **through)
        address = address_of(worker)
        becomes(address, 200, "broker: connected")
        for server, proxy in (("broker", broker), ("database", database)):
            proxy.refuse()
            becomes(address, 503, f"{server}: ")
            assert get(address, "/livez").status == 200
            proxy.accept()
            becomes(address, 200, f"{server}: connected")
        assert worker.stop() == 0


def test_a_worker_is_measured_in_an_outage_that_lasts_since_its_start(deployment: Deployment):
    line = b'\noutboxkit_relay_connected{destination="default",server="database"} 0.0\n'
    with deployment.database_behind_proxy() as (database, url):
        database.refuse()
        relay = deployment.start("relay", **ANY, OUTBOXKIT_DATABASE_URL=url)
        address = address_of(relay)
        relay.wait_for("database is away, waiting")
        eventually(lambda: get(address, "/metrics").body, lambda body: line in body)
        assert relay.stop() == 0


def test_a_database_that_does_not_answer_is_told_in_time(deployment: Deployment):
    with deployment.database_behind_proxy() as (database, url):
        retention = deployment.start("retention", **ANY, OUTBOXKIT_DATABASE_URL=url)
        address = address_of(retention)
        retention.wait_for("inbox pruned")
        database.swallow()
        becomes(address, 503, "database: no answer within 3 s")
        assert get(address, "/livez").status == 200
        database.release()
        becomes(address, 200, "database: connected")
        assert retention.stop() == 0


def test_a_port_that_is_taken_ends_the_process_with_one_line(deployment: Deployment):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        relay = deployment.start("relay", OUTBOXKIT_ADMIN_PORT=str(port))
        assert relay.wait() == 2
    (line,) = relay.log.read_text().splitlines()
    told = f"OUTBOXKIT_ADMIN_PORT is '127.0.0.1:{port}': nothing can listen there (Address already in use)"
    assert line.partition(": ")[2].startswith(told)
