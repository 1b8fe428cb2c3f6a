"""Serves metrics to Prometheus over HTTP, and to autoscalers a topic's amount of work, as JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, cast

from prometheus_client import CollectorRegistry, exposition

from rmq import GroupStats, RmqClient, Topic, TopicStats, TopicType
from rmq.errors import InvalidValueError, RedisUnavailableError, RmqError, UnknownTopicError
from rmq.metrics.collector import Handlers, TopicsCollector
from rmq.spi import HttpServer, monotonic_s, serve_on

PORT = 9_460
TRIED_PORTS = 64

KEEP_S = 2.0
"""Time within which requests share one reading of Redis, seconds."""

PATH = "/scale/"


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work of a topic, or of one group of a stream topic, at one time.

    Attributes:
        topic: Name of the topic.
        group: Name of the group; `None` for a topic that is not a stream.
        due_now: Messages that may be delivered now. A slot that has only expired leases or due retries counts as one,
            since their number is not known before a claim. For a group: entries that it has not read yet, and those
            that wait for a retry; `None` if Redis cannot tell how many it has not read. Paused slots do not count.
        lateness_s: Seconds since the oldest due message became due, 0 if none is due; `None` for PRIORITY and STREAM
            topics.
        in_flight: Messages in flight.
        work: `due_now` + `in_flight`, the value to scale by. It is 0 only if no worker is needed; `None` if
            `due_now` is `None`.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> from rmq.metrics import scale
        >>> scale(client, "jobs").work
        1
    """

    topic: str
    group: str | None
    due_now: int | None
    lateness_s: float | None
    in_flight: int
    work: int | None


def scale(client: RmqClient, topic: str, group: str | None = None) -> Scale:
    """Return a topic's amount of work. Costs one short script per slot.

    Args:
        client: The client to use.
        topic: Name of the topic.
        group: The group, for stream topics only.

    Raises:
        UnknownTopicError: The topic is not registered, or the stream has no such group.
        InvalidValueError: The topic is STREAM and `group` is missing, or it is not and `group` is given.

    Examples:
        >>> from rmq.metrics import scale
        >>> _ = client.producer(Topic("jobs", TopicType.PRIORITY))
        >>> scale(client, "jobs")
        Scale(topic='jobs', group=None, due_now=0, lateness_s=None, in_flight=0, work=0)
    """
    definition = client.topic(topic)
    if definition.type is not TopicType.STREAM:
        if group is not None:
            raise InvalidValueError(f"topic {topic} is {definition.type.name}; only STREAM topics have groups")
        return scale_of(client.inspect(definition).stats())
    if group is None:
        raise InvalidValueError(f"topic {topic} is STREAM and needs a group: pass group=, or use {PATH}{topic}/GROUP")
    _, groups = client.stream(definition).with_groups()
    for stats in groups:
        if stats.group == group:
            return scale_of_group(definition, stats)
    raise UnknownTopicError(f"topic {topic} has no group {group}", topic=topic)


def scale_of(stats: TopicStats) -> Scale:
    """Compute the amount of work from a topic's figures."""
    running = [slot for slot in stats.slots if not slot.paused]
    due = sum(slot.due_now or int(0 < slot.next_due_ms <= slot.now_ms) for slot in running)
    late = stats.lateness_ms / 1000 if stats.topic.type.timed else None
    return Scale(stats.topic.name, None, due, late, stats.in_flight, due + stats.in_flight)


def scale_of_group(topic: Topic, stats: GroupStats) -> Scale:
    """Compute the amount of work from a group's figures."""
    running = GroupStats(stats.group, tuple(slot for slot in stats.slots if not slot.paused))
    due = None if running.lag is None else running.lag + running.waiting
    return Scale(topic.name, stats.group, due, None, stats.in_flight, None if due is None else due + stats.in_flight)


class ScalePages:
    """A WSGI application that serves `/scale/<topic>` and `/scale/<topic>/<group>`.

    Args:
        client: The client to use.
        keep_s: Seconds for which a reading, or the error that Redis does not answer, is reused.
    """

    def __init__(self, client: RmqClient, keep_s: float = KEEP_S) -> None:
        self._client = client
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str | None], tuple[float, Scale]] = {}
        self._silent_until_s, self._silence = float("-inf"), ""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        """Answer a request: 404 for an unknown topic, 400 for an invalid request, 503 if Redis does not answer."""
        path = str(environ.get("PATH_INFO", ""))
        topic, slash, group = path.removeprefix(PATH).partition("/")
        try:
            status, document = HTTPStatus.OK, asdict(self._read(topic, group if slash else None))
        except UnknownTopicError as error:
            status, document = HTTPStatus.NOT_FOUND, {"error": str(error)}
        except InvalidValueError as error:
            status, document = HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except RmqError as error:
            status, document = HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)}
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "application/json")])
        return [json.dumps(document).encode()]

    def _read(self, topic: str, group: str | None) -> Scale:
        with self._lock:
            now_s = monotonic_s()
            self._kept = {key: kept for key, kept in self._kept.items() if kept[0] > now_s}
            kept = self._kept.get((topic, group))
            if kept is None:
                if now_s < self._silent_until_s:  # else waiting requests would time out one after the other
                    raise RedisUnavailableError(self._silence)
                kept = self._kept[topic, group] = (now_s + self._keep_s, self._ask(topic, group))
            return kept[1]

    def _ask(self, topic: str, group: str | None) -> Scale:
        try:
            return scale(self._client, topic, group)
        except RedisUnavailableError as error:
            self._silent_until_s, self._silence = monotonic_s() + self._keep_s, str(error)
            raise


class Server(HttpServer):
    """An HTTP server that exports metrics to Prometheus, and the amount of work to autoscalers. It runs until closed.

    Args:
        registry: The metrics to serve, at any path but `/scale/`.
        host: The address to listen on.
        port: The port; 0 for a free one.
        client: The client for `/scale/`; `None` disables it.

    Attributes:
        port: The port on which the server listens.

    Examples:
        >>> from rmq.metrics import serve
        >>> server = serve(client, port=0)
        >>> server.port > 0
        True
        >>> server.close()
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int, client: RmqClient | None = None) -> None:
        metrics: Any = cast("Any", exposition).make_wsgi_app(registry)
        scales = None if client is None else ScalePages(client)

        def answer(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
            if scales is not None and str(environ.get("PATH_INFO", "")).startswith(PATH):
                return scales(environ, start_response)
            return metrics(environ, start_response)

        super().__init__(answer, host, port, "rmq-metrics")


def serve(client: RmqClient, host: str = "127.0.0.1", port: int = PORT) -> Server:
    """Export the metrics of all topics at `/metrics`, and a topic's amount of work at `/scale/<topic>`.

    Args:
        client: The client to use.
        host: The address to listen on. There is no login, so do not expose it to untrusted networks.
        port: The port; 0 for a free one.

    Returns:
        The server, which runs until it is closed.

    Raises:
        InvalidValueError: The port is in use or out of range, or the address is empty or not one of this machine.

    Examples:
        >>> from rmq.metrics import serve
        >>> server = serve(client, port=0)
        >>> server.close()
    """
    registry = CollectorRegistry()
    registry.register(TopicsCollector(client))
    return serve_on(lambda host, port: Server(registry, host, port, client), host, port)


def serve_handlers(client: RmqClient, host: str = "127.0.0.1", port: int = PORT) -> Server:
    """Export the metrics of a worker's handlers. Call it before its listeners start.

    Args:
        client: The worker's client.
        host: The address to listen on.
        port: The first of 64 ports to try; 0 for a free one. Further processes of the worker use the next free ports.

    Returns:
        The server, which runs until it is closed.

    Raises:
        InvalidValueError: None of the 64 ports from `port` on is free, or the address is empty or not one of this
            machine.

    Examples:
        >>> from rmq.metrics import serve_handlers
        >>> server = serve_handlers(client, port=0)
        >>> server.close()
    """
    registry = CollectorRegistry()
    client.observers.all.append(Handlers(registry))
    return serve_on(lambda host, port: Server(registry, host, port), host, port, TRIED_PORTS)


def render(client: RmqClient) -> str:
    """Return the metrics of all topics in Prometheus' text format.

    Examples:
        >>> from rmq.metrics import render
        >>> _ = client.producer(Topic("jobs", TopicType.PRIORITY))
        >>> [line for line in render(client).splitlines() if line.startswith("rmq_backlog")]
        ['rmq_backlog{topic="jobs"} 0.0']
    """
    registry = CollectorRegistry()
    registry.register(TopicsCollector(client))
    return exposition.generate_latest(registry).decode()
