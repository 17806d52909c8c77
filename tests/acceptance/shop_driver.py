"""The shop of example 3 as a stranger runs it, with `make serve`, and clients that talk to it."""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from mailbox import Maildir
from pathlib import Path
from typing import Any

import httpx

from tests.processes import ROOT
from tests.servers.ports import free_row
from tests.support.polling import DEADLINE_SECONDS, eventually

SHOP = ROOT / "examples" / "3_shop"
PROBLEM = "application/problem+json"


class Made:
    """A target of the shop's Makefile that runs in the foreground, in a process group of its own."""

    def __init__(self, *target: str, log: Path, environment: Mapping[str, str], port: int) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOXKIT_", "MAKE"))}
        self.port, self.log = port, log
        self._since = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                ["make", *target, f"PORT={port}", f"PYTHON={sys.executable}"],
                cwd=SHOP,
                env={**kept, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def output(self) -> str:
        return self.log.read_bytes()[self._since :].decode()

    def url_of(self, what: str) -> str:
        """What it says of where `what` is, once it says so."""

        def said() -> re.Match[str] | None:
            assert self.popen.poll() is None, self.output()
            return re.search(rf"^{what} +(\S+)", self.output(), re.MULTILINE)

        found = eventually(said)
        assert found is not None
        return found[1]

    def kill(self) -> None:
        """SIGKILL for everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def stop(self) -> int:
        """SIGTERM for `make`, which passes it on; the exit code."""
        self.popen.terminate()
        return self.popen.wait(DEADLINE_SECONDS)


class Shop:
    """The shop on `fastapi` or `flask`, with data of its own: started, killed and started again at the same port."""

    def __init__(self, app: str, data: Path, environment: Mapping[str, str] | None = None) -> None:
        self.app, self.data, self.port = app, data, free_row(3)  # its neighbours take the two ports after it
        self.environment = {"SHOP_DATA": str(data), **(environment or {})}
        data.mkdir(parents=True, exist_ok=True)
        self.log = data / "serve.log"
        self.running: Made | None = None
        self._clients: list[Client] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Made:
        self.running = Made("serve", f"APP={self.app}", log=self.log, environment=self.environment, port=self.port)
        return self.running

    def ready(self) -> "Shop":
        assert (self.running or self.start()).url_of("shop") == self.url
        return self

    def payments_url(self) -> str:
        assert self.running is not None
        return self.running.url_of("payments")

    def close(self) -> None:
        for client in self._clients:
            client.http.close()
        if self.running is not None:
            self.running.kill()

    def client(self, user: str | None = None, *, timeout: float = 40) -> "Client":
        self._clients.append(Client(self.url, user or f"user-{secrets.token_hex(4)}", timeout=timeout))
        return self._clients[-1]

    def receipts(self) -> list[str]:
        """To whom mails were sent."""
        folder = self.data / "mails"
        return [mail["To"] for mail in Maildir(folder, create=False)] if folder.exists() else []


class Client:
    """One caller. Keys are its own to choose; a new one where none is given."""

    def __init__(self, url: str, user: str, *, timeout: float) -> None:
        self.user = user
        self.http = httpx.Client(base_url=url, headers={"X-User": user}, timeout=timeout, trust_env=False)

    def place(self, *, key: str | None = None, customer: str = "Ada", total: str = "19.80") -> httpx.Response:
        return self.post("/orders", {"customer": customer, "total": total}, key=key)

    def pay(self, order: object, *, amount: str = "19.80", key: str | None = None) -> httpx.Response:
        return self.post(f"/orders/{order}/pay", {"amount": amount}, key=key)

    def post(self, path: str, body: object, *, key: str | None = None) -> httpx.Response:
        return self.http.post(path, json=body, headers={"Idempotency-Key": f'"{key or secrets.token_hex(8)}"'})

    def show(self, order: object) -> httpx.Response:
        return self.http.get(f"/orders/{order}")

    def change(self, order: object, customer: str, *, if_match: str | None) -> httpx.Response:
        headers = {} if if_match is None else {"If-Match": if_match}
        return self.http.patch(f"/orders/{order}", json={"customer": customer}, headers=headers)

    def placed(self, **given: str) -> int:
        answer = self.place(**given)
        assert answer.status_code == 201, answer.text
        return answer.json()["order_id"]

    def wait_until_paid(self, order: object, *, seconds: float = 60) -> None:
        eventually(lambda: self.show(order).json()["status"], lambda status: status == "paid", seconds=seconds)


def ledger(payments_url: str) -> list[dict[str, Any]]:
    return json.loads(httpx.get(f"{payments_url}/ledger", trust_env=False).content)["charges"]


def is_problem(answer: httpx.Response, status: int, slug: str | None = None) -> bool:
    """Whether it refuses the request with problem details, of this type."""
    if answer.status_code != status or answer.headers["Content-Type"] != PROBLEM:
        raise AssertionError(f"{answer.status_code} {answer.headers.get('Content-Type')}: {answer.text}")
    document = answer.json()
    return document["status"] == status and (slug is None or document["type"] == f"urn:outboxkit:problem:{slug}")


@contextmanager
def serving(app: str, data: Path, environment: Mapping[str, str] | None = None) -> Iterator[Shop]:
    shop = Shop(app, data, environment)
    try:
        yield shop.ready()
    finally:
        shop.close()


def port_is_free(port: int, *, within: float = 5) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return True
        time.sleep(0.05)
    return False
