"""Python programs as processes of their own, forked from one that has imported what they need."""

from tests.processes.client import COMMAND, ROOT, ForkedProcess, programs, run_to_end, start

__all__ = ["COMMAND", "ROOT", "ForkedProcess", "programs", "run_to_end", "start"]
