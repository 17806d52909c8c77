"""What the machine gave to a round: the time that its host took away, from /proc/stat."""

from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
STEAL_LIMIT = 0.05
"""A round in which the host took more than this share of the time says nothing."""


@dataclass(frozen=True)
class Ticks:
    """Clock ticks of all cores since the machine started."""

    total: int
    idle: int
    stolen: int

    @classmethod
    def now(cls) -> "Ticks":
        """The machine's ticks; all zero where it has no /proc/stat."""
        return cls.read(STAT.read_text()) if STAT.exists() else cls(0, 0, 0)

    @classmethod
    def read(cls, stat: str) -> "Ticks":
        """The first line of /proc/stat: user nice system idle iowait irq softirq steal guest guest_nice."""
        user, nice, system, idle, iowait, irq, softirq, stolen = map(int, stat.split("\n", 1)[0].split()[1:9])
        waiting = idle + iowait
        return cls(user + nice + system + waiting + irq + softirq + stolen, waiting, stolen)

    def since(self, earlier: "Ticks") -> "Share":
        """What became of the time in between."""
        total = self.total - earlier.total
        if total <= 0:
            return Share(0.0, 0.0)
        return Share((self.stolen - earlier.stolen) / total, 1 - (self.idle - earlier.idle) / total)


@dataclass(frozen=True)
class Share:
    """Shares of the time of all cores: taken by the host, and not idle."""

    steal: float
    busy: float

    @property
    def is_quiet(self) -> bool:
        """Whether the host left the machine alone."""
        return self.steal <= STEAL_LIMIT
