"""Parts of a process: settings, engines, logs, outages, pauses, and `compose`, which puts all of them together."""
