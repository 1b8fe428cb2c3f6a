"""A server that is no Redis."""

from __future__ import annotations

import socket
import threading

import pytest

from rmq import RmqClient
from rmq.errors import RedisUnavailableError


def test_a_server_that_speaks_another_language_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4_096)
                    connection.sendall(b"<html>400 Bad Request</html>\r\n")

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        with RmqClient(f"redis://127.0.0.1:{port}", deadline_s=0.5) as client:
            with pytest.raises(RedisUnavailableError, match="no answer from Redis"):
                client.topics()
        server.shutdown(socket.SHUT_RDWR)
