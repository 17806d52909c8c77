"""A line is written once, and then counted: with a clock that stands until it is told otherwise."""

import logging

import pytest
from structlog.testing import capture_logs

from outboxkit.relay import report
from outboxkit.relay.report import SECONDS, LimitedLog


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_same_warning_is_one_line_with_a_count_every_few_seconds():
    clock = Clock()
    log = LimitedLog("relay", monotonic=clock)
    with capture_logs() as said:
        for number in range(15_000):
            log.say(logging.WARNING, "message not published", "T", "full", message_id=number, reason="full")
            clock.now += 3 * SECONDS / 15_000
        log.say(logging.ERROR, "message not published", "T", "gone", message_id="other")
        log.flush()
        log.flush(everything=True)
    assert [(line.get("count"), line["message_id"]) for line in said[:1]] == [(None, 0)]
    full = [line for line in said if line["message_id"] != "other"]
    assert 3 <= len(full) <= 5
    assert sum(line.get("count", 1) for line in full) == 15_000
    assert [line["log_level"] for line in said if line["message_id"] == "other"] == ["error"]


def test_what_was_counted_is_written_later_although_nothing_more_comes():
    clock = Clock()
    log = LimitedLog("relay", monotonic=clock)
    with capture_logs() as said:
        for number in range(3):
            log.say(logging.WARNING, "e", "k", message_id=number)
        log.flush()
        assert len(said) == 1
        clock.now += SECONDS
        log.flush()
        assert said[1:] == [{"event": "e", "log_level": "warning", "process": "relay", "message_id": 2, "count": 2}]
        clock.now += SECONDS
        log.flush()
        log.say(logging.WARNING, "e", "k", message_id=3)
    assert [line["message_id"] for line in said] == [0, 2, 3]


def test_no_more_kinds_are_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "KINDS", 10)
    log = LimitedLog("relay", monotonic=Clock())
    with capture_logs() as said:
        for number in range(100):
            log.say(logging.WARNING, "e", str(number))
            log.say(logging.WARNING, "e", str(number))
            assert len(log._kinds) <= 10
        log.flush(everything=True)
    assert len(said) == 200
