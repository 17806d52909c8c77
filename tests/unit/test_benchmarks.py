"""The pure parts of `make bench`: which rounds count, medians, ratios, targets, and the table."""

import pytest

from tests.benchmarks.consumers import PIECE, Supply
from tests.benchmarks.machine import Share, Ticks
from tests.benchmarks.order_designs import inversions
from tests.benchmarks.place import slices, speed
from tests.benchmarks.readings import Reading, Watch
from tests.benchmarks.rounds import Figures, Line, Measure, Outcome, Round, rounded, run
from tests.benchmarks.running_relay import Report
from tests.benchmarks.table import table, target

RATIO = Line("relay / raw", ("relay", "rate"), ("raw", "rate"), at_least=0.85, unit="/s")
CPU = Line("client CPU", ("relay", "cpu"), at_most=25, unit="us")


def one(relay: float, raw: float, *, cpu: float = 20, steal: float = 0.0) -> Round:
    return Round({"relay": {"rate": relay, "cpu": cpu}, "raw": {"rate": raw}}, steal)


def test_ticks_are_read_from_the_line_of_all_cores():
    found = Ticks.read("cpu  100 20 30 400 50 6 7 80 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    assert found == Ticks(total=693, idle=450, stolen=80)  # guest time is part of user time


def test_a_share_is_of_the_time_in_between():
    share = Ticks(total=1200, idle=150, stolen=16).since(Ticks(total=1000, idle=50, stolen=6))
    assert (share.steal, share.busy) == (0.05, 0.5)
    assert share.is_quiet
    assert not Share(0.051, 1.0).is_quiet


def test_no_time_between_says_nothing():
    assert Ticks(0, 0, 0).since(Ticks(0, 0, 0)) == Share(0.0, 0.0)


def test_a_ratio_is_taken_round_by_round():
    rounds = [one(90, 100), one(40, 50), one(30, 10)]  # 0.9, 0.8, 3.0; the ratio of the medians would be 0.8
    assert RATIO.value(rounds) == 0.9


def test_a_round_with_steal_is_dropped_and_counted():
    outcome = Outcome("classic", [RATIO], [one(90, 100), one(1, 100, steal=0.06), one(80, 100)])
    assert outcome.dropped == 1
    assert RATIO.value(outcome.quiet) == pytest.approx(0.85)
    record = outcome.record()
    assert (record["rounds"], record["dropped"]) == (2, 1)


def test_without_a_quiet_round_nothing_is_claimed():
    outcome = Outcome("classic", [RATIO], [one(90, 100, steal=0.5)])
    assert RATIO.value(outcome.quiet) is None
    assert RATIO.is_met(None) is None
    assert outcome.medians() == {}
    assert "no quiet round" in table([outcome])


@pytest.mark.parametrize(
    ("line", "value", "met"),
    [(RATIO, 0.85, True), (RATIO, 0.84, False), (CPU, 25, True), (CPU, 25.1, False), (Line("x", ("a", "b")), 1, None)],
)
def test_a_target_is_met_or_not_or_not_there(line: Line, value: float, met: bool | None):
    assert line.is_met(value) is met


def test_nothing_to_divide_by_is_no_error():
    assert RATIO.value([one(90, 0)]) == 0.0


def test_the_table_shows_medians_ratio_and_target():
    drawn = table([Outcome("classic", [RATIO, CPU], [one(9_000, 10_000, cpu=30.25)])])
    assert [line.split() for line in drawn.splitlines()] == [
        ["case", "what", "value", "beside", "ratio", "target"],
        ["-------", "-----------", "-------", "--------", "-----", "-------", "-------"],
        ["classic", "relay", "/", "raw", "9000", "/s", "10000", "/s", "0.90", ">=", "0.85", "met"],
        ["classic", "client", "CPU", "30.2", "us", "<=", "25", "NOT", "MET"],
        [],
        ["classic:", "median", "of", "1", "round;", "0", "dropped", "for", "CPU", "steal"],
    ]


def test_targets_in_words():
    assert target(RATIO) == ">= 0.85"
    assert target(Line("x", ("a", "b"), at_least=1, at_most=2)) == ">= 1, <= 2"
    assert target(Line("x", ("a", "b"))) == "-"


def test_figures_have_as_many_digits_as_a_measurement():
    assert [rounded(value) for value in (12_345.6, 999.9, 0.012345)] == [12_346, 1000.0, 0.0123]


def watching(steals: list[float]) -> list[str]:
    told: list[str] = []

    def watch(measure: Measure) -> tuple[Figures, Share]:
        return measure(), Share(steals.pop(0), 1.0)

    run(
        "case",
        {"relay": lambda: {"rate": 1.0}, "raw": lambda: {"rate": 2.0}},
        [RATIO],
        wanted=2,
        watch=watch,
        tell=told.append,
    )
    return told


def test_every_round_has_every_variant_once():
    told = watching([0.0] * 4)
    assert len(told) == 4
    for number in (1, 2):
        assert {line.split()[3] for line in told if f"round {number} " in line} == {"relay:", "raw:"}


def test_dropped_rounds_are_made_up_for_but_not_for_ever():
    told = watching([0.0, 0.06, 0.0, 0.0, 0.0, 0.0])
    assert len(told) == 2 * 3
    told = watching([0.5] * 8)
    assert len(told) == 2 * 4


def test_speed_is_from_the_first_start_to_the_last_confirm():
    second = 1_000_000_000
    reports = [
        Report(started=0, confirmed=[(second, 500), (2 * second, 500)], cpu=0.01, resident=[80.0, 82.0]),
        Report(started=second, confirmed=[(4 * second, 1000)], cpu=0.03, resident=[81.0]),
    ]
    assert speed(reports) == {"rate": 500.0, "cpu": pytest.approx(20.0), "resident": 82.0}


def test_slices_are_rates_of_their_own_time():
    second = 1_000_000_000
    confirmed = [(second, 500), (2 * second, 500), (6 * second, 1000), (7 * second, 10)]
    assert slices(Report(started=0, confirmed=confirmed), 1000) == [500.0, 250.0]


def test_an_inversion_is_a_message_that_left_after_a_later_one_of_its_key():
    assert inversions([(1, 1, "a"), (2, 3, "b"), (3, 2, "a")]) == 0
    assert inversions([(1, 2, "a"), (2, 1, "a"), (3, 3, "a"), (4, 1, "b")]) == 1


def test_a_supply_waits_until_a_portion_is_consumed():
    published: list[int] = []
    supply, seen = Supply(published.append, 250, 100), list[int]()
    for done in (0, 50, 99, 100, 101, 200, 249, 250):
        supply.keep_up(done)
        seen.append(sum(published))
    assert seen == [100, 100, 100, 200, 200, 250, 250, 250]


def test_a_large_portion_is_built_in_pieces():
    published: list[int] = []
    Supply(published.append, 2 * PIECE + 1, 3 * PIECE).keep_up(0)
    assert published == [PIECE, PIECE, 1]


def reading(at: float, done: int, **more: float) -> Reading:
    cpu, resident = more.pop("cpu", 0.0), more.pop("resident", 80.0)
    return Reading(round(at * 1e9), done, cpu, resident, **{name: round(value) for name, value in more.items()})


def test_a_reading_is_due_at_each_multiple_and_at_the_end():
    watch, taken = Watch(total=25, every=10), list[int]()
    for done in (0, 9, 13, 19, 20, 24, 25, 25):
        if watch.is_due(done):
            watch.readings.append(reading(0, done))
            taken.append(done)
    assert taken == [13, 20, 25]  # 20, not 23: a portion ends there, and nothing more would come


def test_a_watch_is_over_when_all_is_done():
    watch = Watch(10, 5)
    assert not watch.is_over
    watch.readings.append(reading(1, 9))
    assert not watch.is_over
    watch.readings.append(reading(1, 11))  # a message may be delivered twice
    assert watch.is_over
    assert not watch.is_due(12)


def test_the_speed_of_a_consumer_leaves_out_its_first_tenth():
    watch = Watch(1000, 50, [reading(5, 50, cpu=1), reading(6, 100, cpu=2), reading(8, 1000, cpu=2.9)])
    assert watch.speed() == {"rate": 450.0, "cpu": pytest.approx(1000.0)}


def test_what_a_database_was_sent_counts_after_the_first_reading():
    watch = Watch(
        200, 100, [reading(1, 100, round_trips=900, statements=700), reading(2, 200, round_trips=1300, statements=900)]
    )
    assert watch.to_database() == {"round trips": 4.0, "statements": 2.0}


def test_memory_is_the_peak_of_each_quarter():
    figures = [(10, 90.0), (30, 80.0), (49, 81.0), (60, 82.0), (75, 80.5), (100, 83.5)]
    watch = Watch(100, 10, [reading(0, done, resident=resident) for done, resident in figures])
    peaks = {"quarter 1": 90.0, "quarter 2": 81.0, "quarter 3": 82.0, "quarter 4": 83.5}
    assert watch.memory() == {**peaks, "peak": 90.0, "grown": 2.5}
