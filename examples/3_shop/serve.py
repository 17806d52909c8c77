"""The whole shop in one process: web server, workers, and stand-ins for payment provider and mail server.

`make serve PORT=8123` starts it, `make serve APP=flask` on Flask. End it with Ctrl-C, or with `kill -9`: the next start
goes on where it was.
"""

import argparse
import asyncio
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from importlib import import_module
from socketserver import BaseServer
from types import ModuleType

from outside.mails import Mails
from outside.payments import Payments
from shop import database, workers

from outboxkit.runtime import process

HOST = "127.0.0.1"


async def serve(app: ModuleType, listening: socket.socket, payments_url: str, stop: asyncio.Event) -> int:
    await database.migrate()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(workers.work(payments_url, stop))
        tasks.create_task(app.serve(listening, stop))
        print(f"shop      http://{HOST}:{listening.getsockname()[1]}")
        print(f"payments  {payments_url}  (try /ledger)")
        print(f"mails     {os.environ['SMTP_URL']}", flush=True)
    await database.effects_engine.dispose()
    return 0


def listen(port: int) -> socket.socket:
    """Listen at the port, after a moment if a shop that was just killed still has it."""
    deadline = time.monotonic() + 5
    while True:
        try:
            listening = socket.create_server((HOST, port), backlog=1024)
        except OSError:
            if time.monotonic() > deadline:
                sys.exit(f"port {port} is taken: make serve PORT=…")
            time.sleep(0.1)
        else:
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits for an ACK
            return listening


def start(kind: type[Payments] | type[Mails], port: int, path: str) -> int:
    """Start a stand-in in a thread, at this port or at any that is free."""
    server: BaseServer
    try:
        server = kind((HOST, port), database.DATA / path)
    except OSError:
        server = kind((HOST, 0), database.DATA / path)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def leave_with(parent: int) -> None:
    """`make` was killed: nobody is left to end this process, which would keep the port."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--app", choices=("fastapi", "flask"), default="fastapi")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--parent", type=int, help="end when this process ends, which has started this one")
    options = parser.parse_args()
    if options.parent:
        threading.Thread(target=leave_with, args=(options.parent,), daemon=True).start()
    listening = listen(options.port)
    port = listening.getsockname()[1]
    payments_url = os.environ.get("PAYMENTS_URL") or f"http://{HOST}:{start(Payments, port + 1, 'payments.db')}"
    if not os.environ.get("SMTP_URL"):
        os.environ["SMTP_URL"] = f"smtp://{HOST}:{start(Mails, port + 2, 'mails')}"
    process.configure_log(level=os.environ.get("OUTBOXKIT_LOG_LEVEL", "warning"))
    app = import_module(f"{options.app}_app")
    return process.run(lambda stop: serve(app, listening, payments_url, stop), shutdown_timeout=timedelta(seconds=10))


if __name__ == "__main__":
    sys.exit(main())
