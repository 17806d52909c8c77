"""Envelopes as real publishers send them through RabbitMQ: seen on the wire, or in their sources."""

import json
from typing import Any

from outboxkit.codec.envelopes import Envelope

EVENT = {"order_id": 7, "total": "19.90"}
BODY = json.dumps(EVENT).encode()
TIME = "2026-03-01T12:00:00Z"

ATTRIBUTES = {"specversion": "1.0", "id": "A-1", "source": "/shop", "type": "com.example.order.confirmed", "time": TIME}

PYTHON_SDK = Envelope(
    body=BODY,
    headers={f"cloudEvents_{name}": value for name, value in (ATTRIBUTES | {"time": 1772366400000}).items()},
    content_type="application/json",
    routing_key="orders",
)
"""cloudevents 2.2 for Python in binary mode. Its time is a number of milliseconds."""

KNATIVE = Envelope(
    body=BODY,
    headers={f"ce-{name}": value for name, value in ATTRIBUTES.items()},
    content_type="application/json",
    routing_key="",
)
"""Knative's binding for RabbitMQ in binary mode."""

COLON = Envelope(
    body=BODY,
    headers={f"cloudEvents:{name}": value for name, value in ATTRIBUTES.items()},
    content_type="application/json; charset=utf-8",
)
"""The binding to AMQP 1.0 with the other separator, as RabbitMQ turns application properties into headers."""

STRUCTURED = Envelope(
    body=json.dumps(ATTRIBUTES | {"datacontenttype": "application/json", "data": EVENT}).encode(),
    content_type="application/cloudevents+json; charset=UTF-8",
)

DAPR = Envelope(
    body=json.dumps(
        {
            "data": EVENT,
            "datacontenttype": "application/json",
            **ATTRIBUTES,
            "pubsubname": "rabbit",
            "topic": "orders",
            "traceid": "00-113ad9c4e42b27583ae98ba698d54255-e3743e35ff56f219-01",
            "traceparent": "00-113ad9c4e42b27583ae98ba698d54255-e3743e35ff56f219-01",
            "tracestate": "",
        }
    ).encode(),
    content_type="text/plain",
)
"""Dapr's component for RabbitMQ, which calls the document plain text."""

TASK_ID = "94589407-4a07-4f3f-8860-959a349cf5ca"
TASK: dict[str, Any] = {
    "lang": "py",
    "task": "proj.tasks.add",
    "id": TASK_ID,
    "shadow": None,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "root_id": TASK_ID,
    "parent_id": None,
    "argsrepr": "()",
    "kwargsrepr": "{}",
    "origin": "gen7985@vm",
    "ignore_result": False,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}
EMBEDDED: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def task(
    args: Any = (), kwargs: Any = None, embedded: Any = None, body: bytes | None = None, **headers: Any
) -> Envelope:
    """A task as Celery 5.7 sends it."""
    document = [args, EVENT if kwargs is None else kwargs, EMBEDDED | (embedded or {})]
    return Envelope(
        body=json.dumps(document).encode() if body is None else body,
        headers=TASK | headers,
        routing_key="celery",
        content_type="application/json",
        content_encoding="utf-8",
        correlation_id=TASK_ID,
    )


URN = "urn:message:Shop.Contracts:OrderConfirmed"
MASSTRANSIT_ID = "b1740000-5d78-0015-6f2a-08dbd1a0e1b1"
SENT: dict[str, Any] = {
    "messageId": MASSTRANSIT_ID,
    "requestId": None,
    "correlationId": "bca4a9d7-ddb8-4a7e-bc1a-ef51604f0a2f",
    "conversationId": "b1740000-5d78-0015-7a0b-08dbd1a0e1b1",
    "initiatorId": None,
    "sourceAddress": "rabbitmq://localhost/shop_api_bus",
    "destinationAddress": "rabbitmq://localhost/Shop.Contracts:OrderConfirmed",
    "responseAddress": None,
    "faultAddress": None,
    "messageType": [URN, "urn:message:Shop.Contracts:IOrderEvent"],
    "message": EVENT,
    "expirationTime": None,
    "sentTime": "2026-03-01T12:00:00.3695388Z",
    "headers": {"MT-Activity-Id": "00-4fea208c5599cbeedeac543443352c94-08958af1777c0ed2-01"},
    "host": {"machineName": "pod-1", "processName": "Shop.Api", "massTransitVersion": "8.2.5.0"},
}


def sent(**more: Any) -> Envelope:
    """A message as MassTransit 8 sends it."""
    return Envelope(
        body=json.dumps(SENT | more).encode(),
        headers={"publishId": "1"},
        content_type="application/vnd.masstransit+json",
        message_id=MASSTRANSIT_ID,
        correlation_id=str(SENT["correlationId"]),
    )


ROW_ID = "4d47e190-0402-4048-bc2c-89dd54343cdc"


def row(body: bytes = BODY, routing_key: str = "outbox.event.Order", **headers: Any) -> Envelope:
    """A row as Debezium Server's sink for RabbitMQ sends it: headers and body, and no properties."""
    return Envelope(body=body, headers={"id": ROW_ID} | headers, routing_key=routing_key)


ALL = (PYTHON_SDK, KNATIVE, COLON, STRUCTURED, DAPR, task(), sent(), row())
