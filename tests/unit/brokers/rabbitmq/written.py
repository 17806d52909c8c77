"""A writer that keeps what is written, and the frames in it."""

from typing import Any

from pamqp import frame


class Written:
    """As much of a StreamWriter as is used."""

    def __init__(self) -> None:
        self.bytes = b""
        self.closing = False

    def write(self, frames: bytes) -> None:
        assert not self.closing
        self.bytes += frames

    def is_closing(self) -> bool:
        return self.closing

    def take(self) -> list[Any]:
        """The frames since this was last asked."""
        found, left = [], self.bytes
        while left:
            size, _, each = frame.unmarshal(left)
            left = left[size:]
            found.append(each)
        self.bytes = b""
        return found
