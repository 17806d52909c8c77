"""The memory of a consumer under messages that weigh little on the wire and much once they are decoded."""

import zlib

import pytest
from sqlalchemy import func, select

from outboxkit import tables
from tests.acceptance.deployment import Deployment
from tests.night import by_night
from tests.polling import eventually

MIB = 2**20
MOST = 256 * MIB
"""More than idle that a consumer may take."""
MESSAGES = by_night(64, else_=8)
ROOM = 4 * MIB - 100
SHAPES = {"objects": "{},", "lists": "[" * 400 + "]" * 400 + ",", "texts": '"ab",'}


def document(shape: str) -> bytes:
    """An event of almost 4 MiB: as large as a consumer accepts."""
    unit = SHAPES[shape]
    return b'{"rows":[' + (unit * (ROOM // len(unit))).encode() + b"0]}"


@pytest.mark.parametrize(
    ("type_", "shape"),
    [
        ("Bomb", "objects"),
        pytest.param("Bomb", "texts", marks=pytest.mark.night),
        pytest.param("BatchBomb", "objects", marks=pytest.mark.night),
        pytest.param("ThreadBomb", "objects", marks=pytest.mark.night),
        *(pytest.param(type_, "lists", marks=pytest.mark.night) for type_ in ("Bomb", "OldBomb", "BatchBomb")),
        ("OldBomb", "objects"),
    ],
)
@pytest.mark.parametrize("encoding", ["gzip", pytest.param(None, marks=pytest.mark.night)])
def test_the_worst_messages_at_once_take_little_memory(
    deployment: Deployment, type_: str, shape: str, encoding: str | None
):
    body = document(shape) if encoding is None else zlib.compress(document(shape), 9, wbits=31)
    consumer = deployment.start("consumer", "tests.acceptance.bombs")
    consumer.wait_for("consumer connected")
    idle = consumer.most_memory
    for number in range(MESSAGES):
        deployment.broker.publish(
            body, topic=type_, type=type_, message_id=f"{type_}-{number}", content_encoding=encoding or ""
        )

    def handled() -> int:
        with deployment.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(tables.inbox)).scalar_one()

    eventually(handled, lambda count: count == MESSAGES)
    took = consumer.most_memory - idle
    print(f"{type_} {shape} {encoding}: {took / MIB:.0f} MiB")
    assert took < MOST
    assert consumer.stop() == 0
