"""Servers in containers, by testcontainers, for the fixtures that all tests share.

RMQ_TEST_REDIS=docker:IMAGE names the image, such as docker:redis:7.2.5-alpine. Tests that stop, freeze or fill a server
start a program of their own even then.
"""

from __future__ import annotations

import contextlib
import os
from importlib import import_module
from typing import Any

import redis

from tests.support.servers import BINARY_VARIABLE, DOCKER_PREFIX
from tests.support.waiting import wait_until

_PORT = 6379


def redis_image() -> str | None:
    """Return the image that RMQ_TEST_REDIS names; None where it names a program, or nothing."""
    choice = os.environ.get(BINARY_VARIABLE) or ""
    return choice.removeprefix(DOCKER_PREFIX) if choice.startswith(DOCKER_PREFIX) else None


class RedisContainer:
    """A Redis in a container, without persistence, on a port of this machine.

    Args:
        image: Its image: one whose command may be `redis-server` with arguments.

    Attributes:
        port: The port on this machine.
        id: The container's id.
        socket_path: None: it has no unix socket.
    """

    socket_path = None

    def __init__(self, image: str) -> None:
        # by name: whoever names no image needs no testcontainers
        settings: Any = import_module("testcontainers.core.config")
        containers: Any = import_module("testcontainers.core.container")
        settings.testcontainers_config.ryuk_disabled = True  # it is one more image, and `stop` removes ours
        container: Any = containers.DockerContainer(image)
        container.with_exposed_ports(_PORT).with_command(["redis-server", "--save", "", "--appendonly", "no"])
        self._container = container
        try:
            container.start()
            self._host = container.get_container_host_ip()
            self.id = str(container.get_wrapped_container().id)
            self.port = int(container.get_exposed_port(_PORT))
            wait_until(self._answers, message=f"the Redis of {image} on {self.url}")
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"redis://{self._host}:{self.port}/0"

    def connect(self) -> redis.Redis:
        """Make a client that gives up after 30 s."""
        return redis.Redis.from_url(self.url, socket_timeout=30.0)

    def stop(self) -> None:
        """Remove the container with its data."""
        self._container.stop()

    def __enter__(self) -> RedisContainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError), self.connect() as client:
            return bool(client.ping())
        return False
