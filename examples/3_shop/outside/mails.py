"""A mail server that keeps its mails in a Maildir, one file a mail, and delivers nothing."""

from email.utils import formatdate
from mailbox import Maildir
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

ANSWERS = {
    b"EHLO": "250 mails",
    b"HELO": "250 mails",
    b"MAIL": "250 go on",
    b"RCPT": "250 go on",
    b"RSET": "250 forgotten",
    b"NOOP": "250 well",
}


class Mails(ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], folder: Path) -> None:
        super().__init__(address, Conversation)
        for part in ("tmp", "new", "cur"):  # Maildir makes all of them or none, and a kill may come in between
            (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder


class Conversation(StreamRequestHandler):
    server: Mails

    def handle(self) -> None:
        self.say("220 mails")
        while line := self.rfile.readline():
            match line[:4].strip().upper():
                case b"DATA":
                    self.say("354 end it with a dot")
                    if (mail := self.read_mail()) is None:
                        return None
                    self.keep(mail)
                    self.say("250 kept")
                case b"QUIT":
                    return self.say("221 good bye")
                case command:
                    self.say(ANSWERS.get(command, "502 unknown"))
        return None

    def read_mail(self) -> bytes | None:
        """The mail, or None if the connection was lost before its end."""
        lines = []
        while line := self.rfile.readline():
            if line == b".\r\n":
                return b"".join(lines)
            lines.append(line.removeprefix(b".").replace(b"\r\n", b"\n"))
        return None

    def keep(self, mail: bytes) -> None:
        received = f"Received: by mails; {formatdate(localtime=True)}\n".encode()
        Maildir(self.server.folder).add(received + mail)

    def say(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")
