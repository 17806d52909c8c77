"""The examples, run as their README files say: the commands are read from there and typed into a shell."""

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import create_engine, func, select, text

from outboxkit import tables
from tests.processes import ROOT, programs
from tests.servers import Server, create_database, drop_database
from tests.support.plain_client import PlainClient

EXAMPLES = ROOT / "examples"
SECONDS = 180


def fenced(page: Path, language: str) -> list[str]:
    """The code blocks of a page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def with_exports(script: str, values: dict[str, str]) -> str:
    """The script with the values of its `export NAME=value` lines replaced, each of which must be there once."""
    for name, value in values.items():
        script, found = re.subn(
            rf"^export {name}=.*$", lambda _, line=f"export {name}='{value}'": line, script, flags=re.M
        )
        assert found == 1, f"export {name}=… stands {found} times in the README"
    return script


def run_script(script: str, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Type a script into `sh`, which ends at the first command that fails; nothing that it started stays."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOXKIT_")}
    path = os.pathsep.join((str(programs()), str(Path(sys.executable).parent), kept["PATH"]))
    shell = subprocess.Popen(
        ["sh", "-eu", "-c", script],
        cwd=folder,
        env={**kept, "PATH": path, **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = shell.communicate(timeout=SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    return subprocess.CompletedProcess(script, shell.returncode, output, errors)


def test_hello_prints_what_its_readme_shows():
    page = EXAMPLES / "1_hello" / "README.md"
    done = run_script("".join(fenced(page, "sh")), ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    (shown,) = fenced(page, "text")
    assert without_ids(done.stdout) == without_ids(shown)


def without_ids(output: str) -> str:
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", output)


@contextmanager
def new_databases(server: Server, *names: str) -> Iterator[list[str]]:
    """New databases without any table."""
    made = [f"outboxkit_{name}_{secrets.token_hex(6)}" for name in names]
    yield [create_database(server.url, name) for name in made]
    for name in made:
        drop_database(server.url, name)


@pytest.fixture
def two_databases(postgresql: Server) -> Iterator[list[str]]:
    with new_databases(postgresql, "orders", "billing") as urls:
        yield urls


@pytest.fixture
def named_queues(broker: PlainClient) -> Iterator[PlainClient]:
    """A broker that has none of the queues which the README names, before and after."""
    queues = [f"{name}{suffix}" for name in ("orders", "billing") for suffix in ("", ".dead")]
    for queue in queues:
        broker.delete_queue(queue)
    yield broker
    for queue in queues:
        broker.delete_queue(queue)


def test_two_services_do_what_their_readme_says(two_databases: list[str], named_queues: PlainClient):
    orders_url, billing_url = two_databases
    page = EXAMPLES / "2_two_services" / "README.md"
    urls = {
        "ORDERS_DATABASE_URL": orders_url,
        "BILLING_DATABASE_URL": billing_url,
        "OUTBOXKIT_BROKER_URL": named_queues.url,
    }
    script = with_exports("".join(fenced(page, "sh")), urls)

    done = run_script(script, page.parent, OUTBOXKIT_EXCHANGE=named_queues.exchange)

    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("published 10") == 2
    assert lines.count("processed 10") == 2
    total = sum(Decimal("19.90") * number for number in range(1, 11))
    assert f"orders: placed 10 over {total}" in lines
    assert f"billing: 10 invoices for 10 orders over {total}" in lines
    assert "orders: 110, each with its invoice" in lines
    assert lines[-1].startswith("billing: 110 invoices for 110 orders over ")
    assert done.stderr.count('"relay stopped"') == 2
    assert done.stderr.count('"consumer stopped"') == 2
    check_orders(orders_url, total=total + sum(Decimal("19.90") * number for number in range(1, 101)))
    for url in two_databases:
        assert counted(url) == [0, 0, 110, 0]


def check_orders(url: str, *, total: Decimal) -> None:
    """Each order has one invoice, and it was caused by the message which announced that very order."""
    engine = create_engine(url)
    with engine.connect() as connection:
        asked = "SELECT count(*), sum(total), count(DISTINCT invoice), count(DISTINCT message_id) FROM orders"
        assert connection.execute(text(asked)).one() == (110, total, 110, 110)
        other = "SELECT count(*) FROM orders WHERE caused_by IS DISTINCT FROM message_id OR status <> 'invoiced'"
        assert connection.execute(text(other)).scalar_one() == 0
    engine.dispose()


def counted(url: str) -> list[int]:
    """Messages that wait, that are kept, that were handled, and that were given up."""
    engine = create_engine(url)
    every = (tables.outbox, tables.published, tables.inbox, tables.dead_letter)
    with engine.connect() as connection:
        found = [connection.execute(select(func.count()).select_from(table)).scalar_one() for table in every]
    engine.dispose()
    return found


def test_examples_are_listed():
    listed = re.findall(r"^\| \[(\w+)\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert listed == sorted(page.parent.name for page in EXAMPLES.glob("*/README.md"))
