"""A finding of `outboxkit doctor`: what is wrong, why it matters, and the cure. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """The three severities of a finding.

    A problem loses messages, or stops them, or will. A warning should be mended before it becomes one. A note is good
    to know, and nothing has to be done.
    """

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Diagnosis:
    """One finding.

    Attributes:
        severity: problem, warning or note.
        code: its kind, which stays the same from release to release, such as `tables-missing`.
        what: the thing that was found, with names and figures, and without anything secret.
        why: why it matters; empty for a note.
        cure: what to do about it, as a sentence; empty for a note.
        commands: commands or SQL to paste, a line each.
        side: `database` or `broker`; set by `examine`.
        check: the name of the check, such as `durability`; likewise.
    """

    severity: Severity
    code: str
    what: str
    why: str = ""
    cure: str = ""
    commands: tuple[str, ...] = ()
    side: str = ""
    check: str = ""


def problem(code: str, what: str, *, why: str, cure: str, commands: tuple[str, ...] = ()) -> Diagnosis:
    """A finding that loses messages, or stops them, or will."""
    return Diagnosis(Severity.PROBLEM, code, what, why, cure, commands)


def warning(code: str, what: str, *, why: str, cure: str, commands: tuple[str, ...] = ()) -> Diagnosis:
    """A finding that should be mended before it becomes a problem."""
    return Diagnosis(Severity.WARNING, code, what, why, cure, commands)


def note(code: str, what: str, *, why: str = "", cure: str = "", commands: tuple[str, ...] = ()) -> Diagnosis:
    """A finding that is good to know; nothing has to be done."""
    return Diagnosis(Severity.NOTE, code, what, why, cure, commands)


def quoted(name: object) -> str:
    """A name as SQL writes it, for commands to paste."""
    return '"' + str(name).replace('"', '""') + '"'
