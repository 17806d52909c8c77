"""Names of strangers in commands to paste."""

import subprocess

import pytest

from outboxkit.errors.figures import Count, number, shell_word


@pytest.mark.parametrize(
    "name", ["billing", "q; touch pwned #", "it's", "a\nb", "\x1b[2J\\'", "$(id) `id`", "ü\u2028", ""]
)
def test_a_shell_reads_the_word_as_the_name(name: str):
    word = shell_word(name)
    assert word.isprintable()
    ended = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert ended.stdout.decode() == name


def test_a_count_that_ended_before_its_rows():
    counts = (Count(700), Count(700, at_least=True), Count(0, at_least=True), Count(10_001, at_least=True))
    assert [number(each) for each in counts] == ["700", "700 or more", "0 or more", "more than 10 000"]
