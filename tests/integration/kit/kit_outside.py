"""Handlers that do something outside their transaction: wrong ones, and right twins."""

import asyncio
import http.client
import os
import smtplib
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import requests
from sqlalchemy import event as listening
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Message, effects, inbox_handler
from tests.integration.kit.kit_handlers import Ordered, add_receipt

WEB = ""
MAIL = 0
FOLDER = Path()
LOCAL = ""
SESSIONS: Any = None


# Requests.


@inbox_handler("wrong.Httpx")
def wrong_httpx(session: Session, event: Ordered) -> None:
    httpx.post(f"{WEB}/charges", json={"order": event.order_id}, verify=False)


@inbox_handler("wrong.HttpClient")
def wrong_http_client(session: Session, event: Ordered) -> None:
    connection = http.client.HTTPConnection(WEB.removeprefix("http://"), timeout=10)
    connection.request("POST", "/charges", body=b"order=7")
    connection.getresponse().read()
    connection.close()


@inbox_handler("wrong.NewKey")
def wrong_new_key(session: Session, event: Ordered) -> None:
    httpx.post(
        f"{WEB}/charges", json={"order": event.order_id}, headers={"Idempotency-Key": str(uuid.uuid4())}, verify=False
    )


@inbox_handler("right.Key")
def right_key(session: Session, event: Ordered, message: Message) -> None:
    httpx.post(f"{WEB}/charges", json={"order": event.order_id}, headers={"Idempotency-Key": message.id}, verify=False)


@inbox_handler("right.Get")
def right_get(session: Session, event: Ordered) -> None:
    rate = httpx.get(f"{WEB}/rate", verify=False).status_code
    add_receipt(session, event, number=rate)


@inbox_handler("right.Put")
def right_put(session: Session, event: Ordered) -> None:
    requests.put(f"{WEB}/orders/{event.order_id}", json={"total": str(event.total)}, timeout=10)


@inbox_handler("right.EffectOnce")
def right_effect_once(session: Session, event: Ordered) -> None:
    def call() -> int:
        return httpx.post(f"{WEB}/charges", json={"order": event.order_id}, verify=False).status_code

    effects.once(SESSIONS, call=call, on_unknown="skip")


# Mail, sockets, files and programs.


def send_mail(to: str) -> None:
    with smtplib.SMTP("127.0.0.1", MAIL, local_hostname="shop", timeout=10) as client:
        client.sendmail("shop@example.com", to, "Subject: your receipt\r\n\r\nthank you\r\n")


@inbox_handler("wrong.Mail")
def wrong_mail(session: Session, event: Ordered) -> None:
    add_receipt(session, event)
    send_mail("ann@example.com")


@inbox_handler("wrong.MailInThread")
async def wrong_mail_in_thread(session: AsyncSession, event: Ordered) -> None:
    await asyncio.to_thread(send_mail, "ann@example.com")


@inbox_handler("wrong.MailInAPool")
def wrong_mail_in_a_pool(session: Session, event: Ordered) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(send_mail, "ann@example.com").result()


@inbox_handler("wrong.MailAfterAnEffect")
def wrong_mail_after_an_effect(session: Session, event: Ordered) -> None:
    effects.once(SESSIONS, call=lambda: send_mail("ann@example.com"), on_unknown="skip")
    send_mail("ann@example.com")


@inbox_handler("wrong.Lookup")
def wrong_lookup(session: Session, event: Ordered) -> None:
    """A service that cannot be reached where the tests run."""
    socket.getaddrinfo("localhost", 8025)


@inbox_handler("wrong.Socket")
def wrong_socket(session: Session, event: Ordered) -> None:
    with socket.create_connection(("127.0.0.1", MAIL), timeout=10) as connection:
        connection.recv(100)


@inbox_handler("wrong.Udp")
def wrong_udp(session: Session, event: Ordered) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"sold", ("127.0.0.1", 9))


@inbox_handler("wrong.UnixSocket")
def wrong_unix_socket(session: Session, event: Ordered) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(LOCAL)


@inbox_handler("wrong.File")
def wrong_file(session: Session, event: Ordered) -> None:
    with (FOLDER / "orders.csv").open("a") as file:
        file.write(f"{event.order_id},{event.total}\n")


@inbox_handler("wrong.FileOfItsOwn")
def wrong_file_of_its_own(session: Session, event: Ordered) -> None:
    (FOLDER / f"receipt-{uuid.uuid4()}.txt").write_text("thank you")


@inbox_handler("wrong.Folder")
def wrong_folder(session: Session, event: Ordered) -> None:
    (FOLDER / str(uuid.uuid4())).mkdir()


@inbox_handler("wrong.Truncate")
def wrong_truncate(session: Session, event: Ordered) -> None:
    path = FOLDER / "counter"
    os.truncate(path, path.stat().st_size + 1)


@inbox_handler("wrong.HardLink")
def wrong_hard_link(session: Session, event: Ordered) -> None:
    (FOLDER / str(uuid.uuid4())).hardlink_to(FOLDER / "counter")


@inbox_handler("wrong.Link")
def wrong_link(session: Session, event: Ordered) -> None:
    (FOLDER / str(uuid.uuid4())).symlink_to("counter")


@inbox_handler("right.Link")
def right_link(session: Session, event: Ordered) -> None:
    with suppress(FileExistsError):
        (FOLDER / "last").symlink_to("counter")


@inbox_handler("right.FolderRemoved")
def right_folder_removed(session: Session, event: Ordered) -> None:
    add_receipt(session, event)
    with suppress(FileNotFoundError):
        (FOLDER / "folder").rmdir()


@inbox_handler("wrong.ProgramInstead")
def wrong_program_instead(session: Session, event: Ordered) -> None:
    os.execv("/bin/true", ["true"])


@inbox_handler("right.Folders")
def right_folders(session: Session, event: Ordered) -> None:
    path = FOLDER / "receipts" / str(event.order_id)
    path.mkdir(parents=True, exist_ok=True)
    (path / "receipt.txt").write_text("thank you")


@inbox_handler("right.File")
def right_file(session: Session, event: Ordered) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "receipt.txt"
        path.write_text(f"{event.order_id}")
        add_receipt(session, event, number=len(path.read_text()))


@inbox_handler("right.SameFile")
def right_same_file(session: Session, event: Ordered) -> None:
    path = FOLDER / f"receipt-{event.order_id}.txt"
    path.with_suffix(".new").write_text("thank you")
    path.with_suffix(".new").replace(path)


@inbox_handler("wrong.Program")
def wrong_program(session: Session, event: Ordered) -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)


@inbox_handler("wrong.System")
def wrong_system(session: Session, event: Ordered) -> None:
    os.system("true")


@inbox_handler("wrong.ProgramAsync")
async def wrong_program_async(session: AsyncSession, event: Ordered) -> None:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()


@inbox_handler("wrong.AfterCommit")
def wrong_after_commit(session: Session, event: Ordered) -> None:
    add_receipt(session, event)
    listening.listen(session, "after_commit", lambda _: send_mail("ann@example.com"), once=True)


@inbox_handler("wrong.Timer")
async def wrong_timer(session: AsyncSession, event: Ordered) -> None:
    asyncio.get_running_loop().call_later(0.2, send_mail, "ann@example.com")


@inbox_handler("wrong.MailInOwnThread")
def wrong_mail_in_own_thread(session: Session, event: Ordered) -> None:
    thread = threading.Thread(target=send_mail, args=("ann@example.com",))
    thread.start()
    thread.join()


WRONG = [each for name, each in list(globals().items()) if name.startswith("wrong_")]
RIGHT = [each for name, each in list(globals().items()) if name.startswith("right_")]
