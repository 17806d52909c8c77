"""What `Idempotent` takes, and whom it asks."""

from datetime import timedelta
from typing import Annotated, Any

import pytest
from fastapi import Depends, HTTPException
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from outboxkit.errors import ConfigurationError
from outboxkit.http.fastapi import Idempotent
from outboxkit.tables import idempotency
from tests.unit.http.fastapi.conftest import Shop


def get_session() -> Session:
    return Session()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"session": "orders"}, "session= is 'orders'"),
        ({"session": Depends(get_session, use_cache=False)}, "shared within a request"),
        ({"principal": 1}, "principal= is 1"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, Any], named: str):
    with pytest.raises(ConfigurationError, match=named):
        Idempotent(**{"session": get_session, "principal": None, **given})


@pytest.mark.parametrize("place", ["before", "principal", "behind"])
async def test_who_may_ask_is_checked_in_front_of_idempotent_or_a_replay_does_not_check_it(shop: Shop, place: str):
    allowed = True

    def check() -> str:
        if not allowed:
            raise HTTPException(403)
        return "ada"

    rule = Depends(Idempotent(session=shop.get_session, principal=check if place == "principal" else None))
    guards = {"before": [Depends(check), rule], "principal": [rule], "behind": [rule, Depends(check)]}

    @shop.app.post("/orders", dependencies=guards[place])
    def order(session: Annotated[Any, Depends(shop.get_session)]) -> None:
        session.connection()

    assert (await shop.post()).status_code == 200
    allowed = False
    replay = await shop.post()
    assert replay.status_code == (200 if place == "behind" else 403), "the order of the list is the order of the checks"


async def test_a_replay_holds_no_connection_while_it_is_sent(shop: Shop):
    """The session is closed later, when a slow client has it all; on SQLite that would keep everybody from writing."""
    shop.serve()
    await shop.post()
    open_transactions: list[int] = []

    @event.listens_for(shop.engine, "begin")
    def _more(_: Any) -> None:
        open_transactions.append(1)

    for ended in ("commit", "rollback"):
        event.listen(shop.engine, ended, lambda _: open_transactions.pop())
    sent: list[int] = []

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            sent.append(len(open_transactions))
            await send(message)

        await app(scope, receive, note)

    app, shop.app = shop.app, watched
    assert (await shop.post()).headers["idempotency-replayed"] == "true"
    assert (await shop.post("ink")).status_code == 422
    assert set(sent) == {0}


async def test_the_ledger_is_asked_in_the_words_of_the_route(shop: Shop):
    idempotent = Idempotent(session=shop.get_session, principal=lambda: "ada", retention=timedelta(hours=1))

    @shop.app.patch("/orders/{number}", dependencies=[Depends(idempotent)])
    def change(number: int, session: Annotated[Session, Depends(shop.get_session)]) -> int:
        return number

    assert (await shop.post(path="/orders/5", method="PATCH")).status_code == 200
    with shop.engine.connect() as connection:
        row = connection.execute(select(idempotency)).one()
    assert (row.scope, row.principal, row.key, row.state) == ("PATCH /orders/{number}", "ada", "k", "done")
    assert row.expires_at - row.created_at == timedelta(hours=1)


@pytest.mark.parametrize(
    ("template", "first", "second"),
    [
        ("/orders/{order}/pay", "/orders/7/pay", "/orders/o/pay"),
        ("/orders/{order}/pay", "/orders/7/pay", "/orders/orders/pay"),
        ("/numbers/{number:int}", "/numbers/7", "/numbers/008"),
    ],
)
async def test_a_key_is_for_one_request_of_all_values_in_the_path(shop: Shop, template: str, first: str, second: str):
    """Also of values that read like another piece of the path, or otherwise than they are written there."""
    idempotent = Idempotent(session=shop.get_session, principal=None)

    @shop.app.post(template, dependencies=[Depends(idempotent)])
    def pay(session: Annotated[Session, Depends(shop.get_session)]) -> str:
        return "paid"

    assert [(await shop.post(path=path)).status_code for path in (first, second)] == [200, 422]
