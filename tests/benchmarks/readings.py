"""What a consumer in a process of its own had done at some moments, and what follows from that. Pure."""

from dataclasses import dataclass, field

from tests.benchmarks.rounds import Figures


@dataclass(frozen=True)
class Reading:
    """A look at a consumer.

    Attributes:
        at: nanoseconds of the machine's monotonic clock.
        done: messages that it is through with.
        cpu: seconds of its process's time so far.
        resident: MiB of its memory.
        round_trips: to the database; only where they were to be counted.
        statements: that the database was sent, likewise.
    """

    at: int
    done: int
    cpu: float
    resident: float
    round_trips: int = 0
    statements: int = 0


@dataclass
class Watch:
    """The readings of one run, oldest first.

    Attributes:
        total: of messages.
        every: a reading is taken at each multiple of so many messages, and at the end.
    """

    total: int
    every: int
    readings: list[Reading] = field(default_factory=list)

    def is_due(self, done: int) -> bool:
        """Whether it is time for a reading."""
        last = self.readings[-1].done if self.readings else 0
        return last < self.total and (done // self.every > last // self.every or done >= self.total)

    @property
    def is_over(self) -> bool:
        """Whether all has been done."""
        return bool(self.readings) and self.readings[-1].done >= self.total

    def speed(self) -> Figures:
        """Messages a second, and microseconds of client CPU a message. The first tenth is its warming up."""
        first, last, count = self._since(self.total // 10)
        return {"rate": count * 1e9 / (last.at - first.at), "cpu": (last.cpu - first.cpu) * 1e6 / count}

    def fresh_and_again(self) -> Figures:
        """Messages a second of the first half, and of the second, which is the first one again; each warms up."""
        half, warm_up = self.total // 2, self.total // 20
        first, last, fresh = self._between(warm_up, half)
        again_first, again_last, again = self._between(half + warm_up, self.total)
        return {
            "fresh": fresh * 1e9 / (last.at - first.at),
            "again": again * 1e9 / (again_last.at - again_first.at),
        }

    def to_database(self) -> Figures:
        """Round trips and statements a message, after the first reading."""
        first, last, count = self._since(self.readings[0].done)
        return {
            "round trips": (last.round_trips - first.round_trips) / count,
            "statements": (last.statements - first.statements) / count,
        }

    def memory(self) -> Figures:
        """The peak in each quarter of the messages, and how much that of the last is above that of the second."""
        peaks = [0.0] * 4
        for one in self.readings:
            quarter = min(one.done * 4 // self.total, 3)
            peaks[quarter] = max(peaks[quarter], one.resident)
        named = {f"quarter {number}": peak for number, peak in enumerate(peaks, start=1)}
        return {**named, "peak": max(peaks), "grown": peaks[3] - peaks[1]}

    def _since(self, warm_up: int) -> tuple[Reading, Reading, int]:
        return self._between(warm_up, self.total)

    def _between(self, begin: int, end: int) -> tuple[Reading, Reading, int]:
        """The first readings after so many messages, and the messages in between."""
        first, last = (next(one for one in self.readings if one.done >= done) for done in (begin, end))
        return first, last, last.done - first.done
