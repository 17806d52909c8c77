"""Readers that a setting names."""

from typing import Any

import pytest

from outboxkit import ConfigurationError, Message
from outboxkit.codec.envelopes import CloudEvents, Envelope
from outboxkit.inbox.wiring import load_readers

ALIASED = CloudEvents({"com.example.order.confirmed": "OrderConfirmed"})
A_TEXT = "text"


def till(envelope: Envelope) -> Message | None: ...


def test_built_in_ones_and_ones_own():
    first, second, third = load_readers(["cloudevents", f"{__name__}:ALIASED", f"{__name__}:till"])
    assert (first, second, third) == (CloudEvents(), ALIASED, till)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("kafka", "names 'kafka', which is not a reader: cloudevents is accepted"),
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
