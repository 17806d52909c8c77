"""Example 3, the shop on FastAPI and on Flask: driven by HTTP, killed at random, and ended as a stranger ends it."""

import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.shop_contract import CASES, Case
from tests.acceptance.shop_driver import SHOP, Shop, ledger, port_is_free, serving
from tests.acceptance.shop_servers import servers_of
from tests.acceptance.shop_storm import check, payment_server, weather
from tests.acceptance.test_examples import fenced, run_script, with_exports
from tests.support.night import by_night


def at_night(*names: str) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.night) for name in names]


ONE_BY_DAY = pytest.mark.parametrize("app", ["fastapi", *at_night("flask")])


@pytest.fixture(
    scope="module",
    params=[
        *("fastapi on postgresql+rabbitmq", "flask on sqlite"),
        *at_night("fastapi on sqlite", "flask on postgresql+rabbitmq"),
    ],
)
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The shop as it comes, and on real servers."""
    app, servers = request.param.split(" on ")
    with (
        servers_of(request, *servers.split("+")) as environment,
        serving(app, tmp_path_factory.mktemp("shop"), environment) as shop,
    ):
        yield shop


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_door(shop: Shop, case: Case):
    case(shop)


@pytest.mark.parametrize(
    "where",
    ["fastapi on postgresql", *at_night("fastapi on sqlite", "flask on sqlite", "flask on postgresql+rabbitmq")],
)
def test_a_storm_of_kills(request: pytest.FixtureRequest, tmp_path: Path, where: str):
    app, servers = where.split(" on ")
    with servers_of(request, *servers.split("+")) as environment, payment_server(tmp_path) as payments_url:
        shop = Shop(app, tmp_path / "data", {**environment, "PAYMENTS_URL": payments_url})
        try:
            buyers = weather(shop, payments_url, kills=by_night(40, else_=2))
            print(check(shop, payments_url, buyers, environment.get("OUTBOXKIT_DATABASE_URL", shop.sqlite_url)))
        finally:
            shop.close()


def without_what_differs(line: str) -> str:
    """Without message keys, which are other ones each time; servers write the names of headers as they like."""
    return re.sub(r'"key": "[^"]+"', '"key": "…"', line.strip()).lower()


@ONE_BY_DAY
def test_the_readme_shows_what_happens(app: str, tmp_path: Path):
    page = SHOP / "README.md"
    with serving(app, tmp_path / "data") as shop:
        urls = {"SHOP": shop.url, "PAYMENTS": shop.payments_url()}
        done = run_script(with_exports("".join(fenced(page, "sh")), urls), SHOP)
        assert (done.returncode, done.stderr) == (0, "")
        said = [without_what_differs(line) for line in done.stdout.splitlines()]
        shown = [without_what_differs(line) for block in fenced(page, "text") for line in block.splitlines()]
        assert [line for line in shown if line not in said] == []
        refused = [json.loads(line)["status"] for line in said if '"title"' in line]
        assert refused == [422, 400, 412, 409, 409]
        assert len(ledger(shop.payments_url())) == 1


@ONE_BY_DAY
def test_sigterm_ends_it_and_a_new_start_goes_on(app: str, tmp_path: Path):
    with serving(app, tmp_path / "data") as shop:
        ada = shop.client()
        order = ada.placed(key="kept")
        assert shop.running is not None
        assert shop.running.stop() == -signal.SIGTERM  # of make, which passes it on and waits
        assert "Traceback" not in shop.log.read_text()
        assert port_is_free(shop.port)
        shop.start()
        again = shop.ready().client(ada.user).place(key="kept")
        assert (again.json()["order_id"], again.headers["Idempotency-Replayed"]) == (order, "true")


@pytest.mark.night
@pytest.mark.parametrize("app", ["fastapi", "flask"])
def test_it_does_not_outlive_a_make_that_was_killed(app: str, tmp_path: Path):
    with serving(app, tmp_path / "data") as shop:
        assert shop.running is not None
        shop.running.popen.kill()
        shop.running.popen.wait()
        shop.start()  # at the same port, while the old one may still be leaving
        assert shop.ready().client().place().status_code == 201


@pytest.mark.night
def test_its_neighbours_take_other_ports_where_theirs_are_taken(tmp_path: Path):
    shop = Shop("flask", tmp_path / "data")
    taken = [socket.create_server(("127.0.0.1", shop.port + number)) for number in (1, 2)]
    try:
        shop.ready()
        assert shop.payments_url() != f"http://127.0.0.1:{shop.port + 1}"
        assert ledger(shop.payments_url()) == []
    finally:
        shop.close()
        for one in taken:
            one.close()
