"""A loader for PostgreSQL's timestamps: always in UTC, and bounded, so that every row can be read.

PostgreSQL has years before 1 and after 9999, and infinity; Python does not. If the session's time zone is east of UTC,
even the last hours of 9999 cannot be read. Such a moment becomes the nearest one that Python knows.
"""

from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any

from psycopg import DataError
from psycopg.adapt import Buffer, Loader
from psycopg.pq import Format
from psycopg.types.datetime import TimestamptzLoader

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_TIMESTAMPTZ = 1184
"""The type's number in PostgreSQL's catalogue."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECONDS = Struct(">q").unpack


class BoundedBinaryLoader(Loader):
    """Reads the binary format: microseconds since 2000, whatever the session's time zone."""

    format = Format.BINARY

    def load(self, data: Buffer) -> datetime:
        """The moment in UTC."""
        (microseconds,) = _MICROSECONDS(data)
        try:
            return _EPOCH + timedelta(microseconds=microseconds)
        except OverflowError:
            return LAST if microseconds > 0 else FIRST


class BoundedTextLoader(TimestamptzLoader):
    """Reads the text format."""

    def load(self, data: Buffer) -> datetime:
        """The moment in UTC."""
        try:
            return super().load(data).astimezone(UTC)
        except (DataError, OverflowError):
            text = bytes(data)
            return FIRST if text.startswith((b"-", b"0001-")) or text.endswith(b"BC") else LAST


def read_bounded(driver: Any) -> None:
    """Make a psycopg connection load timestamps this way. A repeated call costs next to nothing."""
    adapters = driver.adapters
    if adapters.get_loader(_TIMESTAMPTZ, Format.BINARY) is not BoundedBinaryLoader:
        adapters.register_loader(_TIMESTAMPTZ, BoundedBinaryLoader)
        adapters.register_loader(_TIMESTAMPTZ, BoundedTextLoader)
