"""A clock that is set while a process runs, as by a person or by NTP: a library that is loaded before all others."""

import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.model.spin import provide


class SetClock:
    """The time of day of the processes that have its environment; their monotonic clocks stay as they are.

    Attributes:
        environment: of a process that goes by this clock, from its start.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(_library()), "SET_CLOCK": str(file)}

    def set(self, ahead: int) -> None:
        """Let it be ahead of the true time by these seconds."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(ahead.to_bytes(8, "little", signed=True))


@cache
def _library() -> Path:
    provide()
    library = Path(tempfile.mkdtemp(prefix="okit-clock-")) / "set_clock.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(("gcc", "-O2", "-shared", "-fPIC", "-o", library, source), check=True)
    return library
