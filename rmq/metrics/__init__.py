"""Metrics for Prometheus. Needs the extra: `pip install 'rmq[metrics]'`.

`serve(client)` exports the metrics of all topics on a port, and at `/scale/<topic>` a topic's amount of work, for
autoscalers. `Handlers` measures the handlers of a worker. On the command line: `rmq metrics`, and `rmq worker
--metrics-port`.
"""

from __future__ import annotations

try:
    import prometheus_client as _needed
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("metrics need the package prometheus-client: pip install 'rmq[metrics]'") from error

from rmq.metrics.collector import Handlers, TopicsCollector
from rmq.metrics.server import Scale, Server, render, scale, serve, serve_handlers

del _needed
__all__ = ["Handlers", "Scale", "Server", "TopicsCollector", "render", "scale", "serve", "serve_handlers"]
