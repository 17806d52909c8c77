"""Numbers, times and names as people read them."""

import pytest

from outboxkit.cli.wording import Count, folded, many, number, printable_name, span, total


@pytest.mark.parametrize("text", ["{0} it waits: `{1}`, or end it", "  cure: {1}"])
def test_a_command_stays_in_one_line(text: str):
    command = f"outboxkit consume MODULE --queue '{'my queue ' * 10}'"
    lines = folded(text.format("word " * 20, command), 60, "    ")
    assert any(command in line for line in lines)
    assert all(len(line) <= 60 for line in lines if "outboxkit" not in line)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (12345, "12 345"),
        (Count(1234567), "1 234 567"),
        (Count(10_001, at_least=True), "more than 10 000"),
        (Count(30_003, at_least=True), "more than 10 000"),
        (Count(10_000, at_least=True), "at least 10 000"),
        (Count(7, at_least=True), "at least 7"),
    ],
)
def test_number(count: Count | int, text: str):
    assert number(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (190, "3 min 10 s"),
        (3599.6, "1 h 0 min"),
        (7380, "2 h 3 min"),
        (86_400 * 5 + 7300, "5 d 2 h"),
    ],
)
def test_span(seconds: float, text: str):
    assert span(seconds) == text


def test_a_sum_is_a_lower_bound_if_one_part_is():
    assert total([Count(1), Count(2)]) == Count(3)
    assert total([Count(1), Count(2, at_least=True)]) == Count(3, at_least=True)


def test_many():
    assert many(1, "key") == "1 key"
    assert many(Count(10_001, at_least=True), "key is", "keys are") == "more than 10 000 keys are"


def test_plain():
    assert printable_name("Größe 1") == "Größe 1"
    assert printable_name("a\x1b[2J\n\u202eb") == r"a\x1b[2J\n\u202eb"
    assert printable_name(None) == printable_name("") == "-"
