"""What the test says of the outside world, handlers that do not end, and processes that share a database."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from outboxkit import inbox_handler
from outboxkit.testing import assert_effects_once
from tests.integration.kit import kit_more, kit_outside
from tests.integration.kit.kit_handlers import ORDERED, Ordered, Tables, right_book
from tests.integration.kit.kit_world import web


@pytest.fixture
def shop(pg_engine: Engine) -> Engine:
    Tables.metadata.create_all(pg_engine)
    return pg_engine


def test_what_the_test_allows_is_no_finding(shop: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kit_outside, "FOLDER", tmp_path)
    assert_effects_once(kit_outside.wrong_file, ORDERED, engine=shop, outside=[f"{tmp_path}/*.csv"])
    assert_effects_once(kit_outside.wrong_system, ORDERED, engine=shop, outside="true")
    with web() as port:
        monkeypatch.setattr(kit_outside, "WEB", f"http://127.0.0.1:{port}")
        assert_effects_once(kit_outside.wrong_httpx, ORDERED, engine=shop, outside="POST http://127.0.0.1:*/charges")


def test_a_finding_names_the_line_and_what_allows_it(shop: Engine, monkeypatch: pytest.MonkeyPatch):
    with web() as port:
        monkeypatch.setattr(kit_outside, "WEB", f"http://127.0.0.1:{port}")
        with pytest.raises(AssertionError) as caught:
            assert_effects_once(kit_outside.wrong_httpx, ORDERED, engine=shop)
    assert f"    POST http://127.0.0.1:{port}/charges, at kit_outside.py:" in str(caught.value)
    assert ": httpx.post(" in str(caught.value)
    assert f"if it is meant: outside=['POST http://127.0.0.1:{port}/charges']" in str(caught.value)


def test_nothing_of_the_disk_is_put_back_or_removed(shop: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kit_outside, "FOLDER", tmp_path)
    (tmp_path / "orders.csv").write_text("1,2\n")
    with pytest.raises(AssertionError, match=r"orders\.csv"):
        assert_effects_once(kit_outside.wrong_file, ORDERED, engine=shop)
    assert (tmp_path / "orders.csv").read_text().startswith("1,2\n7,19.90\n")


def test_a_mocked_client_is_watched(shop: Engine):
    httpx = pytest.importorskip("httpx")

    @inbox_handler("kit.Mocked")
    def charge(session: object, event: Ordered) -> None:
        with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200))) as client:
            client.post("http://payments/charges")
            requests.append(1)

    requests: list[object] = []
    with pytest.raises(AssertionError, match=r"remembers again in variables\n    what is watched = \d"):
        assert_effects_once(charge, ORDERED, engine=shop, watch=lambda: len(requests), ignore="its closure.*")


def test_a_handler_that_hangs_is_told_with_its_trial_and_its_line(shop: Engine):
    line = r"kit_more\.py:\d+: threading\.Event\(\)\.wait\(60\)"
    said = rf"not end within 0\.5 s in the trial 'single deliveries'\. It is at {line}\. Raise patience="
    with pytest.raises(AssertionError, match=said):
        assert_effects_once(kit_more.wrong_hangs, ORDERED, engine=shop, patience=0.5)


SUITE = """
import sys
from sqlalchemy import create_engine
from outboxkit.testing import assert_effects_once
from tests.integration.kit.kit_handlers import ORDERED, right_book

assert_effects_once(right_book, ORDERED, engine=create_engine(sys.argv[1]))
"""


def test_two_processes_on_one_database_wait_for_each_other(shop: Engine, postgresql_url: str):
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", SUITE, postgresql_url]
    others = [subprocess.Popen(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}) for _ in range(2)]
    assert_effects_once(right_book, ORDERED, engine=shop)
    assert [other.wait(120) for other in others] == [0, 0]
