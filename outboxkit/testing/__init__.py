"""Help for the tests of an application, and the suite that every broker must pass."""
