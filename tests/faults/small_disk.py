"""A PostgreSQL whose disk is small enough to be filled."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.servers.postgresql import PrivatePostgresql

MEGABYTES = 256
BLOCK = bytes(1 << 16)


class SmallDisk(PrivatePostgresql):
    """It has a file system in memory of its own. Linux alone has one, and root alone may mount it."""

    def __init__(self, programs: Path) -> None:
        super().__init__(programs, max_wal_size="64MB")
        owner = self.data.stat()
        options = f"size={MEGABYTES}m,mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
        subprocess.run(("mount", "-t", "tmpfs", "-o", options, "tmpfs", self.data), check=True)

    def fill(self) -> None:
        """Leave no byte."""
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while os.write(file.fileno(), BLOCK):
                pass

    def free(self) -> None:
        """Make room, and start it if it has given up."""
        self._ballast.unlink(missing_ok=True)
        self.start()

    def close(self) -> None:
        """Kill it and remove what is its own."""
        self.kill()
        subprocess.run(("umount", self.data), check=True)
        super().close()

    @property
    def _ballast(self) -> Path:
        return self.data / "ballast"
