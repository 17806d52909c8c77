"""`outboxkit doctor`: checks that tell whether an installation is safe. Their findings stand in `operators.findings`.

`examine` runs the checks of both sides, `installation` is what they know beforehand. Each other module has those of one
concept: plain generators, which read a database or a snapshot of the broker and yield findings.
"""
