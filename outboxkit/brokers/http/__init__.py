"""An HTTP destination through httpx: each message is one POST to one URL, and its answer is the receipt.

`publisher` sends. What is decided is decided without I/O: `target` (where to, and what is secret), `request` (a
message's headers), `signature` (Standard Webhooks), `lanes` (what may go when, and what nobody answered for), `verdict`
(what a response means). `call` is one request.
"""

from outboxkit.brokers.http.publisher import HttpPublisher

__all__ = ["HttpPublisher"]
