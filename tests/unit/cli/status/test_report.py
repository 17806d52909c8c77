"""Counts that know whether they are estimates."""

from outboxkit.cli.wording import Count, total


def test_a_sum_is_an_estimate_where_one_part_is():
    assert total([Count(1), Count(2)]) == Count(3)
    assert total([Count(1), Count(2, estimate=True)]) == Count(3, estimate=True)
    assert total([]) == Count(0)
