"""What the shop does not own: a payment provider, and a mail server. Stand-ins, of the standard library alone."""
