"""A payment provider to try things with: it honours `Idempotency-Key`, and it fails as it is told.

* `POST /charges {"order_id": 1, "amount": "19.80"}` charges once for each key; the same key gets the same answer.
* `GET /ledger` lists every charge.
* `PUT /mood {"mood": "fail", "status": 503}` sets the behaviour from now on, or `"times": 3` times; see MOODS.

`python -m outside.payments --port 8124` runs it alone.
"""

import argparse
import json
import socket
import sqlite3
import sys
import time
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MOODS = {
    "well": "charges and answers",
    "slow": "waits for `seconds` first",
    "fail": "answers `status`, with `retry_after` if it is given, and charges nothing",
    "drop_before": "cuts the connection, and charges nothing",
    "drop_after": "charges, then cuts the connection instead of answering",
}
WELL = {"mood": "well"}
TABLE = """CREATE TABLE IF NOT EXISTS charges (number INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL,
           order_id INTEGER NOT NULL, amount TEXT NOT NULL)"""


class Ledger:
    """Every charge, in a file of its own: the provider is not the shop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._open()) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(TABLE)

    def charge(self, key: str, order_id: int, amount: str) -> tuple[int, dict[str, object]]:
        with closing(self._open()) as database:
            added = "INSERT INTO charges (key, order_id, amount) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
            database.execute(added, (key, order_id, amount))  # one statement: two of one key cannot both charge
            query = "SELECT number, order_id, amount FROM charges WHERE key = ?"
            number, *charged = database.execute(query, (key,)).fetchone()
        if charged != [order_id, amount]:
            return 422, {"error": "this key was used for another charge"}
        return 201, {"order_id": order_id, "amount": amount, "charge": f"ch_{number:06}"}

    def charges(self) -> list[dict[str, object]]:
        with closing(self._open()) as database:
            rows = database.execute("SELECT number, key, order_id, amount FROM charges ORDER BY number")
            return [
                {"charge": f"ch_{number:06}", "key": key, "order_id": order, "amount": amount}
                for number, key, order, amount in rows
            ]

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)


class Payments(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], ledger: Path) -> None:
        super().__init__(address, Conversation)
        self.ledger, self.mood = Ledger(ledger), dict(WELL)

    def next_mood(self) -> dict[str, object]:
        mood = self.mood
        if isinstance(left := mood.get("times"), int):
            self.mood = {**mood, "times": left - 1} if left > 1 else dict(WELL)
        return mood

    def handle_error(self, request, client_address) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that went away is none of our business
            super().handle_error(request, client_address)


class Conversation(BaseHTTPRequestHandler):
    server: Payments
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # head and body in one packet

    def do_POST(self) -> None:
        body = self.body()
        if self.path != "/charges":
            return self.answer(404, {"error": "POST /charges"})
        mood = self.server.next_mood()
        match mood["mood"]:
            case "slow":
                time.sleep(float(mood.get("seconds", 2)))
            case "fail":
                after = mood.get("retry_after")
                headers = {} if after is None else {"Retry-After": str(after)}
                return self.answer(int(mood.get("status", 500)), {"error": "as I was told"}, **headers)
            case "drop_before":
                return self.drop()
        key = (self.headers.get("Idempotency-Key") or "").strip('"')
        if not key:
            return self.answer(400, {"error": "an Idempotency-Key is needed"})
        try:
            order, amount = int(body["order_id"]), str(body["amount"])
        except (KeyError, TypeError, ValueError):
            return self.answer(422, {"error": 'as in {"order_id": 1, "amount": "19.80"}'})
        answer = self.server.ledger.charge(key, order, amount)
        return self.drop() if mood["mood"] == "drop_after" else self.answer(*answer)

    def do_GET(self) -> None:
        known = {"/ledger": lambda: {"charges": self.server.ledger.charges()}, "/mood": lambda: self.server.mood}
        if self.path not in known:
            return self.answer(404, {"error": "GET /ledger, GET /mood, PUT /mood, POST /charges"})
        return self.answer(200, known[self.path]())

    def do_PUT(self) -> None:
        body = self.body()
        if self.path != "/mood" or not isinstance(body, dict) or body.get("mood") not in MOODS:
            return self.answer(422, {"error": 'as in PUT /mood {"mood": "slow", "seconds": 2}', "moods": MOODS})
        self.server.mood = body
        return self.answer(200, body)

    def body(self) -> object:
        with suppress(ValueError):
            return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def answer(self, status: int, body: object, **headers: str) -> None:
        encoded = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(encoded)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(encoded)

    def drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Be quiet."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m outside.payments", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8124)
    parser.add_argument("--ledger", type=Path, default=Path("data/payments.db"), help="an SQLite file")
    options = parser.parse_args()
    options.ledger.parent.mkdir(parents=True, exist_ok=True)
    server = Payments(("127.0.0.1", options.port), options.ledger)
    print(f"payments  http://127.0.0.1:{server.server_port}", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
