"""Envelopes as real publishers send them through RabbitMQ: seen on the wire, or in their sources."""

import json

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

ALL = (PYTHON_SDK, KNATIVE, COLON, STRUCTURED, DAPR)
