"""`outboxkit doctor`: checks that tell whether an installation is safe, each with its findings and their cures.

`examine` runs the checks of both sides; `diagnosis` says what a finding is. Each other module has the checks of one
concept: small async generators that look at an `Installation`.
"""
