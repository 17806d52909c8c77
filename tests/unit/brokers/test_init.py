"""The words between the services and a broker."""

from dataclasses import FrozenInstanceError

import pytest

from outboxkit import defaults
from outboxkit.brokers import CONFIRMED, Receipt, Verdict
from outboxkit.codec.envelopes.envelope import Malformed


def test_only_one_verdict_is_a_confirm():
    said = ["confirmed", "unroutable", "rejected", "postponed", "not sent", "unknown"]
    assert [str(verdict) for verdict in Verdict] == said
    assert Receipt(Verdict.CONFIRMED) == CONFIRMED
    assert CONFIRMED.reason is None


def test_what_a_broker_said_cannot_be_changed():
    for said in (CONFIRMED, Malformed(b"", reason="no id")):
        with pytest.raises(FrozenInstanceError):
            said.reason = "other"


def test_the_default_delays_ascend():
    assert list(defaults.DELAYS) == sorted(set(defaults.DELAYS))
