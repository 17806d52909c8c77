"""Files that a handler changes are put back as they were, whatever it did to them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from outboxkit.testing.files import FILE_BYTES, Files, written_paths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("before\nand after")
    (tmp_path / "large").write_bytes(b"x" * (FILE_BYTES + 1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("file")
    return tmp_path


def state(folder: Path) -> dict[str, str]:
    kinds = {each.name: str(each.readlink()) if each.is_symlink() else "folder" for each in folder.rglob("*")}
    return kinds | {each.name: each.read_text() for each in folder.rglob("*") if each.is_file()}


def make_inside(path: Path) -> None:
    (path / "empty" / "new").mkdir()
    (path / "empty" / "new" / "file").write_text("new")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda path: (path / "file").write_text("other"), ["file"]),
        (lambda path: (path / "file").unlink(), ["file"]),
        (lambda path: (path / "new").write_text("new"), ["new"]),
        (lambda path: (path / "file").rename(path / "new"), ["file", "new"]),
        (lambda path: (path / "empty").rmdir(), ["empty"]),
        (lambda path: (path / "new").mkdir(), ["new"]),
        (make_inside, ["empty/new", "empty/new/file"]),
        (lambda path: (path / "link").unlink(), ["link"]),
        (lambda path: (path / "new").symlink_to("large"), ["new"]),
        (lambda path: (path / "new").hardlink_to(path / "file"), ["new"]),
    ],
)
def test_what_was_there_is_put_back(folder: Path, change: Callable[[Path], object], names: list[str]):
    files, before = Files(), state(folder)
    for name in names:
        files.note(str(folder / name))
    change(folder)
    assert state(folder) != before
    files.restore()
    assert state(folder) == before


def test_a_large_file_stays_as_it_is(folder: Path):
    files = Files()
    files.note(str(folder / "large"))
    with (folder / "large").open("a") as file:
        file.write("more")
    files.restore()
    assert (folder / "large").stat().st_size == FILE_BYTES + 5


def test_a_row_says_what_is_there(folder: Path):
    files = Files()
    for name in ("file", "empty", "link", "large", "nothing"):
        files.note(str(folder / name))
    assert [(row["lines"], row["content"]) for row in files.rows()] == [
        (2, "before\nand after"),
        (0, "a folder"),
        (0, "a link to file"),
    ]


def test_paths_may_be_relative_to_an_open_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    with (folder / "file").open() as file:
        assert list(written_paths("os.truncate", (file.fileno(), 1))) == [str(folder / "file")]
    descriptor = os.open(folder / "empty", os.O_RDONLY)
    try:
        assert list(written_paths("os.mkdir", ("a", 511, descriptor))) == [str(folder / "empty" / "a")]
    finally:
        os.close(descriptor)
    assert list(written_paths("os.remove", ("b", -1))) == [str(folder / "b")]
    assert list(written_paths("os.rename", ("b", b"c", -1, -1))) == [str(folder / "b"), str(folder / "c")]
    assert list(written_paths("open", ("link", "a", 0))) == [str(folder / "file")], "the link's target changes"
    assert list(written_paths("open", ("link", "r", 0))) == []
    assert list(written_paths("os.mkdir", ("__pycache__", 511, -1))) == []
