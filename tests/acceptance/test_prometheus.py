"""A real Prometheus scrapes real workers, with the configuration and the alerts of workers/prometheus."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from sqlalchemy.orm import Session

from outboxkit import Message, outbox
from outboxkit.operators.pausing import pause_process
from outboxkit.runtime.workers import RELAY
from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.shop import OrderConfirmed
from tests.acceptance.test_admin_port import ANY, address_of
from tests.processes import ROOT
from tests.support.polling import eventually

FOLDER = ROOT / "workers" / "prometheus"
DASHBOARD = ROOT / "workers" / "grafana" / "outboxkit.json"
LISTENS = re.compile(r'msg="Listening on" address=127\.0\.0\.1:(\d+)')


class Prometheus:
    """A Prometheus of our own."""

    def __init__(self, port: int) -> None:
        self._port = port

    def is_ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=60) as answer:
                return answer.status == 200
        except HTTPError:  # it reads its storage
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(parameters)}", timeout=60) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, text: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=text)["result"]
        return found


@contextmanager
def prometheus(targets: list[str], folder: Path) -> Iterator[Prometheus]:
    """Prometheus with our configuration: other targets, and a second in place of 15."""
    shutil.copytree(FOLDER, folder)
    config = yaml.safe_load((folder / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = targets
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    log = folder / "log"
    command = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=tsdb",
        "--web.listen-address=127.0.0.1:0",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        found = eventually(lambda: LISTENS.search(log.read_text()))
        assert found is not None
        server = Prometheus(int(found[1]))
        eventually(server.is_ready)
        yield server
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.night
def test_every_query_of_alerts_and_dashboard_is_answered(deployment: Deployment, tmp_path: Path):
    workers = [deployment.start("consumer", HANDLERS, **ANY), deployment.start("relay", **ANY)]
    workers.append(deployment.start("retention", **ANY))
    with prometheus([str(address_of(worker)) for worker in workers], tmp_path / "prometheus") as server:
        eventually(lambda: server.query("up == 1"), lambda found: len(found) == len(workers))
        eventually(lambda: server.query("outboxkit_relay_connected == 1"), lambda found: len(found) == 2)
        with Session(deployment.engine) as session, session.begin():
            messages = [Message(id=f"m{number}", type="OrderConfirmed", payload=b"no event") for number in range(5)]
            outbox.add_all(session, [*messages, OrderConfirmed(1, Decimal(2))])
            outbox.add(session, Message(id="waits", type="Charge", payload=b"{}"), destination="nobody")
            pause_process(session.connection(), RELAY, "nobody", why="moved", by="ada")
        (dead,) = eventually(lambda: server.query('max(outboxkit_dead_letters_open{side="inbox"}) > 4'))
        assert dead["value"][1] == "5"
        eventually(lambda: server.query('ALERTS{alertname="OutboxkitDeadLetters"}'))
        for panel in json.loads(DASHBOARD.read_text())["panels"]:
            for target in panel["targets"]:
                text = target["expr"].replace("$__rate_interval", "1m").replace("$service", "shop")
                eventually(partial(server.query, text))
        rules = server.ask("rules")["groups"][0]["rules"]
        assert {rule["name"]: rule["health"] for rule in rules} == {rule["name"]: "ok" for rule in rules}
        assert [worker.stop() for worker in workers] == [0, 0, 0]
