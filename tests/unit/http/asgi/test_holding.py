"""The application's side of an buffer."""

import asyncio

import pytest

from outboxkit.errors import ConfigurationError
from outboxkit.http.asgi import ResponseBuffer
from outboxkit.http.ledger import Response

START = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b"ab"}


@pytest.fixture
def answers() -> list[Response]:
    return []


@pytest.fixture
def buffer(answers: list[Response]) -> ResponseBuffer:
    async def answered(response: Response) -> None:
        answers.append(response)

    return ResponseBuffer(b"body", 2, answered)


async def test_the_client_seems_to_stay_until_the_answer_is_there(buffer: ResponseBuffer):
    assert (await buffer.receive())["body"] == b"body"
    waiting = asyncio.create_task(buffer.receive())
    await asyncio.sleep(0)
    assert not waiting.done()
    await buffer.send(START)
    await buffer.send(END)
    assert (await waiting)["type"] == "http.disconnect"


async def test_an_error_page_takes_the_place_of_an_answer_that_was_begun(
    buffer: ResponseBuffer, answers: list[Response]
):
    for message in (START, END | {"more_body": True}, START | {"status": 500}, END):
        await buffer.send(message)
    assert answers == [Response(500, (), b"ab")]


async def test_what_was_refused_stays_refused(buffer: ResponseBuffer, answers: list[Response]):
    await buffer.send(START)
    with pytest.raises(ConfigurationError, match="more than the 2 bytes"):
        await buffer.send(END | {"body": b"abc"})
    for message in (START | {"status": 500}, END):
        with pytest.raises(ConfigurationError):
            await buffer.send(message)
    assert answers == []
    assert buffer.refusal is not None
