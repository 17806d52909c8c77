"""TLS that is verified at both ends; each process has a certificate and only its rights."""

import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import Session

from outboxkit import outbox
from tests.acceptance import shop
from tests.acceptance.deployment import HANDLERS, Deployment
from tests.acceptance.worker_process import WorkerProcess
from tests.processes import COMMAND, run_to_end
from tests.servers import create_database, provide_postgresql, rabbitmq
from tests.servers.certificates import Certificates
from tests.servers.cluster import provide_encrypted
from tests.servers.postgresql import PrivatePostgresql, find_programs
from tests.support.databases import migrate
from tests.support.pages import blocks, libpq
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually

PAGE = "docs/how-to/grant-least-privileges.md"
ROLES = {"writer": "shop_writer", "relay": "shop_relay", "billing": "shop_consumer", "operator": "shop_operator"}
"""The role of the page that each process has. Its own name is that of its certificate."""


class Guarded(NamedTuple):
    """Servers that let in nobody without a certificate but the tests' own administrator, and what each process is told.

    Attributes:
        deployment: as the administrator sees it.
        certificates: of the servers and processes.
        broker: the node.
        urls: the URLs of database and broker with the certificate of this process.
    """

    deployment: Deployment
    certificates: Certificates
    broker: rabbitmq.PrivateRabbitmq
    urls: dict[str, tuple[str, str]]

    def run(self, process: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one `outboxkit` command to its end."""
        return run_to_end([COMMAND, *arguments], self.deployment.environment | self.named(process))

    def start(self, process: str, name: str, *arguments: str) -> WorkerProcess:
        """Start a worker."""
        return self.deployment.start(name, *arguments, **self.named(process))

    @staticmethod
    def trusting(authority: str, url: str) -> str:
        """The URL with another authority."""
        return re.sub(r"(?<=cafile=)[^&]+|(?<=sslrootcert=)[^&]+", lambda _: quote(authority, safe=""), url)

    def named(self, process: str) -> dict[str, str]:
        """Its variables."""
        return dict(zip(("OUTBOXKIT_DATABASE_URL", "OUTBOXKIT_BROKER_URL"), self.urls[process], strict=True))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    tmp_path = tmp_path_factory.mktemp("guarded")
    programs = find_programs()
    if programs is None:
        provide_postgresql()
        programs = find_programs()
    assert programs is not None
    certificates = Certificates(tmp_path)
    postgresql, broker = PrivatePostgresql(programs, tls=certificates), provide_encrypted(certificates)
    try:
        postgresql.start()
        broker.start()
        database = create_database(postgresql.url, "shop")
        migrate(database)
        client = PlainClient(broker.url)
        client.exchange, client.queue = "outboxkit", "billing"
        deployment = Deployment(database, client, tmp_path)
        deployment.programs = "outboxkit"
        make_roles(database)
        make_users(broker)
        urls = {name: urls_of(name, database, broker.tls_url, certificates) for name in ROLES}
        yield Guarded(deployment, certificates, broker, urls)
        deployment.close()
        client.disconnect()
    finally:
        broker.close()
        postgresql.close()


def make_roles(database: str) -> None:
    """The page's roles; and for each process one that may log in, with its rights and those on the shop's tables."""
    script = next(block.body for block in blocks(PAGE) if block.kind == "sql")
    with psycopg.connect(libpq(database), autocommit=True) as connection:
        connection.execute(script)
        for name, role in ROLES.items():
            connection.execute(f"CREATE ROLE {name} LOGIN IN ROLE {role}")
        connection.execute(
            "GRANT SELECT, INSERT ON shop_order TO writer; GRANT SELECT, INSERT ON shop_effect TO billing"
        )
        connection.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO writer, billing")


def make_users(broker: rabbitmq.PrivateRabbitmq) -> None:
    """A user for each certificate, with the rights that the page grants, or none at all."""
    page = Path(PAGE).read_text()
    for name in ROLES:
        broker.execute("rabbitmqctl", "add_user", name, "not used")
        granted = re.search(rf"^rabbitmqctl set_permissions {name} '(.+)' '(.+)' '(.+)'$", page, re.MULTILINE)
        patterns = granted.groups() if granted else ("^$", "^$", "^$")
        broker.execute("rabbitmqctl", "set_permissions", name, *patterns)


def urls_of(name: str, database: str, broker: str, certificates: Certificates) -> tuple[str, str]:
    certificate, key = map(str, certificates.client(name))
    authority = str(certificates.authority)
    shown = {"sslmode": "verify-full", "sslrootcert": authority, "sslcert": certificate, "sslkey": key}
    url = make_url(database).set(username=name, password=None, host="localhost").update_query_dict(shown)
    options = f"?auth=external&cafile={authority}&certfile={certificate}&keyfile={key}"
    return url.render_as_string(hide_password=False), broker + options


def test_every_process_does_its_work_with_a_certificate_and_its_own_rights(guarded: Guarded):
    """And orders have one effect each, although relay and consumer are killed in between. A replay, too."""
    declared = guarded.run("billing", "consume", HANDLERS, "--drain")
    assert declared.returncode == 0, declared.stderr
    writer = create_engine(guarded.urls["writer"][0])
    kept = shop.take_orders(writer, range(1, 41), roll_back_every=4)
    relay, consumer = guarded.start("relay", "relay"), guarded.start("billing", "consumer", HANDLERS)
    guarded.deployment.wait_for_effects(5)
    relay.kill()
    consumer.kill()
    kept |= shop.take_orders(writer, range(41, 61))
    relay, consumer = guarded.start("relay", "relay"), guarded.start("billing", "consumer", HANDLERS)
    eventually(lambda: guarded.deployment.effects().total() >= len(kept))
    guarded.deployment.wait_for_empty_outbox()
    with Session(writer) as session, session.begin():
        outbox.add(session, shop.OrderRefused(7))
    writer.dispose()
    eventually(lambda: len(guarded.deployment.dead_letters()) == 1)
    replayed = guarded.run("operator", "dead", "replay", "--side", "inbox", "--yes")
    assert replayed.returncode == 0, replayed.stderr
    eventually(lambda: len(guarded.deployment.dead_letters()) == 2)
    guarded.deployment.wait_for_empty_outbox()
    assert (relay.stop(), consumer.stop()) == (0, 0)
    assert guarded.deployment.effects() == dict.fromkeys(kept, 1)
    status = guarded.run("operator", "status")
    assert (status.returncode, "HandleOrderConfirmed" in status.stdout) == (0, True), status.stdout + status.stderr


@pytest.mark.night
def test_a_certificate_that_has_expired_is_an_outage_until_there_is_another_one(guarded: Guarded):
    """The new one has the name of the old file, and no process is started again."""
    declared = guarded.run("billing", "consume", HANDLERS, "--drain")
    assert declared.returncode == 0, declared.stderr
    ends = datetime.now(UTC) + timedelta(seconds=15)
    guarded.certificates.client("relay", ends=ends)
    relay = guarded.start("relay", "relay")
    relay.wait_for("relay started")
    before = shop.take_orders(guarded.deployment.engine, range(101, 104))
    guarded.deployment.wait_for_empty_outbox()
    eventually(lambda: datetime.now(UTC) > ends)
    url = guarded.deployment.environment["OUTBOXKIT_DATABASE_URL"]
    with psycopg.connect(libpq(url), autocommit=True) as administrator:
        administrator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay'")
    guarded.broker.execute("rabbitmqctl", "close_all_user_connections", "relay", "the certificate has expired")
    after = shop.take_orders(guarded.deployment.engine, range(104, 107))
    relay.assert_away("database", "terminating connection")
    relay.assert_away("broker", "expired", "reset by peer")
    assert "certificate expired" in relay.wait_for("the query for a pause failed")["error"]
    assert len(guarded.deployment.outbox_rows()) == len(after)
    guarded.certificates.client("relay")
    guarded.deployment.wait_for_empty_outbox()
    assert relay.stop() == 0
    assert guarded.run("billing", "consume", HANDLERS, "--drain").returncode == 0
    effects = guarded.deployment.effects()
    assert {order: effects[order] for order in before | after} == dict.fromkeys(before | after, 1)


@pytest.mark.night
def test_a_server_that_another_authority_vouches_for_is_not_trusted(guarded: Guarded, tmp_path: Path):
    other = str(Certificates(tmp_path).authority)
    database, broker = guarded.urls["relay"]
    for name, url in (("DATABASE", database), ("BROKER", broker)):
        wrong = guarded.named("relay") | {f"OUTBOXKIT_{name}_URL": guarded.trusting(other, url)}
        ended = run_to_end([COMMAND, "relay", "--drain"], guarded.deployment.environment | wrong)
        assert ended.returncode != 0
        assert "certificate verify failed" in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.night
def test_a_process_does_nothing_with_the_certificate_of_another_one(guarded: Guarded):
    """A relay shows that of the consumer; its role may not claim, and it says which right it lacks."""
    ended = guarded.run("billing", "relay", "--drain")
    assert ended.returncode != 0
    assert "permission denied" in ended.stderr or "lacks" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr
