"""What the tests of an application need, and the suite that every broker must pass."""
