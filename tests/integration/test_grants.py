"""The rights that the reference grants to each process are enough for it."""

import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.ladder import LADDER_TEXT
from tests.pages import blocks, libpq
from tests.plain_client import PlainClient


@pytest.fixture
def shop(postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tutorial's shop, with its tables."""
    for block in blocks("docs/tutorial.md"):
        if block.title is not None:
            path = tmp_path / block.title
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.body)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTBOXKIT_DATABASE_URL", postgresql_url)
    make_tables = "from shop.models import *; Base.metadata.create_all(engine)"
    subprocess.run([sys.executable, "-c", make_tables], check=True)


@pytest.fixture
def roles(shop: None, postgresql_url: str) -> Iterator[dict[str, str]]:
    """The roles of the reference, under names of their own, with the rights that are written there."""
    (grants,) = [block.body for block in blocks("docs/reference/tables.md") if block.language == "sql"]
    made = {name: f"{name}_{secrets.token_hex(6)}" for name in re.findall(r"CREATE ROLE (\w+);", grants)}
    for name, own in made.items():
        grants = re.sub(rf"\b{name}\b", own, grants)
    app, consumer = made["shop_app"], made["shop_consumer"]
    with psycopg.connect(libpq(postgresql_url), autocommit=True) as connection:
        connection.execute(grants)
        connection.execute(f"GRANT SELECT, INSERT, UPDATE ON orders TO {app}")
        connection.execute(f"GRANT SELECT, INSERT ON receipts TO {consumer}")
        connection.execute(f"GRANT USAGE ON orders_id_seq, receipts_id_seq TO {app}, {consumer}")
        yield made
        for own in made.values():
            connection.execute(f"DROP OWNED BY {own}; DROP ROLE {own}")


def test_documented_grants_are_enough(roles: dict[str, str], postgresql_url: str, broker: PlainClient) -> None:
    bin_folder = Path(sys.executable).parent
    settings = {"BROKER_URL": broker.url, "EXCHANGE": broker.exchange, "RETRY_LADDER": LADDER_TEXT}

    def run(role: str, command: str) -> str:
        url = f"{postgresql_url}?options=-crole%3D{roles[role]}"
        chosen = {f"OUTBOXKIT_{name}": value for name, value in ({"DATABASE_URL": url} | settings).items()}
        program, *arguments = shlex.split(command)
        done = subprocess.run(
            [bin_folder / program, *arguments], env=os.environ | chosen, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{role}: {command}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    consume = f"outboxkit consume shop.handlers --queue {broker.queue} --drain"
    run("shop_consumer", consume)
    run("shop_app", "python -m shop.orders")
    assert run("shop_relay", "outboxkit relay --drain") == "published 1"
    assert run("shop_consumer", consume) == "processed 1"
    broker.publish(b"{", topic="OrderConfirmed", message_id="poison", type="OrderConfirmed")
    assert run("shop_consumer", consume) == "dead 1"
    assert "dead letters  1" in run("shop_operator", "outboxkit status")
    with psycopg.connect(libpq(postgresql_url)) as connection:
        connection.execute("UPDATE outboxkit_inbox SET processed_at = processed_at - interval '1 year'")
    assert run("shop_operator", "outboxkit prune") == "inbox: 1 rows forgotten"
