"""The client: one object that gives out producers, consumers and views, and runs listeners."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Self, TypeVar

from rmq import view_calls
from rmq.adaptive import Adaptive
from rmq.adoption import Adoption, adopt
from rmq.blocking import THREADS, Blocking
from rmq.census import Census
from rmq.clock import monotonic_s
from rmq.connections import Connections
from rmq.consumer import Consumer
from rmq.control import Control
from rmq.coordination import Coordinator
from rmq.dead import DeadLetters
from rmq.delivery import Delivery
from rmq.durability import DurabilityLevel, parse_durability
from rmq.durations import Duration, Instant
from rmq.embedded import EmbeddedServer
from rmq.errors import CoordinationError, InvalidValueError, RmqError
from rmq.findings import ServerMemory, WorkerInfo
from rmq.history import History, Recorder
from rmq.inspection import Inspection
from rmq.messages import Payload
from rmq.observing import Observers
from rmq.producer import Producer
from rmq.registry import Registry
from rmq.results import ControlResult
from rmq.runtime import Coordination, ListenerRuntime
from rmq.stream_consumer import join_group
from rmq.stream_topic import StreamTopic
from rmq.stream_values import check_group
from rmq.topics import Topic, TopicType
from rmq.turns import Turns
from rmq.urls import Topology, parse_url
from rmq.worker import Handler, Listener

log = logging.getLogger("rmq.client")
HandlerT = TypeVar("HandlerT", bound=Handler)

DRAIN_S = 30.0
"""How long a stop waits for running handlers."""


class RmqClient:
    """A connection to RMQ. Thread-safe; make it in the process that uses it. Use it as a context manager, or close it.

    Args:
        url: `redis://`, `rediss://`, `unix://`, `redis+sentinel://host1,host2/service`,
            `redis+cluster://host1,host2`, `embedded://` (a temporary Redis of our own) or
            `embedded:///folder` (kept there). By default `RMQ_URL` from the environment, else `embedded://`.
        zookeeper: `host:port,host:port`, or a `Coordinator` with options, which serves one start. Listeners then own
            slots: each slot belongs to one thread of one worker in the whole cluster. Without, all processes share
            all slots.
        durability: When a send is accepted: `memory`, the master has it; `replicated`, so many replicas have it, too;
            `fsync`, it is on disk (Redis 7.2 with AOF). What is not so safe in half of `timeout_s` ends in
            `DurabilityError`. `rmq.durability` tells what each level can lose.
        replicas: How many replicas have to confirm; by default 1 for `replicated`, 0 for `fsync`.
        timeout_s: How long to wait for a connection, and for a reply.
        deadline_s: How long to repeat what may be repeated before giving up with `RedisUnavailableError`.

    Raises:
        InvalidUrlError: The URL cannot be used.
        EmbeddedServerError: The embedded Redis does not start.
        InvalidValueError: `durability` and `replicas` do not go together.
        UnsafeRedisError: Redis can't do what `durability` promises.
    """

    _blocking: Blocking = THREADS
    _runtime_of = ListenerRuntime

    def __init__(
        self,
        url: str | None = None,
        *,
        zookeeper: str | Coordinator | None = None,
        durability: str = "memory",
        replicas: int | None = None,
        timeout_s: float = 5.0,
        deadline_s: float = 15.0,
    ) -> None:
        parsed = parse_url(url)
        level = parse_durability(durability, replicas)
        self._server: EmbeddedServer | None = None
        if parsed.topology is Topology.EMBEDDED:
            self._server = self._blocking.call(EmbeddedServer.start, parsed.folder)
            parsed = parse_url(self._server.url)
        self.url = parsed.url
        """A URL under which other processes on this machine reach the same Redis."""
        self.shown_url = parsed.shown
        """The same without its password, for messages and logs."""
        self._connections = Connections(
            parsed, timeout_s=timeout_s, deadline_s=deadline_s, durability=level, blocking=self._blocking
        )
        self._registry = Registry(self._connections)
        self._topics: dict[Topic, Topic] = {}
        self._listeners: list[Listener] = []
        self._runtimes: list[ListenerRuntime] = []
        self.observers = Observers()
        """Who watches sends and handlers; producers, and listeners that start, made after it was added, tell them."""
        self._zookeeper = zookeeper
        self._coordination: Coordination | None = None
        self._recorder: Recorder | None = None
        self._census: Census | None = None
        self._pid = os.getpid()
        if level.level is DurabilityLevel.FSYNC:
            self._check()  # not every server can

    def producer(self, topic: Topic) -> Producer:
        """Return a producer; registers the topic at first use.

        Raises:
            TopicMismatchError: The topic is registered with another type or number of slots.
        """
        return Producer(self._connections, self._registered(topic), self.observers)

    def consumer(
        self,
        topic: Topic,
        slots: Iterable[int] | None = None,
        *,
        group: str | None = None,
        name: str | None = None,
        start: str = "new",
    ) -> Consumer:
        """Return a consumer of all slots, or of the given ones; registers the topic at first use.

        Args:
            topic: What to consume.
            slots: Only these slots; all by default.
            group: Stream topics, where it is needed: the group to consume for. Its deliveries are `StreamDelivery`.
            name: Stream topics: name of this consumer; one that nobody else has by default. One that comes back under
                its old name gets what it held when its lease ends, like any other.
            start: Stream topics: where the group begins if it is new: `new`, `all`, or after an id.

        Raises:
            TopicMismatchError: The topic is registered with another type or number of slots.
            InvalidValueError: A slot that the topic does not have.
            CoordinationError: This client has a ZooKeeper: only listeners take part in ownership.
        """
        if self._zookeeper is not None:
            raise CoordinationError(
                "with ZooKeeper, slots are owned, and only listeners take part in that; use client.listener",
                topic=topic.name,
            )
        registered = self._registered(topic)
        check_group(registered, group, start)
        if group is None:
            return Consumer(self._connections, registered, slots)
        wanted = None if slots is None else tuple(slots)
        source = join_group(self._connections, registered, group, start, name, wanted)
        return Consumer(self._connections, registered, wanted, source)

    def listener(
        self,
        topic: Topic,
        *,
        batch: int | None = None,
        threads: int = 1,
        on_lost: Callable[[Delivery], None] | None = None,
        group: str | None = None,
        start: str = "new",
        adaptive: Adaptive | None = None,
        weight: float = 1.0,
    ) -> Callable[[HandlerT], HandlerT]:
        """Decorate a handler: it runs after `start` or `run`. Return means ack, an exception means nack.

        Args:
            topic: What to consume.
            batch: Hand over a list of up to so many deliveries, 1 to 10,000. What the handler has neither acked
                nor nacked by itself is acked when it returns, and nacked when it raises.
            threads: How many handlers run in parallel, 1 to 1,000.
            on_lost: Called from another thread with a delivery whose lease was lost while it was held.
            group: Stream topics, where it is needed: the group to consume for. Its deliveries are `StreamDelivery`.
            start: Stream topics: where the group begins if it is new: `new`, `all`, or after an id.
            adaptive: Find how many handlers run in parallel, up to `threads`, from how long they take and how many
                fail: a slow or failing downstream is relieved within seconds. See `rmq.Adaptive`.
            weight: Its part of the handlers where the listeners share them, more than 0: see `handlers` of `start`.

        Raises:
            InvalidValueError: `batch`, `threads` or `weight` out of range.

        Guarantee: leases are renewed while a handler runs. A message that was not begun within its lease is not
        begun at all.
        """
        Listener(topic, _nothing, batch, threads, None, group, start, adaptive, weight)

        def decorate(handler: HandlerT) -> HandlerT:
            self.add(Listener(topic, handler, batch, threads, on_lost, group, start, adaptive, weight))
            return handler

        return decorate

    def add(self, *listeners: Listener) -> None:
        """Add listeners that were made elsewhere: `client.add(*rmq.scan("my_package"))`. They run as decorated ones do.

        Raises:
            RmqError: The listeners of this client are running already.
        """
        if self._runtimes:
            raise RmqError("the listeners of this client are running already; add all of them before")
        self._listeners += listeners

    def start(self, threads: int | None = None, handlers: int | None = None) -> None:
        """Start all listeners in threads of their own.

        Args:
            threads: How many threads each listener gets, 1 to 1,000; `None` for as many as it says itself.
            handlers: How many handlers run in parallel over all listeners, 1 to 10,000, shared by their weights; of
                each listener one can always begin, if there are as many. `None` for as many as there are threads.

        Raises:
            InvalidValueError: `threads` or `handlers` out of range.
            RmqError: Started before, no listener, or a topic that does not fit its registration.
            CoordinationError: ZooKeeper does not answer.
        """
        if self._runtimes:
            raise RmqError("the listeners of this client are running already")
        if not self._listeners:
            raise RmqError("this client has no listener; decorate a handler with @client.listener(topic)")
        zookeeper = self._zookeeper
        coordinator = Coordinator(zookeeper) if isinstance(zookeeper, str) else zookeeper
        listeners = [
            replace(each, topic=self._registered(each.topic), threads=each.threads if threads is None else threads)
            for each in self._listeners
        ]
        turns = Turns(self._connections.blocking, handlers)
        runtimes = [self._runtime_of(self._connections, listener, coordinator) for listener in listeners]
        for runtime in runtimes:
            runtime.take_turns(turns)
            runtime.observe(self.observers)
        if coordinator is not None:
            coordination = Coordination(coordinator, runtimes, self._blocking)
            coordination.start()
            self._coordination = coordination
        self._runtimes = runtimes
        for runtime in runtimes:
            runtime.start()
        self._census = Census(self._connections, runtimes, coordinator is not None)
        self._census.start()
        self.record_history()

    def stop(self, drain_s: float = DRAIN_S) -> list[Delivery]:
        """Stop all listeners: no new claims, what was not begun goes back at once, running handlers may finish.

        Args:
            drain_s: How long to wait for running handlers, in seconds.

        Returns:
            Deliveries whose handlers still run: they stay claimed until their lease ends.
        """
        until_s = monotonic_s() + drain_s
        runtimes, self._runtimes = self._runtimes, []
        if self._recorder is not None:
            self._recorder.stop()
            self._recorder = None
        for runtime in runtimes:
            runtime.request_stop()
        if self._coordination is not None:
            self._coordination.leave()
        left = [delivery for runtime in runtimes for delivery in runtime.join(until_s)]
        if self._census is not None:
            self._census.stop()
            self._census = None
        if self._coordination is not None:
            self._coordination.stop()
            self._coordination = None
        if left:
            log.warning("%d deliveries were not finished within %g s; their leases settle them", len(left), drain_s)
        return left

    def run(self, drain_s: float = DRAIN_S, threads: int | None = None, handlers: int | None = None) -> list[Delivery]:
        """Run all listeners until SIGTERM or SIGINT, then stop them and close. A second signal ends at once.

        Args:
            drain_s: How long to wait for running handlers, in seconds.
            threads: As for `start`.
            handlers: As for `start`.

        Returns:
            Deliveries whose handlers did not end in time: they stay claimed until their lease ends.

        Raises:
            RmqError: Not called in the main thread; and as `start`.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RmqError("run() handles signals and so needs the main thread; use start() and stop() elsewhere")
        ended = threading.Event()
        signals = (signal.SIGTERM, signal.SIGINT)

        def end(number: int, frame: FrameType | None) -> None:
            del frame
            signal.signal(number, signal.SIG_DFL)
            ended.set()

        previous = {number: signal.signal(number, end) for number in signals}
        try:
            self.start(threads, handlers)
            while not ended.wait(1.0):
                pass
            return self.stop(drain_s)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self.close()

    def inspect(self, topic: Topic | str) -> Inspection:
        """Return a read-only view of a topic.

        Raises:
            UnknownTopicError: A name that is not registered.
            InvalidValueError: A stream topic: see `stream`.
        """
        return Inspection(self._connections, self._merging(topic, "client.stream(topic)"))

    def stream(self, topic: Topic | str) -> StreamTopic:
        """Return a stream topic to read, to follow and to look after.

        Raises:
            InvalidValueError: The topic is of another type.
            UnknownTopicError: A name that is not registered.
        """
        return StreamTopic(self._connections, self._resolved(topic))

    def dead(self, topic: Topic | str, actor: str | None = None) -> DeadLetters:
        """Return a topic's dead letters; `actor` is who redrives and purges, for the audit.

        Raises:
            UnknownTopicError: A name that is not registered.
            InvalidValueError: A stream topic: each group has its own, see `stream`.
        """
        return DeadLetters(self._connections, self._merging(topic, "client.stream(topic).dead(group)"), actor)

    def control(self, topic: Topic | str, actor: str | None = None) -> Control:
        """Return what steers a topic: by content, as a whole; see `rmq.control.Control`.

        Args:
            topic: What to steer.
            actor: Who does it, for the audit; `user@host` by default.

        Raises:
            UnknownTopicError: A name that is not registered.
            InvalidValueError: A stream topic: see `stream`; or `actor` is empty or too long.
        """
        return Control(self._connections, self._merging(topic, "client.stream(topic)"), actor)

    def workers(self) -> list[WorkerInfo]:
        """Return the processes with running listeners, by name, as they last reported; at most 1,000."""
        return self._connections.run(view_calls.workers())

    def cancel(self, topic: Topic | str, content: Payload, *, slot_basis: Payload | None = None) -> ControlResult:
        """Take a message out of the backlog; see `rmq.control.Control.cancel`."""
        resolved = self._merging(topic, "client.stream(topic).delete(id)")
        return Control(self._connections, resolved).cancel(content, slot_basis)

    def promote(self, topic: Topic | str, content: Payload, *, slot_basis: Payload | None = None) -> ControlResult:
        """Make a message due now; see `rmq.control.Control.promote`."""
        return self.control(topic).promote(content, slot_basis)

    def reprioritise(
        self, topic: Topic | str, content: Payload, priority: int, *, slot_basis: Payload | None = None
    ) -> ControlResult:
        """Give a message another priority; see `rmq.control.Control.reprioritise`."""
        return self.control(topic).reprioritise(content, priority, slot_basis)

    def pause(self, topic: Topic | str, slots: Sequence[int] | None = None) -> int:
        """Let nobody claim from a topic, or from some of its slots; see `rmq.control.Control.pause`."""
        return self.control(topic).pause(slots)

    def resume(self, topic: Topic | str, slots: Sequence[int] | None = None) -> int:
        """End a pause; return how many slots were paused."""
        return self.control(topic).resume(slots)

    def reschedule(
        self,
        topic: Topic | str,
        content: Payload,
        *,
        due_in: Duration | None = None,
        fixed_time: Instant | None = None,
        priority: int | None = None,
        slot_basis: Payload | None = None,
    ) -> ControlResult:
        """Give a message another due time or priority; see `rmq.control.Control.reschedule`."""
        resolved = self._merging(topic, "a delay when nacking: entries have no due time")
        return Control(self._connections, resolved).reschedule(
            content, due_in=due_in, fixed_time=fixed_time, priority=priority, slot_basis=slot_basis
        )

    def topics(self) -> list[Topic]:
        """Return the definitions of all registered topics, by name."""
        return [self._registry.get(name) for name in self._registry.names()]

    def topic(self, name: str) -> Topic:
        """Return the registered definition of a topic.

        Raises:
            UnknownTopicError: Not registered.
        """
        return self._registry.get(name)

    def change_topic(self, topic: Topic) -> Topic:
        """Replace the registered settings of a topic on purpose; running processes keep theirs until they restart.

        Raises:
            UnknownTopicError: Not registered.
            TopicMismatchError: Another type or number of slots.
        """
        changed = self._registry.change(topic)
        self._topics.clear()
        return changed

    def adopt(self, topic: Topic | str, from_ensemble: str | None = None) -> Adoption:
        """Move a topic's slots over to this client's ZooKeeper ensemble, or away from ZooKeeper where it has none.

        For the day when an ensemble was rebuilt: its epochs begin anew, so slots refuse it until this says otherwise.
        Stop the workers of the old one first, or know that it is gone: it can't take part in this.

        Args:
            topic: What to move.
            from_ensemble: Identity of the ensemble that the slots are to be taken from; `None` changes nothing and
                shows whose they are.

        Returns:
            Whose the slots were, and how many have moved.

        Raises:
            UnknownTopicError: A name that is not registered.
            EnsembleMismatchError: Some slots belong to a third ensemble; nothing was moved.
            CoordinationError: ZooKeeper does not answer.

        Guarantee: safe to repeat, also after it broke off half-way. Messages are not touched; those in flight come back
            when their leases end.
        """
        resolved = self._resolved(topic)
        return adopt(self._connections, resolved, from_ensemble, self._ensemble())

    def history(self) -> History:
        """Return the last day of all topics, minute by minute."""
        return History(self._connections)

    def record_history(self) -> None:
        """Take part in recording `history` until `stop` or `close`; running listeners do so by themselves."""
        if self._recorder is None:
            self._recorder = Recorder(self._connections)
            self._recorder.start()

    def server_memory(self) -> dict[str, ServerMemory]:
        """Return what each Redis server that holds slots uses, by its address."""
        found: dict[str, bytes] = self._connections.ask_masters("INFO", "memory")
        return {address: ServerMemory.from_info(info) for address, info in found.items()}

    def close(self) -> None:
        """Stop listeners that still run, close all connections, and end a temporary embedded Redis."""
        if os.getpid() != self._pid:
            return
        if self._runtimes or self._recorder is not None:
            self.stop()
        self._connections.close()
        if self._server is not None:
            server, self._server = self._server, None
            self._blocking.call(server.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        try:
            self._connections.check()
        except BaseException:
            self.close()
            raise

    def registered(self, topic: Topic) -> tuple[Connections, Topic]:
        """Register a topic at first use; return where it is and the definition that rules. For what builds on topics.

        Raises:
            TopicMismatchError: The topic is registered with another type or number of slots.
        """
        return self._connections, self._registered(topic)

    def _registered(self, topic: Topic) -> Topic:
        if not isinstance(topic, Topic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"{topic!r} is not a Topic")
        registered = self._topics.get(topic)
        if registered is None:
            registered = self._topics[topic] = self._registry.register(topic)
        return registered

    def _ensemble(self) -> str:
        """Return the identity of this client's ensemble; empty without ZooKeeper."""
        if self._zookeeper is None:
            return ""
        if self._coordination is not None:
            return self._coordination.ensemble
        hosts = self._zookeeper
        return self._blocking.call(_ensemble_of, Coordinator(hosts) if isinstance(hosts, str) else hosts)

    def _merging(self, topic: Topic | str, instead: str) -> Topic:
        """Return a topic that is no stream: those have no contents to go by."""
        resolved = self._resolved(topic)
        if resolved.type is TopicType.STREAM:
            raise InvalidValueError(f"topic {resolved.name} is STREAM; use {instead}", topic=resolved.name)
        return resolved

    def _resolved(self, topic: Topic | str) -> Topic:
        return self._registry.get(topic) if isinstance(topic, str) else self._registered(topic)


def _ensemble_of(coordinator: Coordinator) -> str:
    with coordinator:
        return coordinator.ensemble or ""


def _nothing(delivery: object) -> None:
    """Stand in for a handler while options are checked."""
    del delivery
