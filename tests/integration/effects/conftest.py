"""A mail server that keeps what it is sent, on this machine."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest


@dataclass
class MailSink:
    """Where it listens, and the mails that it has accepted."""

    port: int = 0
    mails: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, from the greeting to QUIT or to its end (RFC 5321, section 3)."""
        writer.write(b"220 sink\r\n")
        while line := await reader.readline():
            command = line.strip().upper()
            if command == b"DATA":
                writer.write(b"354 go on\r\n")
                mail = await reader.readuntil(b"\r\n.\r\n")
                self.mails.append(mail.decode())
            writer.write(b"221 bye\r\n" if command == b"QUIT" else b"250 ok\r\n")
            if command == b"QUIT":
                break
        writer.close()


@pytest.fixture
async def sink() -> AsyncIterator[MailSink]:
    made = MailSink()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
