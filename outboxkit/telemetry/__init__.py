"""Telemetry: metrics and traces of every process, through OpenTelemetry's API if the application has it set up."""
