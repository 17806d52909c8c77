"""Systems outside of the shop: a payment provider and a mail server. Stand-ins, of the standard library alone."""
