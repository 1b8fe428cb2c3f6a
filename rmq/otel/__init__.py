"""Traces and metrics for OpenTelemetry. Needs `pip install 'rmq[otel]'`, and an SDK that you configure.

Call `client.observers.all.append(Telemetry())` in senders and workers, before creating producers and starting
listeners.
"""

from __future__ import annotations

try:
    import opentelemetry.trace as _needed
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("OpenTelemetry needs the package opentelemetry-api: pip install 'rmq[otel]'") from error

from rmq.otel.telemetry import Telemetry

del _needed
__all__ = ["Telemetry"]
