"""Names of strangers in commands to paste."""

import subprocess

import pytest

from outboxkit.errors.wording import shell_word


@pytest.mark.parametrize(
    "name", ["billing", "q; touch pwned #", "it's", "a\nb", "\x1b[2J\\'", "$(id) `id`", "ü\u2028", ""]
)
def test_a_shell_reads_the_word_as_the_name(name: str):
    word = shell_word(name)
    assert word.isprintable()
    ended = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert ended.stdout.decode() == name
