"""Telemetry: the metrics of every process, recorded through OpenTelemetry's API if the application has it set up."""
