"""HTTP endpoints: idempotent requests and their ledger, preconditions, and problem details."""
