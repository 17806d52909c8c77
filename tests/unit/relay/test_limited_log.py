"""A line is written once, and then counted: with a clock that stands until it is told otherwise."""

import logging

from structlog.testing import capture_logs

from outboxkit.relay.report import REPEAT_SECONDS, LimitedLog
from tests.unit.relay.conftest import Seconds


def test_the_same_warning_is_one_line_with_a_count_every_few_seconds(seconds: Seconds):
    log = LimitedLog("relay", monotonic=seconds)
    with capture_logs() as said:
        for number in range(15_000):
            log.say(logging.WARNING, "message not published", "T", "full", message_id=number, reason="full")
            seconds.now += 3 * REPEAT_SECONDS / 15_000
        log.say(logging.ERROR, "message not published", "T", "gone", message_id="other")
        log.flush()
        log.flush(everything=True)
    assert [(line.get("count"), line["message_id"]) for line in said[:1]] == [(None, 0)]
    full = [line for line in said if line["message_id"] != "other"]
    assert 3 <= len(full) <= 5
    assert sum(line.get("count", 1) for line in full) == 15_000
    assert [line["log_level"] for line in said if line["message_id"] == "other"] == ["error"]
