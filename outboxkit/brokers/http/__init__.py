"""HTTP destination through httpx: each message is one POST to one URL, and the response becomes its receipt.

`publisher` sends batches and `call` sends one request. The other modules decide without I/O:

* `request`: the target, the headers, the idempotency key and the signature of a request.
* `order`: which message is sent next, and the receipts of those without an answer.
* `verdict`: the receipt for a response.
"""

from outboxkit.brokers.http.publisher import HttpPublisher

__all__ = ["HttpPublisher"]
