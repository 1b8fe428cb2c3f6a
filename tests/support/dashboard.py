"""A dashboard that is served for real, and topics worth looking at."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from rmq import RmqClient
from rmq.dashboard.app import make_app
from rmq.dashboard.security import Settings
from tests.support.waiting import wait_until


@contextmanager
def served(client: RmqClient, settings: Settings | None = None) -> Generator[str]:
    """Serve a dashboard in a thread; give its address."""
    app = make_app(client, settings)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off", server_header=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="dashboard-under-test", daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, 60)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)
