"""Files, folders and links that a handler writes or removes: what was there before, put back after each delivery."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from outboxkit.testing.differences import Values

FILE_BYTES = 1024 * 1024
NOT_FILES = ("/dev/", "/proc/", "/sys/")
PATHS = {
    "os.rename": ((0, 2), (1, 3)),
    "os.remove": ((0, 1),),
    "os.truncate": ((0, None),),
    "os.mkdir": ((0, 2),),
    "os.rmdir": ((0, 1),),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
}
"""Audit events that change a folder or a file, with the places of the paths in their arguments.

Beside each path is the place of the descriptor of the folder that it is relative to.
"""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FILE, _FOLDER, _LINK, _LARGE, _NOTHING = "file", "folder", "link", "large", "nothing"


class _Entry(NamedTuple):
    """Something at a path: its kind, and the content of a file or the target of a link."""

    kind: str
    content: bytes = b""


class Files:
    """The paths that were written to, each with what was there at first."""

    def __init__(self) -> None:
        self._before: dict[str, _Entry] = {}

    def note(self, path: str) -> None:
        """Note a path that is about to be written to, renamed to or removed."""
        if path not in self._before:
            self._before[path] = _entry(path)

    def restore(self) -> None:
        """Put back what was there. A folder that has something else in it stays, and so does a large file."""
        changed = {path: before for path, before in self._before.items() if before != _entry(path)}
        for path in sorted(changed, key=len, reverse=True):  # what is in a folder comes before it
            with suppress(OSError):
                _remove(path, changed[path])
        for path in sorted(changed, key=len):
            with suppress(OSError):
                _write(path, changed[path])

    def rows(self) -> list[Values]:
        """A row for each path at which there is something now."""
        entries = ((path, _entry(path)) for path in self._before)
        return [_row(path, each) for path, each in entries if each.kind not in (_NOTHING, _LARGE)]


def written_paths(event: str, arguments: Sequence[Any]) -> Iterator[str]:
    """The paths that are about to change, by an audit event of these arguments."""
    if event == "open":
        if _is_written(*arguments):
            yield str(Path(os.fsdecode(arguments[0])).resolve())  # a link's target is what changes
        return
    for index, folder in PATHS[event]:
        path = _resolved(arguments[index], -1 if folder is None else arguments[folder])
        if path is not None and _counts(path):
            yield path


def path_behind(file: object) -> str | None:
    """The path of an open file; None if it has none that counts."""
    path = _resolved(getattr(file, "name", None), -1)
    with suppress(OSError):
        if path is not None and _counts(path) and Path(path).is_file():
            return path
    return None


def _resolved(path: object, folder: object) -> str | None:
    """The absolute path; None if nobody knows it. A descriptor has one on Linux."""
    with suppress(OSError):
        if isinstance(path, int):
            return str(Path(f"/proc/self/fd/{path}").readlink())
        if isinstance(path, str | bytes | os.PathLike):
            is_relative = isinstance(folder, int) and folder >= 0
            base = Path(f"/proc/self/fd/{folder}").readlink() if is_relative else Path.cwd()
            return str(base / os.fsdecode(path))
    return None


def _counts(path: str) -> bool:
    """Whether it is a file of the handler's, and not one of the system or a compiled module."""
    return not path.startswith(NOT_FILES) and "__pycache__" not in path


def _is_written(path: object, mode: object, flags: object) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    writes = (
        any(letter in mode for letter in "wax+")
        if isinstance(mode, str)
        else isinstance(flags, int) and flags & _WRITING
    )
    return bool(writes) and _counts(os.fsdecode(path)) and not _is_logging()


def _is_logging() -> bool:
    """Whether a log is being written: it says what happened at each attempt."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_globals.get("__name__") != "logging":
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _entry(path: str) -> _Entry:
    with suppress(OSError):
        place = Path(path)
        if place.is_symlink():
            return _Entry(_LINK, os.fsencode(place.readlink()))
        if place.is_dir():
            return _Entry(_FOLDER)
        if place.is_file():
            return _Entry(_FILE, place.read_bytes()) if place.stat().st_size <= FILE_BYTES else _Entry(_LARGE)
        if place.exists():  # a socket or a pipe
            return _Entry(_LARGE)
    return _Entry(_NOTHING)


def _remove(path: str, before: _Entry) -> None:
    now = _entry(path).kind
    if now == _FOLDER and before.kind != _FOLDER:
        Path(path).rmdir()
    elif now == _LINK or (now == _FILE and before.kind not in (_FILE, _LARGE)):
        Path(path).unlink()


def _write(path: str, before: _Entry) -> None:
    if before.kind == _FOLDER:
        Path(path).mkdir()
    elif before.kind == _LINK:
        Path(path).symlink_to(os.fsdecode(before.content))
    elif before.kind == _FILE:
        Path(path).write_bytes(before.content)


def _row(path: str, entry: _Entry) -> Values:
    if entry.kind == _FOLDER:
        return {"path": path, "lines": 0, "content": "a folder"}
    if entry.kind == _LINK:
        return {"path": path, "lines": 0, "content": f"a link to {os.fsdecode(entry.content)}"}
    lines = entry.content.decode(errors="backslashreplace").splitlines()
    return {"path": path, "lines": len(lines), "content": "\n".join(lines)}
