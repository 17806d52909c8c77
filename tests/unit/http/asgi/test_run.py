"""How a run ends."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from outboxkit.errors import ConfigurationError, LeaseLost
from outboxkit.http import problems
from outboxkit.http.asgi import step
from tests.unit.http.asgi.conftest import Served, answering, respond


async def lose_lease(served: Served) -> None:
    async with served.sessions() as session:
        await session.execute(text("UPDATE outboxkit_idempotency SET locked_until = '2020-01-01 00:00:00.000000'"))
        await session.commit()


async def state_of(served: Served) -> Any:
    async with served.sessions() as session:
        return (await session.execute(text("SELECT state, steps FROM outboxkit_idempotency"))).first()


async def fail(*_: Any) -> None:
    raise RuntimeError("a defect")


async def leave(*_: Any) -> None: ...


@pytest.mark.parametrize(("act", "status"), [(fail, 500), (answering(503), 503), (leave, 500)])
async def test_a_run_that_failed_is_resumed_at_once_behind_its_finished_steps(served: Served, act: Any, status: int):
    served.act = act
    assert (await served.post()).status_code == status
    served.act = None
    assert (await served.post()).content == b'"charged"'
    assert (served.runs, len(served.calls)) == (2, 1)


async def test_an_error_page_takes_the_place_of_an_answer_that_was_begun(served: Served):
    async def act(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        await respond(send, 409, b"cd")

    served.act = act
    answer = await served.post()
    assert (answer.status_code, answer.content) == (409, b"cd")


async def test_a_refused_request_without_steps_leaves_nothing(served: Served):
    served.before = answering(422)
    assert (await served.post()).status_code == 422
    assert await state_of(served) is None
    served.before = None
    assert (await served.post(b'{"better": 1}')).status_code == 201


async def test_a_refused_request_keeps_its_finished_steps(served: Served):
    served.act = answering(400)
    assert (await served.post()).status_code == 400
    assert (await served.post(b'{"better": 1}')).status_code == 422, "the charge belongs to the first request"
    served.act = None
    assert (await served.post()).status_code == 201
    assert len(served.calls) == 1


async def test_an_answer_in_pieces_is_sent_as_one(served: Served):
    served.act = answering(200, b"ab", b"", b"cd", headers=[(b"content-type", b"text/plain"), (b"set-cookie", b"s=1")])
    first, second = await served.post(), await served.post()
    assert first.content == second.content == b"abcd"
    assert first.headers["content-length"] == second.headers["content-length"] == "4"
    assert "set-cookie" in first.headers
    assert "set-cookie" not in second.headers


async def test_an_answer_that_ends_when_the_client_leaves_is_remembered_first(served: Served):
    """Starlette sends an answer in pieces beside a task that waits for `http.disconnect`, and then cancels it."""

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        async def left() -> None:
            assert (await receive())["type"] == "http.disconnect"

        tasks = [asyncio.create_task(work) for work in (respond(send, 200, b"ab", b"cd"), left())]
        _, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()

    served.act = stream
    first, second = await served.post(), await served.post()
    assert (first.status_code, first.content) == (second.status_code, second.content) == (200, b"abcd")
    assert second.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize(
    ("headers", "chunks"),
    [([(b"Content-Type", b"text/event-stream; charset=utf-8")], [b"data: 1"]), ([], [b"x" * 6, b"x" * 6])],
)
@pytest.mark.parametrize("polite", [True, False])
async def test_a_stream_is_refused_and_never_cut(served: Served, headers: Any, chunks: Any, polite: bool):
    served.rules["max_response"] = 10

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        try:
            await respond(send, 200, *chunks, headers=headers)
        except ConfigurationError:
            if polite:
                raise
            await respond(send, 500, b"sorry")

    served.act = stream
    answer = await served.post()
    assert (answer.status_code, answer.content) == (500, b"")
    assert (await state_of(served)).state == "processing"


async def test_while_it_runs_a_repetition_is_told_to_wait(served: Served):
    async def act(scope: Any, receive: Any, send: Any) -> None:
        served.act = None
        answers.append(await served.post())
        answers.append(await served.post(b'{"other": 1}'))
        await respond(send, 201)

    answers: list[Any] = []
    served.act = act
    assert (await served.post()).status_code == 201
    assert [answer.status_code for answer in answers] == [409, 422], "a mismatch is told before all else"
    assert 1 <= int(answers[0].headers["retry-after"]) <= 60
    assert answers[0].json()["type"] == problems.TYPES + "in-progress"


async def test_a_slow_run_answers_what_the_run_that_took_over_has_answered(served: Served):
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await lose_lease(served)
        served.act = None
        seconds.append(await served.post())
        await respond(send, 200, b"mine")

    seconds: list[Any] = []
    served.act = slow
    first = await served.post()
    assert (first.status_code, first.content) == (201, b'"charged"')
    assert first.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in seconds[0].headers
    assert (await served.post()).content == b'"charged"'


async def test_a_step_of_a_run_that_lost_its_lease_ends_it(served: Served):
    lost: list[bool] = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await lose_lease(served)
        served.act = None
        await served.post()

        async def call() -> int:
            return 1

        with pytest.raises(LeaseLost):
            await step("late", call)
        lost.append(True)
        raise LeaseLost("as the application would let it pass")

    served.act = slow
    assert (await served.post()).content == b'"charged"'
    assert lost == [True]


async def test_what_runs_behind_the_answer_does_not_change_it(served: Served):
    async def act(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 201, b"done")
        assert (await receive())["type"] == "http.disconnect"
        raise RuntimeError("a background task failed")

    served.act = act
    assert (await served.post()).status_code == 201
    assert (await served.post()).headers["idempotency-replayed"] == "true"


async def test_a_step_behind_the_answer_is_an_error_before_its_call(served: Served):
    calls: list[str] = []

    async def call() -> None:
        calls.append("mail")

    async def act(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 201, b"done")
        await step("mail", call)

    served.act = act
    with pytest.raises(ConfigurationError, match="step 'mail' comes after the answer"):
        await served.post(raising=True)
    assert calls == []
    assert (await served.post()).headers["idempotency-replayed"] == "true"


async def test_a_step_that_the_answer_overtakes_is_an_error(served: Served):
    async def act(scope: Any, receive: Any, send: Any) -> None:
        await step("answer", lambda: respond(send, 201, b"done"))

    served.act = act
    with pytest.raises(LeaseLost, match=r"'answer' was called, and its result is lost.*this run has its answer"):
        await served.post(raising=True)


async def test_a_lost_lease_that_was_answered_is_no_error(served: Served):
    """Starlette answers an error with 500, and raises it again."""

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await lose_lease(served)
        served.act = None
        await served.post()
        await respond(send, 500)
        raise LeaseLost("of a step")

    served.act = slow
    assert (await served.post(raising=True)).content == b'"charged"'
