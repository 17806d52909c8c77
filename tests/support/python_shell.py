"""What `python -m asyncio` does with lines that are typed, for lines that come through a pipe.

Python 3.13's own shell reads no block of several lines from a pipe.
"""

import ast
import asyncio
import inspect
import sys
from code import InteractiveConsole
from types import CodeType, ModuleType


class Shell(InteractiveConsole):
    """A shell in a new module `__main__`, with one event loop."""

    def __init__(self) -> None:
        sys.modules["__main__"] = main = ModuleType("__main__")
        super().__init__(main.__dict__)
        self.compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._loop = asyncio.Runner()

    def runcode(self, code: CodeType) -> None:
        """Run one statement; show what it raises."""
        try:
            pending = eval(code, self.locals)  # type: ignore[arg-type]
            if inspect.iscoroutine(pending):
                self._loop.run(pending)
        except Exception:  # noqa: BLE001 - whatever it is, the next line may be typed
            self.showtraceback()


if __name__ == "__main__":
    sys.path[0] = ""
    shell = Shell()
    for line in sys.stdin:
        shell.push(line.rstrip("\n"))
