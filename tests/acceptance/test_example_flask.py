"""Example 4, the shop on Flask, driven by HTTP and killed at random."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.shop_contract import CASES, Case
from tests.acceptance.shop_driver import FLASK, Shop, serving
from tests.acceptance.shop_servers import servers_of
from tests.acceptance.shop_storm import check, payment_server, weather
from tests.night import by_night


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql+rabbitmq", marks=pytest.mark.night)])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The shop as it comes, and on real servers."""
    with (
        servers_of(request, *request.param.split("+")) as environment,
        serving(FLASK, tmp_path_factory.mktemp("shop"), environment) as shop,
    ):
        yield shop


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_door(shop: Shop, case: Case):
    case(shop)


@pytest.mark.parametrize("servers", ["sqlite", pytest.param("postgresql+rabbitmq", marks=pytest.mark.night)])
def test_a_storm_of_kills(request: pytest.FixtureRequest, tmp_path: Path, servers: str):
    with servers_of(request, *servers.split("+")) as environment, payment_server(FLASK, tmp_path) as payments_url:
        shop = Shop(FLASK, tmp_path / "data", {**environment, "PAYMENTS_URL": payments_url})
        try:
            buyers = weather(shop, payments_url, kills=by_night(40, else_=3))
            print(check(shop, payments_url, buyers, environment.get("OUTBOXKIT_DATABASE_URL", shop.sqlite_url)))
        finally:
            shop.close()
