"""What an idempotency key costs a request: the same endpoint with it and without, and the replay of an answer."""

import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from outboxkit import ids
from tests.benchmarks.place import Case, Place
from tests.benchmarks.rounds import Figures, Line, Measure
from tests.benchmarks.running_shop import Orders

COUNT, QUICK, WARM_UP = 400, 40, 20
KINDS = {
    f"{kind}{colour}": (path, kind == "replay")
    for colour, prefix in (("", "/async"), (", sync", "/sync"))
    for kind, path in (("plain", f"{prefix}/plain"), ("with key", f"{prefix}/once"), ("replay", f"{prefix}/once"))
}
"""The path of each kind of request, and whether it is one that was answered before."""
BODY = json.dumps({"customer": "Ada"}).encode()


class Shop:
    """The service of `running_shop` in a process of its own, and one client with one connection."""

    def __init__(self, place: Place, *, trace: bool = False) -> None:
        command = (sys.executable, "-m", "tests.benchmarks.running_shop")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._orders = Orders(place.database_url, trace)
        self._client = http.client.HTTPConnection("127.0.0.1")

    def start(self) -> None:
        """Wait until it serves."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(self._orders)) + "\n")
        self._process.stdin.flush()
        self._client = http.client.HTTPConnection("127.0.0.1", int(self._process.stdout.readline()))
        for path in ("/async/plain", "/async/once", "/sync/plain", "/sync/once"):
            for _ in range(WARM_UP):
                self.post(path, ids.new())

    def post(self, path: str, key: str) -> float:
        """Place an order; returns how many seconds the answer took."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": f'"{key}"'}
        before = time.perf_counter()
        self._client.request("POST", path, BODY, headers)
        answer = self._client.getresponse()
        answer.read()
        took = time.perf_counter() - before
        if answer.status != 201:
            raise RuntimeError(f"{path} answered {answer.status}")
        return took

    def round_trips(self) -> int:
        """How often the service has waited for the database so far, on its asynchronous connections."""
        self._client.request("GET", "/round-trips")
        return int(self._client.getresponse().read())

    def stop(self) -> None:
        """End the service."""
        self._client.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def shop(place: Place, *, trace: bool = False) -> Iterator[Shop]:
    """A service that runs."""
    serving = Shop(place, trace=trace)
    try:
        serving.start()
        yield serving
    finally:
        serving.stop()


@contextmanager
def latency(place: Place) -> Iterator[Mapping[str, Measure]]:
    """One client, one request after the other."""
    count = COUNT // QUICK if place.quick else COUNT
    with shop(place) as serving:

        def in_turn() -> Figures:
            """All kinds in turn, so that each has its share of what the machine does meanwhile."""
            known = {path: ids.new() for path, again in KINDS.values() if again}
            for path, key in known.items():
                serving.post(path, key)
            took: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for _ in range(count):
                for kind, (path, again) in KINDS.items():
                    took[kind].append(serving.post(path, known[path] if again else ids.new()))
            return {kind: statistics.median(seconds) * 1e3 for kind, seconds in took.items()}

        yield {"a request": in_turn}


@contextmanager
def round_trips(place: Place) -> Iterator[Mapping[str, Measure]]:
    """How often a request waits for the database."""
    with shop(place, trace=True) as serving:

        def measure(path: str, *, again: bool = False) -> Figures:
            known = ids.new()
            serving.post(path, known)
            before = serving.round_trips()
            for _ in range(WARM_UP):
                serving.post(path, known if again else ids.new())
            return {"round trips": (serving.round_trips() - before) / WARM_UP}

        def more() -> Figures:
            plain, keyed = measure("/async/plain")["round trips"], measure("/async/once")["round trips"]
            return {"plain": plain, "with key": keyed, "more": keyed - plain}

        yield {"requests": more, "replay": lambda: measure("/async/once", again=True)}


def beside_plain(kind: str, colour: str = "", *, at_most: float | None = None) -> Line:
    """How much longer this kind of request takes than a plain one."""
    this, plain = f"{kind}{colour}", f"plain{colour}"
    return Line(f"{this} / {plain}", ("a request", this), ("a request", plain), at_most=at_most)


CASES = (
    Case(
        "requests",
        "an HTTP request with an idempotency key, beside the same without, and the replay of its answer",
        latency,
        (
            beside_plain("with key", at_most=1.6),
            beside_plain("with key", ", sync", at_most=1.6),
            beside_plain("replay"),
            beside_plain("replay", ", sync"),
            *(Line(f"{kind}: median", ("a request", kind), unit="ms") for kind in KINDS),
        ),
    ),
    Case(
        "requests-roundtrips",
        "round trips to the database a request",
        round_trips,
        (
            Line("more with a key", ("requests", "more"), at_most=3),
            Line("without a key", ("requests", "plain")),
            Line("replay", ("replay", "round trips")),
        ),
        most_rounds=1,
    ),
)
