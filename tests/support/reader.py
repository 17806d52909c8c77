"""Somebody who types what a page says: files, shell commands, Python and SQL, in their order, in one folder."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import psycopg

from tests.support import python_shell
from tests.support.pages import Block, Page, libpq

SECONDS = 300
DONE = "\x04"


class Differs(AssertionError):
    """A block failed, or printed something else than the page shows."""


class Reader:
    """One folder, the shell in it, and the Python shell that is opened when a page needs it.

    Args:
        folder: an empty one.
        environment: what the shell begins with. What a block exports stays for the following ones.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._kept = folder.with_name(f"{folder.name}-kept")
        self._kept.mkdir()
        self._exports = self._kept / "exports"
        self._exports.touch()
        self._started: list[subprocess.Popen[str]] = []
        self._python: PythonShell | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:  # with all that was left running in the background
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def follow(self, page: Page, until: int | None = None) -> None:
        """Type all blocks, or those in front of a line, and compare what is shown as their output."""
        printed = ""
        shown = {block.line for block in page.blocks if block.kind == "output"}
        lines = [block.line for block in page.blocks]
        for block, following in zip(page.blocks, [*lines[1:], 0], strict=True):
            if until is not None and block.line > until:
                return
            where = f"{page.name}:{block.line}"
            if block.kind in ("file", "more"):
                self._write(block)
            elif block.kind == "sh":
                printed = self._type_into_shell(block.body, where)
            elif block.kind == "python":
                printed = self._type_into_python(block.body)
                if "Error" in printed and following not in shown:
                    raise Differs(f"{where}\n{printed}")
            elif block.kind == "sql":
                self._type_into_psql(block.body)
            elif block.kind == "output":
                compare(block.body, printed, where)

    def _write(self, block: Block) -> None:
        path = self._folder / block.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if block.kind == "file" else "a") as file:
            file.write(("\n\n" if block.kind == "more" else "") + block.body)

    def _type_into_shell(self, body: str, where: str) -> str:
        exports = shlex.quote(str(self._exports))
        process, output = self._start(f". {exports}\n{body}\nexport -p > {exports}\n")
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise Differs(f"{where}: not done after {SECONDS} s\n{output.read_text()}") from None
        if code:
            raise Differs(f"{where}: exit {code}\n{output.read_text()}")
        return output.read_text()

    def _type_into_python(self, body: str) -> str:
        if self._python is None:
            program = f"{shlex.quote(sys.executable)} -u {shlex.quote(python_shell.__file__)}"
            command = f". {shlex.quote(str(self._exports))}\nexec {program}\n"
            self._python = PythonShell(*self._start(command, stdin=subprocess.PIPE))
        return self._python.type(body)

    def _type_into_psql(self, body: str) -> None:
        with psycopg.connect(libpq(self._environment["OUTBOXKIT_DATABASE_URL"]), autocommit=True) as connection:
            connection.execute(body.encode())

    def _start(self, command: str, stdin: int = subprocess.DEVNULL) -> tuple[subprocess.Popen[str], Path]:
        output = self._kept / f"output-{len(self._started)}"
        with output.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=self._folder,
                env=self._environment,
                stdin=stdin,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._started.append(process)
        return process, output


class PythonShell:
    """Python's own shell, to which lines are typed as they stand on the page."""

    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self._process, self._output, self._read = process, output, 0

    def type(self, body: str) -> str:
        """Type a block and an empty line; what was printed since."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{body}\nprint({DONE!r})\n")
        self._process.stdin.flush()
        limit = time.monotonic() + SECONDS
        while DONE not in (printed := self._output.read_text()[self._read :]):
            if self._process.poll() is not None or time.monotonic() > limit:
                raise Differs(f"the Python shell did not come to the block's end\n{printed}")
            time.sleep(0.02)
        self._read += len(printed)
        return printed.split(DONE)[0]


def compare(shown: str, printed: str, where: str) -> None:
    """Raise Differs unless the output is as shown: `...` stands for a part of a line, alone on a line for any lines."""
    if re.fullmatch(_pattern(_trimmed(shown)), f"{_trimmed(printed)}\n") is None:
        raise Differs(f"{where}: printed\n{_trimmed(printed)}\ninstead of\n{shown}")


def _pattern(shown: str) -> str:
    lines = ((line, map(re.escape, line.split("..."))) for line in shown.split("\n"))
    return "".join(r"(?:.*\n)*?" if line.strip() == "..." else f"{'.*'.join(parts)}\n" for line, parts in lines)


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
