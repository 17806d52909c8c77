"""The variables of this process behind `OUTBOXKIT_`: secrets that stand in files, and names that no setting has."""

import os
import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from pathlib import Path

from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable

PREFIX = "OUTBOXKIT_"
FILE = "_FILE"
OTHERS = re.compile(rf"{PREFIX}TEST_.*|{PREFIX}(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)")
"""Variables of the project's own tests, and those that Kubernetes makes for a Service called outboxkit-something."""
LARGEST = 64 * 1024


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def variables() -> dict[str, str]:
    """All variables behind the prefix; the names in capitals, for settings are read in either case."""
    return {name.upper(): value for name, value in os.environ.items() if name.upper().startswith(PREFIX)}


def unknown(known: Collection[str]) -> Iterator[str]:
    """A line for each variable behind the prefix that is not a known one, with the nearest one."""
    for name in sorted(set(variables()) - set(known)):
        if OTHERS.fullmatch(name) is None:
            yield f"{printable(name)} is not a setting{_hint(name.removeprefix(PREFIX), known)}"


def _hint(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, sorted(each.removeprefix(PREFIX) for each in known), n=1, cutoff=0.66)
    return f": did you mean {PREFIX}{near[0]}?" if near else ""


def read_secret(path: str, *, named: str) -> str:
    """The one line of a file that holds a secret, without the line's end.

    Raises:
        ConfigurationError: it cannot be read, or holds something else. The text has the path and nothing of the secret.
    """
    where = named if _is_secret(path) else f"{named} is {path!r}"
    accepted = "a file with the value in one line is accepted"
    if not path:
        raise ConfigurationError(f"{named} is empty; {accepted}")
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
        text = content.decode().rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(f"{where}: it cannot be read ({error.strerror}); {accepted}") from None
    except ValueError:
        raise ConfigurationError(f"{where}: it is not text in UTF-8; {accepted}") from None
    if not text.strip():
        raise ConfigurationError(f"{where}: it is empty; {accepted}")
    if len(content) > LARGEST or not text.isprintable():
        raise ConfigurationError(f"{where}: it holds more than one line of text; {accepted}")
    return text


def _is_secret(path: str) -> bool:
    """Whether it may be the secret itself, given in place of its file's path."""
    return not path.startswith(("/", "."))
