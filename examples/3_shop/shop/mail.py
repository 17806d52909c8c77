"""Sends mail by SMTP, to the server that `SMTP_URL` names."""

import asyncio
import os
import smtplib
from email.message import EmailMessage
from urllib.parse import urlsplit

NOT_SENT = (
    smtplib.SMTPConnectError,
    smtplib.SMTPHeloError,
    smtplib.SMTPSenderRefused,
    smtplib.SMTPRecipientsRefused,
    smtplib.SMTPDataError,
)
"""The server has answered, and has not taken the mail. After any other error nobody knows whether it was sent."""


async def send(to: str, subject: str, text: str) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.com", to, subject
    mail.set_content(text)
    await asyncio.to_thread(_send, mail)


def _send(mail: EmailMessage) -> None:
    url = urlsplit(os.environ["SMTP_URL"])
    with smtplib.SMTP(url.hostname, url.port or 25, local_hostname="shop", timeout=5) as server:
        server.send_message(mail)
