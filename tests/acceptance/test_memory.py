"""The memory of a consumer under messages that weigh little on the wire and much once they are decoded."""

import zlib
from typing import Any

import pytest
from sqlalchemy import func, select

from outboxkit import tables
from outboxkit.consumer.payload_memory import GROWTH, heaviest
from tests.acceptance.bombs import RowBomb
from tests.acceptance.deployment import Deployment
from tests.support.night import by_night
from tests.support.polling import DEADLINE_SECONDS, eventually

MIB = 2**20
MOST = 256 * MIB
"""More than idle that a consumer may take."""
MOST_BY_MODELS = 420 * MIB
"""The same if pydantic reads nested values: it holds a document of its own beside the event."""
MESSAGES, FEW = by_night(64, else_=8), 24
"""The second number is of those that take long, some seconds each."""
ROOM = 4 * MIB - 100
ROW_BYTES = heaviest(RowBomb).size  # type: ignore[union-attr]
SHAPES = {
    "objects": "{},",
    "lists": "[" * 400 + "]" * 400 + ",",
    "texts": '"ab",',
    "levels": '{"":' * 100 + "0" + "}" * 100 + ",",
}


def document(shape: str, type_: str) -> bytes:
    """An event as large as a consumer accepts: of almost 4 MiB, or of rows with defaults that take almost 192 MiB."""
    unit = SHAPES[shape]
    room = ROOM if type_ != "RowBomb" else ROOM * GROWTH // ROW_BYTES * len(unit)
    return b'{"rows":[' + (unit * (room // len(unit))).encode().removesuffix(b",") + b"]}"


def by_night_only(*case: str | None) -> Any:
    return pytest.param(*case, marks=pytest.mark.night)


@pytest.mark.parametrize(
    ("type_", "shape", "encoding"),
    [
        ("Bomb", "objects", "gzip"),
        by_night_only("OldBomb", "objects", "gzip"),
        by_night_only("RowBomb", "objects", "gzip"),
        by_night_only("Bomb", "texts", "gzip"),
        by_night_only("Bomb", "lists", "gzip"),
        by_night_only("Bomb", "lists", None),
        by_night_only("OldBomb", "lists", "gzip"),
        by_night_only("BatchBomb", "lists", "gzip"),
        by_night_only("ThreadBomb", "objects", "gzip"),
        by_night_only("ModelBomb", "levels", "gzip"),
        by_night_only("RefusedBomb", "lists", "gzip"),
        by_night_only("RefusedBatchBomb", "lists", "gzip"),
    ],
)
def test_the_worst_messages_at_once_take_little_memory(
    deployment: Deployment, type_: str, shape: str, encoding: str | None
):
    document_ = document(shape, type_)
    body = document_ if encoding is None else zlib.compress(document_, 9, wbits=31)
    consumer = deployment.start("consumer", "tests.acceptance.bombs")
    consumer.wait_for("consumer connected")
    idle = consumer.most_memory
    messages = FEW if (type_, shape) in (("OldBomb", "lists"), ("ModelBomb", "levels")) else MESSAGES
    for number in range(messages):
        deployment.broker.publish(
            body, topic=type_, type=type_, message_id=f"{type_}-{number}", content_encoding=encoding or ""
        )

    def settled() -> int:
        with deployment.engine.connect() as connection:
            counts = [select(func.count()).select_from(table) for table in (tables.inbox, tables.dead_letter)]
            return sum(connection.execute(count).scalar_one() for count in counts)

    eventually(settled, lambda count: count == messages, seconds=by_night(1500, else_=DEADLINE_SECONDS))
    took = consumer.most_memory - idle
    assert took < (MOST_BY_MODELS if type_ == "ModelBomb" else MOST), f"{took / MIB:.0f} MiB"
    assert consumer.stop() == 0
