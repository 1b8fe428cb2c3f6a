"""Metrics for Prometheus. Needs the extra: `pip install 'rmq[metrics]'`.

`serve(client)` answers on a port with all topics' figures, and at `/scale/<topic>` how much work a topic has, for
autoscalers; `Handlers` adds how long handlers of a worker take. On the command line: `rmq metrics`, and
`rmq worker --metrics-port`.
"""

from __future__ import annotations

try:
    import prometheus_client as _needed
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("metrics need the package prometheus-client: pip install 'rmq[metrics]'") from error

from rmq.metrics.collector import TopicsCollector
from rmq.metrics.handlers import Handlers
from rmq.metrics.scale import Scale, scale
from rmq.metrics.server import Server, render, serve, serve_handlers

del _needed
__all__ = ["Handlers", "Scale", "Server", "TopicsCollector", "render", "scale", "serve", "serve_handlers"]
