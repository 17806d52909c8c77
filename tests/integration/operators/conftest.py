"""The command line, run in the test's own process."""

from tests.unit.cli.conftest import run

__all__ = ["run"]
