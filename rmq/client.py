"""The client: one object that gives out producers, consumers and views, and runs listeners."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Self, Unpack

from rmq._admin.adopt import Adoption, adopt, ensemble_of, highest_epochs
from rmq._admin.control import Control
from rmq._admin.dead_letters import DeadLetters
from rmq._admin.history import History, Recording
from rmq._admin.inspection import Inspection, read_workers
from rmq._admin.stream_topic import StreamTopic
from rmq._broker.registry import KnownTopics
from rmq._broker.stream_broker import join_group
from rmq._claiming.consumer import Consumer
from rmq._io.backend import THREADS, Runtime
from rmq._listening.listener import HandlerDecorator, Listener, ListenerOptions, decorator
from rmq._listening.listener_set import ListenerSet
from rmq._listening.thread_executor import ThreadExecutor
from rmq._model.definitions import Definitions
from rmq._model.deliveries import Delivery
from rmq._model.entries import check_group
from rmq._model.figures import ServerMemory
from rmq._model.observers import Observers
from rmq._model.reports import reporter
from rmq._model.times import check_day, seconds
from rmq._model.topics import Topic
from rmq._model.typed import PayloadT
from rmq._model.workers import WorkerInfo
from rmq._ownership import DRAIN_S, Coordinator
from rmq._processes.embedded import EmbeddedServer
from rmq._processes.frozen_objects import frozen_objects
from rmq._processes.signals import exit_hung, require_main_thread, until_signal
from rmq._sending.producer import Producer
from rmq._transport.connections import Connections
from rmq._transport.durability import DurabilityLevel, parse_durability
from rmq._transport.urls import URL_FORMS, URL_VARIABLE, Topology, parse_url
from rmq.errors import CoordinationError

log = reporter("rmq.client")


class RmqClient:
    """A connection to RMQ. Thread-safe; make it in the process that uses it. Use it as a context manager, or close it.

    Args:
        url: `redis://`, `rediss://`, `unix://`, `redis+sentinel://host1,host2/service`,
            `redis+cluster://host1,host2`, `embedded:///folder` (a Redis of our own that keeps its data there, and
            that all processes with this URL share) or `embedded://` (a temporary one, for this client alone: it ends
            with it, and all messages are gone). By default `RMQ_URL` from the environment; without that
            `embedded://`, and a warning in the log.
        zookeeper: `host:port,host:port`, or a `Coordinator` with options, which serves one start. Listeners then own
            slots: each slot belongs to one thread of one worker in the whole cluster. Without, all processes share
            all slots.
        durability: When a send is accepted: `memory`, the master has it; `replicated`, so many replicas have it, too;
            `fsync`, it is on disk (Redis 7.2 with AOF). What is not so safe in half of `timeout_s` ends in
            `DurabilityError`. Steering (cancel, pause, purge and the like) counts likewise.
            docs/operate/topologies.md says what each level can lose.
        replicas: How many replicas have to confirm; by default 1 for `replicated`, 0 for `fsync`.
        timeout_s: How long to wait for a connection, and for a reply; 1 ms to a day.
        deadline_s: How long to repeat what may be repeated before giving up with `RedisUnavailableError`; up to a day.

    Raises:
        InvalidUrlError: The URL cannot be used, or it or `RMQ_URL` is empty.
        EmbeddedServerError: The embedded Redis does not start.
        InvalidValueError: `durability` and `replicas` do not go together, or a time is out of range.
        UnsafeRedisError: Redis can't do what `durability` promises.

    Examples:
        >>> with RmqClient("embedded://") as rmq:  # a first try; else redis://..., or RMQ_URL
        ...     rmq.producer(Topic("jobs", TopicType.PRIORITY)).send(PriorityMessage("job:1", 5)).new
        1
    """

    _runtime: Runtime = THREADS
    _handlers: type[ThreadExecutor] = ThreadExecutor
    _connect: Callable[..., Connections] = Connections  # tests have scripts with a clock of their own: rmq.testing

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
        self._named = parsed = parse_url(url)
        level = parse_durability(durability, replicas)
        check_day("timeout_s", timeout_s, 0.001)
        check_day("deadline_s", deadline_s, 0.0)
        self._server: EmbeddedServer | None = None
        if not parsed.chosen:
            log.warning(
                "no Redis is named: this client starts a temporary one of its own. No other process can reach it, and "
                "all its messages are gone once this client is closed or its process ends. Set %s, or pass a URL: %s, "
                "without this warning",
                URL_VARIABLE,
                URL_FORMS,
            )
        if parsed.topology is Topology.EMBEDDED:
            self._server = self._runtime.call(EmbeddedServer.start, parsed.folder)
            parsed = parse_url(self._server.url)
        self.url = parsed.url
        """A URL under which other processes on this machine reach the same Redis."""
        self.shown_url = parsed.shown
        """The same without its password, for messages and logs."""
        self._connections = self._connect(
            parsed, timeout_s=timeout_s, deadline_s=deadline_s, durability=level, runtime=self._runtime
        )
        self._known = KnownTopics(self._connections)
        self.observers = Observers()
        """Who watches sends and handlers; producers, and listeners that start, made after it was added, tell them."""
        self._listeners = ListenerSet(self._connections, self._known, self.observers, self._handlers)
        self._zookeeper = zookeeper
        self._recording = Recording(self._connections)
        self._pid = os.getpid()
        if level.level is DurabilityLevel.FSYNC:
            try:
                self._connections.check()  # not every server can
            except BaseException:
                self.close()
                raise

    def producer(self, topic: Topic) -> Producer:
        """Return a producer; registers the topic at first use.

        Raises:
            TopicMismatchError: The topic is registered with another type or number of slots.
        """
        return Producer(self._connections, self._known.registered(topic), self.observers)

    def consumer(
        self,
        topic: Topic[PayloadT],
        slots: Iterable[int] | None = None,
        *,
        group: str | None = None,
        name: str | None = None,
        start: str = "new",
        resume_as: str | None = None,
    ) -> Consumer[PayloadT]:
        """Return a consumer of all slots, or of the given ones; registers the topic at first use.

        Args:
            topic: What to consume.
            slots: Only these slots; all by default.
            group: Stream topics, where it is needed: the group to consume for. Its deliveries are `StreamDelivery`.
            name: Stream topics: name of this consumer; one that nobody else has by default. One that comes back under
                its old name gets what it held when its lease ends, like any other, unless it resumes.
            start: Stream topics: where the group begins if it is new: `new`, `all`, or after an id.
            resume_as: Stream topics: name of this consumer, instead of `name`, where you know that the process which
                had it before is gone. What that one held on these slots comes again at once, not when its leases end,
                and counts as a delivery whose lease has run out.

        Raises:
            TopicMismatchError: The topic is registered with another type or number of slots.
            InvalidValueError: A slot that the topic does not have, or a name that breaks its rule.
            CoordinationError: This client has a ZooKeeper: only listeners take part in ownership.
        """
        if self._zookeeper is not None:
            raise CoordinationError(
                "a client with ZooKeeper has no consumers, since only listeners own slots; use client.listener",
                topic=topic.name,
            )
        registered = self._known.registered(topic)
        check_group(registered, group, start, resume_as)
        slot_numbers, source = None if slots is None else tuple(slots), None
        if group is not None:
            source = join_group(self._connections, registered, group, start, name, slot_numbers, resume_as)
        made = Consumer(self._connections, registered, slot_numbers, source)
        self._connections.close_with_us(made)
        return made

    def listener(self, topic: Topic[PayloadT], **options: Unpack[ListenerOptions]) -> HandlerDecorator[PayloadT]:
        """Decorate a handler: it runs after `start` or `run`. Return means ack, an exception means nack.

        Args:
            topic: What to consume. Where it has a payload class, handlers get what their annotations ask for.
            batch: Hand over a list of up to so many deliveries, 1 to 10,000; by default one delivery, and no list. What
                the handler has not settled by itself is acked when it returns, and nacked when it raises.
            columns: With `batch`, not on streams: hand over a `DeliveryColumns`, without an object for each row.
            threads: How many handlers run in parallel, 1 to 1,000; 1 by default.
            on_lost: Called with each delivery whose lease was lost while it was held, in a thread of its own.
            group: Stream topics, where it is needed: the group to consume for. Its deliveries are `StreamDelivery`.
            start: Stream topics: where the group begins if it is new: `new` (the default), `all`, or after an id.
            adaptive: Find how many handlers run in parallel, up to `threads`, from how long they take and how many
                fail: a slow or failing downstream is relieved within seconds. See `rmq.Adaptive`.
            weight: Its part of the handlers where the listeners share them, more than 0, by default 1: see `handlers`
                of `start`.
            timeout: How long a call of the handler may run: a `timedelta` or a text such as "5m", 1 ms or more; `None`
                for any time. No thread can be ended. So a call that takes longer is given up: its leases are not
                renewed any more, `on_lost` is called, and what comes of it counts no more. See
                `run(exit_when_hung=True)`.
            resume_as: Stream topics: the name under which an earlier process ran that you know is gone, and this one
                runs. What that one held comes again at once when this listener starts, not when its leases end.
            shared: Whether this client may have another listener of the topic, of a stream of the same group, that says
                so, too: each message goes to one of them, by chance.

        Raises:
            InvalidValueError: `batch`, `threads` or `weight` out of range; the handler is an async or a generator
                function, which a thread can't carry out, or asks for arguments that it cannot get; or the client has a
                listener of these messages already. What returns unfinished work at run time is nacked.

        Guarantee: leases are renewed while a handler runs. A message that was not begun within its lease is not
        begun at all.
        """
        return decorator(self.add, topic, **options)

    def add(self, *listeners: Listener) -> None:
        """Add listeners that were made elsewhere: `client.add(*rmq.scan("my_package"))`. They run as decorated ones do.

        Raises:
            RmqError: The listeners of this client are running already.
            InvalidValueError: A handler is an async or a generator function, which a thread can't carry out.
        """
        self._listeners.add(*listeners)

    def start(
        self, threads: int | None = None, handlers: int | None = None, drain_s: float = DRAIN_S, idle: str = "normal"
    ) -> None:
        """Start all listeners in threads of their own.

        Args:
            threads: How many threads each listener gets, 1 to 1,000; `None` for as many as it says itself.
            handlers: How many handlers run in parallel over all listeners, 1 to 10,000, shared by their weights; of
                each listener one can always begin, if there are as many. `None` for as many as there are threads.
            drain_s: With ZooKeeper: how long, in seconds, a slot that moves to another worker waits for its running
                handler. A `Coordinator`'s own `drain_timeout_s` goes before it.
            idle: `normal` looks for messages each second, beside wake hints. `economy` costs fewer than ten commands a
                minute while nothing happens, as long as hints are proven to arrive: see docs/operate/economy.md.

        Raises:
            InvalidValueError: `threads` or `handlers` out of range, or another `idle`.
            RmqError: Started before, no listener, or a topic that does not fit its registration.
            CoordinationError: ZooKeeper does not answer.
        """
        self._listeners.start(self._zookeeper, threads, handlers, drain_s, idle)
        self.record_history()

    def stop(self, drain_s: float = DRAIN_S) -> list[Delivery]:
        """Stop all listeners: no new claims, what was not begun goes back at once, running handlers may finish.

        Args:
            drain_s: How long to wait for running handlers, in seconds. With ZooKeeper nobody else gets the slot of one
                for so long.

        Returns:
            Deliveries whose handlers still run: they stay claimed until their lease ends.

        Guarantee: it returns about 2 s after `drain_s` at the latest, whether Redis answers or not. Outcomes that Redis
        has not taken `deadline_s` after the end of the last handler are left to their leases.
        """
        drain_s = seconds(drain_s, "drain_s")
        self._recording.stop()
        return self._listeners.stop(drain_s)

    def run(
        self,
        drain_s: float = DRAIN_S,
        threads: int | None = None,
        handlers: int | None = None,
        idle: str = "normal",
        *,
        exit_when_hung: bool = False,
    ) -> list[Delivery]:
        """Run all listeners until SIGTERM or SIGINT, then stop them and close. A second signal ends at once.

        Takes what `start` takes, returns what `stop` returns, and raises what `start` raises; an `RmqError` outside of
        the main thread. What is loaded by now is left out of garbage collections until it ends: see `gc.freeze`.

        Args:
            drain_s: As for `start`.
            threads: As for `start`.
            handlers: As for `start`.
            idle: As for `start`.
            exit_when_hung: Once a handler has run for longer than the `timeout` of its listener, let the others finish
                as at SIGTERM, and end the process with exit code 75: what runs it starts it anew.
        """
        require_main_thread("run()")
        with frozen_objects(), self, until_signal(signal.SIG_DFL) as ended:
            self.start(threads, handlers, drain_s, idle)
            hung = False
            while not (hung or ended.wait(1.0)):
                hung = exit_when_hung and self._listeners.hang
            left = self.stop(drain_s)
        if hung:
            exit_hung()
        return left

    def inspect(self, topic: Topic | str) -> Inspection:
        """Return a read-only view of a topic.

        Raises:
            UnknownTopicError: A name that is not registered.
            InvalidValueError: A stream topic: see `stream`.
        """
        return Inspection(self._connections, self._known.merging(topic, "client.stream(topic)"))

    def stream(self, topic: Topic | str) -> StreamTopic:
        """Return a stream topic to read, to follow and to look after.

        Raises:
            InvalidValueError: The topic is of another type.
            UnknownTopicError: A name that is not registered.
        """
        return StreamTopic(self._connections, self._known.resolved(topic))

    def dead(self, topic: Topic | str, actor: str | None = None) -> DeadLetters:
        """Return a topic's dead letters; `actor` is who redrives and purges, for the audit, by default `user@host`.

        Raises:
            UnknownTopicError: A name that is not registered.
            InvalidValueError: A stream topic: each group has its own, see `stream`.
        """
        return DeadLetters(self._connections, self._known.merging(topic, "client.stream(topic).dead(group)"), actor)

    def control(self, topic: Topic | str, actor: str | None = None) -> Control:
        """Return what steers a topic; `actor` is who does it, for the audit, by default `user@host`.

        Raises:
            UnknownTopicError: A name that is not registered.
            InvalidValueError: A stream topic: see `stream`; or `actor` is empty or too long.
        """
        return Control(self._connections, self._known.merging(topic, "client.stream(topic)"), actor)

    def workers(self) -> list[WorkerInfo]:
        """Return the processes with running listeners, by name, as they last reported; at most 1,000."""
        return read_workers(self._connections)

    def topics(self) -> list[Topic]:
        """Return the registered definitions that this version of RMQ can read, by name; see `definitions`."""
        return list(self._known.definitions().topics)

    def definitions(self) -> Definitions:
        """Return the definitions of all registered topics, and those that this version of RMQ can't read."""
        return self._known.definitions()

    def topic(self, name: str) -> Topic:
        """Return the registered definition of a topic. Raises `UnknownTopicError` where there is none.

        Raises `UnreadableTopicError` for garbage, and for a definition for newer versions of RMQ only.
        """
        return self._known.named(name)

    def change_topic(self, topic: Topic) -> Topic:
        """Replace registered settings of a topic on purpose; running processes keep theirs until they restart.

        Args:
            topic: What `Topic.changed` has returned: only the settings that it has changed are put. Of any other
                definition all settings are.

        Returns:
            The definition that is registered now.

        Raises:
            UnknownTopicError: Not registered; else as `topic`.
            TopicMismatchError: Another type or number of slots.
            DurabilityError: It is changed, but not as safe as `durability` asks. Changing it again is safe.

        Guarantee: of two clients that change different settings at once both win; of the same setting the last one.
        """
        return self._known.change(topic)

    def update_topic(self, name: str, change: Callable[[Topic], Topic]) -> Topic:
        """Change a registered definition by what it is; else as `change_topic`.

        `change` makes the new definition of the registered one, again where another client was faster: nothing else.
        """
        return self._known.update(name, change)

    def adopt(self, topic: Topic | str, from_ensemble: str | None = None) -> Adoption:
        """Move a topic's slots over to this client's ZooKeeper ensemble, or away from ZooKeeper where it has none.

        Slots refuse an ensemble that was rebuilt, since its epochs begin anew, until this says otherwise. One that was
        restored from a backup gets a new identity here, if no worker has given it one. Stop the workers of the old one
        first: it can't take part in this.

        Args:
            topic: What to move.
            from_ensemble: Identity of the ensemble whose slots are moved; `None` shows whose they are, and moves none.

        Raises:
            EnsembleMismatchError: Some slots belong to a third ensemble; nothing was moved.
            CoordinationError: ZooKeeper does not answer.

        Guarantee: safe to repeat, also after it broke off half-way. Messages are not touched; those in flight come back
            when their leases end.
        """
        resolved = self._known.resolved(topic)
        marks = {} if from_ensemble is None else highest_epochs(self._connections, resolved)
        ours = self._listeners.ensemble or ensemble_of(self._connections, self._zookeeper, marks)
        return adopt(self._connections, resolved, from_ensemble, ours)

    def history(self) -> History:
        """Return the last day of all topics, minute by minute."""
        return History(self._connections)

    def record_history(self) -> None:
        """Take part in recording `history` until `stop` or `close`; running listeners do so by themselves."""
        self._recording.start(self._listeners.finished if self._listeners.pace.economical else None)

    def server_memory(self) -> dict[str, ServerMemory]:
        """Return what each Redis server that holds slots uses, by its address."""
        replies = self._connections.ask_masters("INFO", "memory").items()
        return {address: ServerMemory.from_info(info) for address, info in replies}

    def close(self) -> None:
        """Stop listeners that still run, close consumers and connections, and end a temporary embedded Redis."""
        if os.getpid() != self._pid:
            return
        with ExitStack() as steps:  # the later ones whatever an earlier one raises; last in, first out
            if self._server is not None:
                server, self._server = self._server, None
                steps.callback(self._runtime.call, server.close)
            steps.callback(self._connections.close)
            if self._listeners.runners or self._recording.runs:
                self.stop()

    def _registered(self, topic: Topic) -> tuple[Connections, Topic]:
        """Register a topic at first use; return where it is and the definition that rules. For `DelayedQueue`."""
        return self._connections, self._known.registered(topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
