"""Tasks of Celery as events."""

import json
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest

from outboxkit import DecodeError
from outboxkit.codec.envelopes import Celery, Envelope
from tests.unit.codec.envelopes import samples
from tests.unit.codec.envelopes.samples import EVENT, TASK_ID, task

READER = Celery(
    {"proj.tasks.add": "Add"}, {"proj.tasks.add": ("x", "y")}, now=lambda: datetime(2026, 3, 1, 12, tzinfo=UTC)
)


def test_keyword_arguments_are_the_event():
    found = READER(task(parent_id="p", origin="gen1@pod"))
    assert found is not None
    assert (found.id, found.type, json.loads(found.payload)) == (TASK_ID, "Add", EVENT)
    assert (found.correlation_id, found.causation_id, found.topic) == (TASK_ID, "p", "celery")
    assert (found.headers["origin"], "argsrepr" in found.headers, found.content_encoding) == ("gen1@pod", False, None)


@pytest.mark.parametrize(
    ("args", "kwargs", "event"),
    [
        ([1, 2], {}, {"x": 1, "y": 2}),
        ([1], {"y": 2}, {"x": 1, "y": 2}),
        ([{"deep": [1]}], {}, {"x": {"deep": [1]}}),
        ([], {}, {}),
    ],
)
def test_positional_arguments_have_names(args: Any, kwargs: Any, event: Any):
    assert json.loads(READER(task(args, kwargs)).payload) == event  # type: ignore[union-attr]


def test_one_argument_without_a_name_is_the_event():
    assert json.loads(Celery()(task([EVENT], {})).payload) == EVENT  # type: ignore[union-attr]


def test_a_compressed_task():
    body = zlib.compress(task().body)
    assert READER(task(body=body, compression="application/x-gzip")).payload == json.dumps(EVENT).encode()  # type: ignore[union-attr]


def test_what_is_no_task_is_left_to_others():
    for envelope in (samples.KNATIVE, samples.sent(), samples.row(), task(task=7), task(id=None)):
        assert READER(envelope) is None


@pytest.mark.parametrize(
    ("envelope", "error"),
    [
        (task(embedded={"chain": [{"task": "next"}]}), "has chain, which only a worker of Celery can call"),
        (task(embedded={"callbacks": [1]}), "has callbacks"),
        (task(embedded={"chord": {"task": "t"}}), "has chord"),
        (task(eta="2026-03-01T12:00:01+00:00"), "its eta is"),
        (task(eta="soon"), "its eta is 'soon'"),
        (task(expires="2026-03-01T11:59:59+00:00"), "it has expired"),
        (task(expires="2026-03-01T11:59:59"), "a time with a time zone is accepted"),
        (task([1, 2, 3], {}), r"3 positional arguments, and names for 2: give the reader arguments="),
        (task([0] * 65, {}), "not valid"),
        (task([1, 2], {"y": 3}), "gives 'y' twice, by position and by name"),
        (task(compression="application/x-bz2"), "its compression is 'application/x-bz2'"),
        (task(body=b"{}"), "the envelope is not valid"),
        (task(body=b"[[], {}]"), "the envelope is not valid"),
        (task(body=b"[[], [], {}]"), "keyword arguments .* are not an object"),
        (task(body=b"[{}, {}, {}]"), "the envelope is not valid"),
        (Envelope(b"", headers=samples.TASK, content_type="application/x-python-serialize"), "is serialized as"),
        (task(**{f"h{number}": 1 for number in range(101)}), "at most 100"),
    ],
)
def test_what_a_handler_cannot_do_is_refused(envelope: Envelope, error: str):
    with pytest.raises(DecodeError, match=error):
        READER(envelope)


def test_an_eta_that_is_past_is_due():
    assert READER(task(eta="2026-03-01T11:00:00+00:00", expires="2026-03-01T13:00:00+00:00")) is not None
