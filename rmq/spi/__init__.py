"""The names on which what stands on the core is built, beside those of `rmq` and `rmq.aio`.

RMQ's own command line, dashboard, metrics, spans, adapters, test helpers, demo and Spark source import nothing else of
the core: `make layers` holds them to it. So the core can change behind these names, and an extension of your own can be
written with them. They are outside the promise of a release: any release may change them, and its changelog says so.
An extension that runs scripts of its own on RMQ's keys, as Spark does, also takes `rmq.spi.scripts`.

Each name is documented where it is defined. In short:

Texts, safe with hostile payloads, which they escape:
    `shown` (a payload or text on one line, cut), `safe_lines` (a text of several lines), `counted` (a number with its
    noun), `span` (a length of time).
Times:
    `duration_ms` (of a `Duration`), `number_ms` and `instant_ms` check a length of time or a time; `typed_duration_ms`
    and `typed_instant_ms` the text of an option. `moment_at` is the way back. `monotonic_s` is a clock that never
    jumps.
Topics and messages:
    `Message`, `Payload` and `PayloadT`; `AnyPlace` (the states of a message), `TOTALS` (the counters of a slot),
    `id_key` (an id of a stream as numbers that order it), `RECURRING` (the topic that runs schedules). `checked_slots`,
    `check_group` and `check_async` raise `InvalidValueError` for slots that a topic does not have, for a group that
    does not fit the topic's type, and for handlers that are not coroutine functions. `written_context` and
    `read_context` (headers as a trace context of a message). `topics_in` (the topics that a program defines),
    `differences` (of two definitions).
Figures of a minute, as `History` records them:
    `minute_of` (figures of a topic, or of a stream topic and its groups), `sum_of`.
A client's connections and handlers:
    `connections_of` (to ask servers something else), `sample_commands` (what RMQ needs rights for), `warnings_about` (a
    server's settings). `listener_decorator` and `scheduled_decorator` (make a function a handler, `HandlerT`),
    `inline_runner` (handles messages in the caller's thread, with an `InlineRunner`).
Requests to web servers:
    `allows_host`, `is_loopback` and `network_of`, which keep pages of other sites away from a server on this machine.
    `serve_on` returns an `HttpServer` for a WSGI application, `serve_health` one for the health of a process.
Processes:
    `chosen_url` (the URL of Redis that a program or its environment names), `URL_VARIABLE` (the name of the environment
    variable), `zookeeper_access` (login and certificates by options and environment), `read_secret` (a password in a
    file), `run_reloading` (restart at a change of a file), `Supervisor` (several processes), `end_with_parent` (in a
    process of one of them), `until_signal` (an event that SIGTERM and SIGINT set), `cluster_up`, `cluster_down` and
    `cluster_status` (a Redis Cluster with workers on this machine).
"""

from rmq._admin.figures import TOTALS
from rmq._admin.history import minute_of, sum_of
from rmq._admin.messages import AnyPlace
from rmq._broker.keys import sample_commands
from rmq._listening.handler_invoker import InlineRunner
from rmq._listening.listener import HandlerT, Listener, listener_decorator, scheduled_decorator, topics_in
from rmq._model.display import counted, safe_lines, shown, span
from rmq._model.entries import check_group, id_key
from rmq._model.handlers import check_async
from rmq._model.messages import Message, Payload
from rmq._model.records import read_context, written_context
from rmq._model.times import (
    Duration,
    duration_ms,
    instant_ms,
    moment_at,
    monotonic_s,
    number_ms,
    typed_duration_ms,
    typed_instant_ms,
)
from rmq._model.topics import checked_slots
from rmq._model.typed import PayloadT
from rmq._ownership.values import zookeeper_access
from rmq._processes.http_server import HttpServer, allows_host, is_loopback, network_of, serve_health, serve_on
from rmq._processes.local_cluster import down as cluster_down
from rmq._processes.local_cluster import status as cluster_status
from rmq._processes.local_cluster import up as cluster_up
from rmq._processes.signals import until_signal
from rmq._processes.supervisor import Supervisor, end_with_parent, run_reloading
from rmq._registry.registry import differences
from rmq._schedules.schedule import RECURRING
from rmq._schedules.schedules import ScheduleRunner
from rmq._servers.server_check import warnings_about
from rmq._servers.urls import URL_VARIABLE, chosen_url, read_secret
from rmq._transport.connections import Connections
from rmq.client import RmqClient

# fmt: off
__all__ = [
    "RECURRING", "TOTALS", "URL_VARIABLE", "AnyPlace", "Duration", "HandlerT", "HttpServer",
    "InlineRunner", "Message", "Payload", "PayloadT", "Supervisor", "allows_host", "check_async", "check_group",
    "checked_slots", "chosen_url", "cluster_down", "cluster_status", "cluster_up", "connections_of", "counted",
    "differences", "duration_ms", "end_with_parent", "id_key", "inline_runner", "instant_ms", "is_loopback",
    "listener_decorator", "minute_of", "moment_at", "monotonic_s", "network_of", "number_ms",
    "read_context", "read_secret", "run_reloading", "safe_lines", "sample_commands", "scheduled_decorator",
    "serve_health", "serve_on", "shown", "span", "sum_of", "topics_in", "typed_duration_ms", "typed_instant_ms",
    "until_signal", "warnings_about", "written_context", "zookeeper_access",
]
# fmt: on


def connections_of(client: RmqClient) -> Connections:
    """Return the connections of a client, to its servers. They close with the client."""
    return client._connections  # pyright: ignore[reportPrivateUsage]


def inline_runner(client: RmqClient, listener: Listener | None, errors: list[BaseException]) -> InlineRunner:
    """Return a runner that handles messages in the caller's thread, for tests. The caller closes it.

    Args:
        client: The client; its observers see what is handled.
        listener: Its listener; `None` for the messages that run schedules.
        errors: Errors of the handler are appended to it.
    """
    known, connections = client._known, client._connections  # pyright: ignore[reportPrivateUsage]
    observers, added = client.observers, listener
    if added is None:
        handler = ScheduleRunner(connections, known, observers)
        observers, added = handler.watching, Listener(RECURRING, handler)
    return InlineRunner(connections, known.registered(added.topic), observers, added, errors)
