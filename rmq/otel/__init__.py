"""Traces and metrics for OpenTelemetry. Needs the extra: `pip install 'rmq[otel]'`, and an SDK that you set up.

`client.observers.all.append(Telemetry())`, in senders and in workers, before producers are made and listeners start.
"""

from __future__ import annotations

try:
    import opentelemetry.trace as _needed
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("OpenTelemetry needs the package opentelemetry-api: pip install 'rmq[otel]'") from error

from rmq.otel.telemetry import Telemetry

del _needed
__all__ = ["Telemetry"]
