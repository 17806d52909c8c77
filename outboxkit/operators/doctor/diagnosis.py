"""Findings with texts of their own, for the checks that do not take them from the table yet. Pure."""

from outboxkit.operators.findings import Diagnosis, Severity


def problem(code: str, what: str, *, why: str, cure: str, commands: tuple[str, ...] = ()) -> Diagnosis:
    """A finding that loses messages, or stops them, or will."""
    return Diagnosis(Severity.PROBLEM, code, what, why, cure, commands)


def warning(code: str, what: str, *, why: str, cure: str, commands: tuple[str, ...] = ()) -> Diagnosis:
    """A finding that should be mended before it becomes a problem."""
    return Diagnosis(Severity.WARNING, code, what, why, cure, commands)


def note(code: str, what: str, *, why: str = "", cure: str = "", commands: tuple[str, ...] = ()) -> Diagnosis:
    """A finding that is good to know; nothing has to be done."""
    return Diagnosis(Severity.NOTE, code, what, why, cure, commands)
