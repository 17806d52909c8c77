"""Readers that a setting names."""

from typing import Any

import pytest

from outboxkit import ConfigurationError, Message
from outboxkit.codec.envelopes import CloudEvents, Envelope, MassTransit
from outboxkit.inbox.loading import load_readers

ALIASED = CloudEvents({"com.example.order.confirmed": "OrderConfirmed"})
A_TEXT = "text"


def till(envelope: Envelope) -> Message | None: ...


def test_built_in_ones_and_ones_own():
    names = ["cloudevents", f"{__name__}:ALIASED", "masstransit", f"{__name__}:till"]
    first, second, third, fourth = load_readers(names)
    assert (first, second, third, fourth) == (
        CloudEvents(),
        ALIASED,
        MassTransit(),
        load_readers([f"{__name__}:till"])[0],
    )


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("kafka", "names 'kafka', which is not a reader: cloudevents, celery, masstransit, debezium are accepted"),
        ("cloudevent", "which is not a reader: .* did you mean 'cloudevents'?"),
        ("xyz", "which takes an Envelope$"),
        (f"{__name__}:nothing", f"and module '{__name__}' has no 'nothing'$"),
        (f"{__name__}:tll", f"names '{__name__}:tll', and module '{__name__}' has no 'tll'; did you mean 'till'?"),
        (f"{__name__}:A_TEXT", "which is not a reader"),
        (f"{__name__}:CloudEvents", "not a reader: .* it is a class: name an object of it, such as `cloudevents = "),
        (f"{__name__}:", "which is not a reader"),
        ("no.such.module:till", "no module named 'no'"),
    ],
)
def test_what_is_no_reader_is_refused(name: str, error: Any):
    with pytest.raises(ConfigurationError, match=error):
        load_readers([name])
