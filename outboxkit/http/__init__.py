"""Requests that come in: idempotent ones and their ledger, preconditions, problems. Calls go out in `brokers/http`."""
