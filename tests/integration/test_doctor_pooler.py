"""`outboxkit doctor` behind a real PgBouncer: one in transaction mode is found, and one in session mode is right."""

import shutil
import signal
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from outboxkit.doctor import sessions
from tests.integration.doctoring import codes, look
from tests.servers.apt import install, may_install
from tests.servers.home import SEARCH_PATH, Home
from tests.servers.ports import free_ports
from tests.servers.postgresql import answers
from tests.servers.server import ServersUnavailable
from tests.servers.waiting import not_started, read_log, wait_until

CONFIGURATION = """
[databases]
shop = host={host} port={port} dbname={database} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
"""
START_SECONDS = 60


def program() -> str:
    if shutil.which("pgbouncer", path=SEARCH_PATH) is None and may_install():
        install("pgbouncer")
    path = shutil.which("pgbouncer", path=SEARCH_PATH)
    if path is None:
        raise ServersUnavailable("pgbouncer is not there: install it")
    return path


@pytest.fixture
def pooled_url(request: pytest.FixtureRequest, postgresql_url: str) -> Iterator[str]:
    """The database behind a PgBouncer in this mode."""
    url, home, (listen,) = make_url(postgresql_url), Home("postgres"), free_ports(1)
    parts = {"host": url.host, "port": url.port, "database": url.database, "user": url.username}
    text = CONFIGURATION.format(**parts, password=url.password, listen=listen, mode=request.param)
    configuration = home.write("pgbouncer.ini", text)
    process = home.spawn((program(), configuration), {}, "pgbouncer.log", signal.SIGTERM)
    pooled = url.set(host="127.0.0.1", port=listen, database="shop").render_as_string(hide_password=False)
    try:
        if not wait_until(lambda: answers(pooled), process.alive, START_SECONDS):
            raise not_started("PgBouncer", read_log(home.folder / "pgbouncer.log"))
        yield pooled
    finally:
        home.close()


@pytest.mark.night
@pytest.mark.parametrize("pooled_url", ["transaction"], indirect=True)
def test_a_pooler_in_transaction_mode_is_a_problem(pooled_url: str) -> None:
    (finding,) = look(pooled_url, sessions.check_pooler)
    assert (finding.code, finding.severity) == ("pooler-transaction-mode", "problem")


@pytest.mark.night
@pytest.mark.parametrize("pooled_url", ["session"], indirect=True)
def test_a_pooler_in_session_mode_is_not(pooled_url: str) -> None:
    assert codes(pooled_url, sessions.check_pooler) == []
