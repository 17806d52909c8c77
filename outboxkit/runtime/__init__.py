"""What a process is made of: settings, engines, logs, outages, pauses, and the one place that puts them together."""
