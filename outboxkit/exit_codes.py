"""Exit codes of the command."""

FAILED = 1
WRONG_SETTINGS = 2
INCOMPLETE = 3
"""Part of the work could not be done, or it was stopped before its end."""
DOUBTFUL = 3
"""`doctor` found warnings, and no problem."""
INTERRUPTED = 130
"""Stopped by SIGINT, as of shells."""
