"""The finding about handlers that do not end, from what the database knows of their consumer."""

from outboxkit.operators.doctor.activity import of_hung_handler
from outboxkit.operators.doctor.diagnosis import problem
from outboxkit.operators.hanging import HangingRun

RUN = HangingRun("billing", 360, 7)


def test_a_handler_that_hangs_can_be_ended():
    finding = of_hung_handler(RUN, [], problem, why="Rows stay.")
    assert finding.what == (
        "A handler of queue billing has not ended for 6 min 0 s: its session, 7, has a transaction open."
    )
    assert finding.code == "handler-hangs"
    assert finding.commands[-1] == "SELECT pg_terminate_backend(7);"


def test_several_of_one_consumer_are_one_finding():
    finding = of_hung_handler(RUN, [HangingRun("billing", 60, 8)], problem, why="Rows stay.")
    assert finding.what.endswith(": its session, 7, has a transaction open. 1 more session of that consumer too.")
    assert finding.commands[-2:] == ("SELECT pg_terminate_backend(7);", "SELECT pg_terminate_backend(8);")
