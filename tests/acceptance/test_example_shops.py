"""Examples 3 and 4 as programs: what a stranger types, how they end, and what they leave behind."""

import json
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.acceptance.shop_driver import FASTAPI, FLASK, Shop, ledger, port_is_free, serving
from tests.acceptance.test_examples import fenced, run_script, with_exports

BOTH = pytest.mark.parametrize("folder", [FASTAPI, FLASK], ids=lambda folder: folder.name)
SAME = ("outside", "shop/orders.py", "shop/events.py", "shop/workers.py", "shop/at_once.py")


def without_what_differs(line: str) -> str:
    """Without ids and message keys, which are other ones each time."""
    return re.sub(r'"key": "[^"]+"', '"key": "…"', line)


@BOTH
def test_the_readme_shows_what_happens(folder: Path, tmp_path: Path):
    page = folder / "README.md"
    with serving(folder, tmp_path / "data") as shop:
        urls = {"SHOP": shop.url, "PAYMENTS": shop.payments_url()}
        done = run_script(with_exports("".join(fenced(page, "sh")), urls), folder)
        assert (done.returncode, done.stderr) == (0, "")
        said = [without_what_differs(line) for line in done.stdout.splitlines()]
        shown = [without_what_differs(line) for block in fenced(page, "text") for line in block.splitlines()]
        assert [line for line in shown if line not in said] == []
        refused = [json.loads(line)["status"] for line in said if '"title"' in line]
        assert refused == ([422, 400, 412, 409, 409] if folder == FASTAPI else [])
        assert len(ledger(shop.payments_url())) == 1


def test_the_copies_in_example_4_are_those_of_example_3():
    for name in SAME:
        files = [FASTAPI / name] if name.endswith(".py") else sorted((FASTAPI / name).glob("*.py"))
        assert files
        for file in files:
            assert file.read_text() == (FLASK / file.relative_to(FASTAPI)).read_text(), file.name


@BOTH
def test_sigterm_ends_it_and_a_new_start_goes_on(folder: Path, tmp_path: Path):
    with serving(folder, tmp_path / "data") as shop:
        ada = shop.client()
        order = ada.placed(key="kept")
        assert shop.running is not None
        assert shop.running.stop() == -signal.SIGTERM  # of make, which passes it on and waits
        assert "Traceback" not in shop.log.read_text()
        assert port_is_free(shop.port)
        shop.start()
        again = shop.ready().client(ada.user).place(key="kept")
        assert (again.json()["order_id"], again.headers["Idempotency-Replayed"]) == (order, "true")


@BOTH
def test_it_does_not_outlive_a_make_that_was_killed(folder: Path, tmp_path: Path):
    with serving(folder, tmp_path / "data") as shop:
        assert shop.running is not None
        shop.running.popen.kill()
        shop.running.popen.wait()
        shop.start()  # at the same port, while the old one may still be leaving
        assert shop.ready().client().place().status_code == 201


def test_its_neighbours_take_other_ports_where_theirs_are_taken(tmp_path: Path):
    shop = Shop(FLASK, tmp_path / "data")
    taken = [socket.create_server(("127.0.0.1", shop.port + number)) for number in (1, 2)]
    try:
        shop.ready()
        assert shop.payments_url() != f"http://127.0.0.1:{shop.port + 1}"
        assert ledger(shop.payments_url()) == []
    finally:
        shop.close()
        for one in taken:
            one.close()
