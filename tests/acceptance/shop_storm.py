"""A storm for a shop: killed again and again, with a moody payment server, and clients that go on as clients do."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import httpx
from sqlalchemy import Engine, create_engine, select, text

from outboxkit import ids, tables
from tests.acceptance.shop_driver import Client, Made, Shop, ledger, set_mood
from tests.servers.ports import free_row
from tests.support.night import by_night, chance
from tests.support.polling import DEADLINE_SECONDS, eventually

CLIENTS = 4
PATIENCE = by_night(1200.0, else_=DEADLINE_SECONDS)
"""A buyer's, in seconds: a storm of the night is long, and the shop is hardly ever there."""
AMOUNTS = ("19.80", "0.01", "1234.5")


@dataclass
class Buyer:
    """Places an order and pays for it, under keys of its own; repeats whatever got no answer, until it gets one."""

    client: Client
    numbers: random.Random
    confirmed: dict[int, str] = field(default_factory=dict)

    def buy_until(self, end: Event) -> None:
        while not end.is_set():
            self.buy(f"{self.client.user} {len(self.confirmed)}", self.numbers.choice(AMOUNTS))
            end.wait(self.numbers.uniform(0, 0.2))

    def buy(self, name: str, amount: str) -> None:
        placed = self.insist(lambda key: self.client.place(customer=name, total=amount, key=key), f"place {name}")
        assert placed.status_code == 201, placed.text
        order = placed.json()["order_id"]
        for attempt in range(self.numbers.choice((1, 1, 2))):  # some pay twice, under two keys
            paid = self.insist(lambda key: self.client.pay(order, amount=amount, key=key), f"pay {name} {attempt}")
            assert paid.status_code == 200, paid.text
        self.confirmed[order] = name

    def insist(self, send: Callable[[str], httpx.Response], what: str) -> httpx.Response:
        key = what.replace(" ", "-")

        def sent() -> httpx.Response | httpx.TransportError:
            try:
                answer = send(key)
            except httpx.TransportError as error:
                return error
            assert answer.status_code < 500, answer.text
            return answer

        answered = eventually(sent, self.is_told, seconds=PATIENCE)
        assert isinstance(answered, httpx.Response)
        return answered

    @staticmethod
    def is_told(answer: httpx.Response | httpx.TransportError) -> bool:
        return isinstance(answer, httpx.Response) and answer.status_code != 409


@contextmanager
def payment_server(data: Path) -> Iterator[str]:
    """The payment server as a process of its own, which lives through the storm."""
    environment = {"LEDGER": str(data / "payments.db")}
    made = Made("payments", log=data / "payments.log", environment=environment, port=free_row(1))
    try:
        yield made.url_of("payments")
    finally:
        made.kill()


def change_moods(url: str, numbers: random.Random, end: Event) -> None:
    moods: list[tuple[str, dict[str, float]]] = [
        ("well", {}),
        ("slow", {"seconds": 0.7, "times": 2}),
        ("fail", {"status": 503, "retry_after": 1, "times": 2}),
        ("fail", {"status": 500, "times": 2}),
        ("drop_after", {"times": 3}),
        ("drop_before", {"times": 2}),
    ]
    while not end.wait(numbers.uniform(0.1, 0.5)):
        mood, how = numbers.choice(moods)
        set_mood(url, mood, **how)
    set_mood(url, "well")


def kill_again_and_again(shop: Shop, numbers: random.Random, *, kills: int) -> None:
    """Some die before they serve anybody, most while they work."""
    for number in range(kills):
        process = shop.start()
        if number % 4:
            process.url_of("shop")
            Event().wait(numbers.uniform(0, 0.8))
        else:
            Event().wait(numbers.uniform(0, 1.2))
        process.kill()
    shop.start()
    shop.ready()


def weather(shop: Shop, payments_url: str, *, kills: int) -> list[Buyer]:
    """The storm; what the buyers were told is true."""
    end, numbers = Event(), chance("storm", shop.app)
    buyers = [Buyer(shop.client(timeout=10), random.Random(numbers.random())) for _ in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        running = [pool.submit(buyer.buy_until, end) for buyer in buyers]
        running.append(pool.submit(change_moods, payments_url, random.Random(numbers.random()), end))
        try:
            kill_again_and_again(shop, numbers, kills=kills)
        finally:
            end.set()
        for one in running:
            one.result()
    return buyers


def check(shop: Shop, payments_url: str, buyers: list[Buyer], url: str) -> str:
    """Nothing is lost, nothing happened twice. Returns figures."""
    for buyer in buyers:
        for order in buyer.confirmed:
            buyer.client.wait_until_paid(order)
    confirmed = {order: name for buyer in buyers for order, name in buyer.confirmed.items()}
    with ExitStack() as opened:
        engine = create_engine(url)
        opened.callback(engine.dispose)
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT id, customer, cents, status FROM orders")).all()
        assert {row.id: row.customer for row in rows} == confirmed
        assert {row.status for row in rows} == {"paid"}
        charges = ledger(payments_url)
        assert Counter((c["order_id"], c["amount"]) for c in charges) == Counter(
            (row.id, f"{row.cents / 100:.2f}") for row in rows
        )
        eventually(lambda: left(engine), lambda found: found == 0)
        with engine.connect() as connection:
            assert connection.execute(select(tables.dead_letter.c.error)).all() == []
    sent, skipped = Counter(shop.receipts()), effects_skipped(url)
    assert set(sent.values()) == {1}, sent.most_common(3)
    missing = [charge for charge in charges if f"order-{charge['order_id']}@example.com" not in sent]
    for charge in missing:
        answer = ids.derive("reply", charge["key"])
        assert [key for key in skipped if answer in key], f"no mail for {charge}, and nothing says why"
    return f"{len(confirmed)} orders, {len(charges)} charges, {len(sent)} mails, {len(missing)} not sent and reported"


def left(engine: Engine) -> int:
    """Messages in the outbox."""
    with engine.connect() as connection:
        return len(connection.execute(select(tables.outbox.c.position)).all())


def effects_skipped(url: str) -> list[str]:
    """The keys of receipts that the shop has skipped, because a crash left open whether they were sent."""
    engine = create_engine(f"{url}-effects.db" if url.startswith("sqlite") else url)
    with closing(engine.connect()) as connection:
        found = (
            connection.execute(select(tables.effect.c.key).where(tables.effect.c.state == "skipped")).scalars().all()
        )
    engine.dispose()
    return list(found)
