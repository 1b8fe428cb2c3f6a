"""The client: creates producers, consumers and views of topics, and runs listeners."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Self, Unpack

from rmq._admin.adopt import Adoption, adopt, ensemble_of, highest_epochs
from rmq._admin.control import Control
from rmq._admin.dead_letters import DeadLetters
from rmq._admin.deletion import DeletedTopic, TopicDeletion
from rmq._admin.figures import ServerMemory
from rmq._admin.history import History, Recording
from rmq._admin.inspection import Inspection, read_workers
from rmq._admin.stream_topic import StreamTopic
from rmq._broker.stream_broker import join_group
from rmq._claiming.consumer import Consumer
from rmq._io.backend import THREADS, Runtime
from rmq._io.observers import Observers
from rmq._io.reports import reporter
from rmq._io.wire import CredentialProvider
from rmq._listening.listener import (
    HandlerDecorator,
    HandlerT,
    Listener,
    ListenerOptions,
    ScheduleOptions,
    listener_decorator,
    scheduled_decorator,
)
from rmq._listening.listener_set import ListenerSet
from rmq._listening.worker import Worker
from rmq._model.deliveries import Delivery
from rmq._model.entries import check_group
from rmq._model.times import check_day, seconds
from rmq._model.topics import Topic
from rmq._model.typed import PayloadT
from rmq._model.workers import Health, WorkerInfo
from rmq._ownership import DRAIN_S, Coordinator, RedisOwners
from rmq._ownership.redis_keeper import owners_from
from rmq._processes.embedded import EmbeddedServer
from rmq._processes.service_manager import ServiceManager
from rmq._processes.signals import exit_hung, frozen_objects, require_main_thread, until_signal
from rmq._registry.known_topics import KnownTopics
from rmq._registry.registry import Definitions
from rmq._schedules.schedules import Schedules, sending_to
from rmq._sending.producer import Producer
from rmq._servers.durability import DurabilityLevel, parse_durability
from rmq._servers.urls import URL_FORMS, URL_VARIABLE, Topology, parse_url
from rmq._transport.connections import Connections
from rmq.errors import ClientClosedError, CoordinationError, InvalidValueError

log = reporter("rmq.client")


class RmqClient:
    """A connection to RMQ. Thread-safe; create it in the process that uses it. Use as a context manager, or close it.

    Args:
        url: `redis://`, `rediss://`, `unix://`, `redis+sentinel://host1,host2/service`,
            `redis+cluster://host1,host2`, `embedded:///folder` (a Redis that RMQ starts, with its data in that folder,
            shared by all processes with this URL) or `embedded://` (a temporary Redis for this client alone: its
            messages are lost when the client closes). The default is `RMQ_URL` from the environment, or the text of
            the file that `RMQ_URL_FILE` names; without both, `embedded://` with a warning in the log.
        zookeeper: `host:port,host:port`, or a `Coordinator` with options, which can be started once. Listeners then
            own slots: each slot belongs to one thread of one worker in the whole cluster. Without `zookeeper` and
            `owners` all processes share all slots.
        owners: `"redis"`, or a `RedisOwners` with options: listeners own slots, as with `zookeeper`, but the owners are
            kept in the Redis of the messages. docs/operate/ownership.md compares the two.
        durability: When a send is accepted: `memory`, once the master has it; `replicated`, once `replicas` replicas
            have it, too; `fsync`, once it is on disk (Redis 7.2 with AOF). If the level is not confirmed within half of
            `timeout_s`, the call raises `DurabilityError`. The same holds for management calls such as cancel, pause
            and purge. docs/operate/topologies.md says what each level can lose.
        replicas: Number of replicas that must confirm; 1 by default for `replicated`, 0 for `fsync`.
        timeout_s: Seconds to wait for a connection, and for a reply; 1 ms to a day.
        deadline_s: Seconds to retry safe calls before raising `RedisUnavailableError`; up to a day.
        credentials: A `redis.CredentialProvider` (of AWS IAM, Microsoft Entra ID, Google Cloud, or your own), which is
            asked for a username and password at each new connection; for data servers, not for Sentinels. An error
            that it raises is treated like a server that cannot be reached.

    Raises:
        InvalidUrlError: The URL cannot be used, or the URL or `RMQ_URL` is empty.
        EmbeddedServerError: The embedded Redis does not start.
        InvalidValueError: `durability` and `replicas`, or `owners` and `zookeeper`, cannot be combined; or a time is
            out of range.
        UnsafeRedisError: Redis cannot provide `durability`.

    Examples:
        >>> with RmqClient("embedded://") as rmq:  # a first try; else redis://..., or RMQ_URL
        ...     rmq.producer(Topic("jobs", TopicType.PRIORITY)).send(PriorityMessage("job:1", 5)).new
        1
    """

    _runtime: Runtime = THREADS
    _worker: type[Worker] = Worker
    _observers: Callable[[], Observers] = Observers
    _connect: Callable[..., Connections] = Connections  # rmq.testing replaces it, to use scripts with a fake clock

    def __init__(
        self,
        url: str | None = None,
        *,
        zookeeper: str | Coordinator | None = None,
        owners: str | RedisOwners | None = None,
        durability: str = "memory",
        replicas: int | None = None,
        timeout_s: float = 5.0,
        deadline_s: float = 15.0,
        credentials: CredentialProvider | None = None,
    ) -> None:
        self._named = parsed = parse_url(url).with_credentials(credentials)
        self._owners = owners_from(zookeeper, owners)
        level = parse_durability(durability, replicas)
        check_day("timeout_s", timeout_s, 0.001)
        check_day("deadline_s", deadline_s, 0.0)
        self._server: EmbeddedServer | None = None
        if not parsed.chosen:
            log.warning(
                "no Redis URL is set: this client starts a temporary Redis. No other process can reach it, and "
                "all its messages are lost when the client is closed or its process ends. To avoid this warning, "
                "set %s, or pass a URL: %s",
                URL_VARIABLE,
                URL_FORMS,
            )
        if parsed.topology is Topology.EMBEDDED:
            self._server = self._runtime.call(EmbeddedServer.start, parsed.folder)
            parsed = parse_url(self._server.url)
        self.url = parsed.url
        """URL with which other processes on this machine can reach the same Redis."""
        self.shown_url = parsed.shown
        """The URL without its password, for messages and logs."""
        self._connections = self._connect(
            parsed, timeout_s=timeout_s, deadline_s=deadline_s, durability=level, runtime=self._runtime
        )
        self._connections.server = self._server  # a producer may outlive the last reference to its client
        self._known = KnownTopics(self._connections)
        self.observers = self._observers()
        """Observers of sends and handlers. Add them before creating producers and starting listeners."""
        self._listeners = ListenerSet(self._connections, self._known, self.observers, self._worker)
        self.schedules = Schedules(self._connections, self._known, self._listeners.look_for_schedules)
        """Messages that are sent again and again, which every process with started listeners runs."""
        self._recording = Recording(self._connections)
        self._pid = os.getpid()
        if level.level is DurabilityLevel.FSYNC:
            try:
                self._connections.check()  # not every server supports WAITAOF
            except BaseException:
                self.close()
                raise

    def producer(self, topic: Topic) -> Producer:
        """Return a producer. The first use of a topic registers it.

        Raises:
            TopicMismatchError: The topic is registered with another type, number of slots or `merge`.
            TopicDeletedError: The topic is being deleted at the moment.
            UnreadableTopicError: The registered definition is damaged or needs a newer version of RMQ.
            MemoryFullError: The topic is not registered yet, and Redis has reached its `maxmemory`.
            DurabilityError: The topic was registered, but `durability` was not confirmed. Repeating the call is safe.
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
        """Return a consumer of all slots or of some. The first use of a topic registers it.

        Args:
            topic: The topic to consume.
            slots: The slots to consume; all by default.
            group: Stream topics, required there: the group to consume for. Its deliveries are `StreamDelivery`.
            name: Stream topics: name of this consumer; a unique one by default. Entries that an earlier consumer of the
                same name held are redelivered when their leases expire, unless you use `resume_as`.
            start: Stream topics: where a new group begins: `new` (the default), `all`, or after an id.
            resume_as: Stream topics: name of this consumer, instead of `name`, if you know that the process which used
                it before is gone. The entries it held in these slots are redelivered at once instead of when their
                leases expire, and count as deliveries whose lease has expired.

        Raises:
            RmqError: As for `producer`; or `TooManyGroupsError`: the topic has the maximum number of groups.
            InvalidValueError: The topic has no such slot, a name or `start` is invalid, `name` and `resume_as` are both
                given, or `group` is missing for a stream topic or given for another one.
            CoordinationError: This client has `owners` or `zookeeper`, so that only listeners can own slots.
        """
        if self._owners is not None:
            raise CoordinationError(
                "a client with owners or zookeeper has no consumers, since only listeners own slots; use "
                "client.listener",
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
        """Decorate a handler, which runs after `start` or `run`. Returning acks the delivery, an exception nacks it.

        Args:
            topic: The topic to consume. With a payload class, handlers get the payloads that their annotations ask for.
            batch: Pass a list of up to `batch` deliveries, 1 to 10,000, instead of a single delivery. Deliveries that
                the handler did not settle itself are acked when it returns and nacked when it raises.
            columns: With `batch`, not on streams: pass a `DeliveryColumns`, without an object for each row.
            threads: Number of handlers that run in parallel, 1 to 1,000; 1 by default.
            on_lost: Called, in a thread of its own, with each delivery whose lease was lost while it was held.
            group: Stream topics, required there: the group to consume for. Its deliveries are `StreamDelivery`.
            start: Stream topics: where a new group begins: `new` (the default), `all`, or after an id.
            adaptive: Adjust the number of parallel handlers, up to `threads`, to their duration and failure rate. The
                load on a slow or failing downstream drops within seconds. See `rmq.Adaptive`.
            weight: Share of this listener in `handlers` of `start`, relative to the other listeners; more than 0, 1 by
                default.
            timeout: Maximum duration of a call of the handler: a `timedelta` or a text such as "5m", 1 ms or more; by
                default `None`, no limit. A thread cannot be interrupted, so a call that takes longer is abandoned: its
                leases are no longer renewed, `on_lost` is called, and its result is ignored. See
                `run(exit_when_hung=True)`.
            resume_as: Stream topics: name of this process, if you know that the process which used it before is gone.
                The entries it held are redelivered when this listener starts, not when their leases expire.
            shared: Allow a second listener of the same topic (and group) in this client. Both must set it; each message
                goes to one of them, at random.

        Raises:
            InvalidValueError: An option is out of range or does not fit the topic; the handler is an async or a
                generator function, which a thread cannot run, or has parameters that cannot be filled; or the client
                already has a listener of these messages, and not both are `shared`. A handler that returns a coroutine
                or generator has its message nacked.

        Guarantee: leases are renewed while a handler runs. A handler is not called for a message whose lease expired
        before it could start.
        """
        return listener_decorator(self.add, topic, **options)

    def scheduled(self, name: str, **options: Unpack[ScheduleOptions]) -> Callable[[HandlerT], HandlerT]:
        """Decorate a handler that runs on a schedule, which this client stores when its listeners start.

        Arguments and errors are those of `rmq.scheduled`.
        """
        return scheduled_decorator(self.add, name, options)

    def add(self, *listeners: Listener) -> None:
        """Add listeners, for example `client.add(*rmq.scan("my_package"))`. They run like decorated handlers.

        Raises:
            RmqError: The listeners of this client are already running.
            InvalidValueError: A handler is an async or a generator function, which a thread cannot run, or the client
                already has a listener of its messages, and not both are `shared`.
        """
        self._listeners.add(*listeners)

    def start(
        self, threads: int | None = None, handlers: int | None = None, drain_s: float = DRAIN_S, idle: str = "normal"
    ) -> None:
        """Start all listeners, each in its own threads.

        Args:
            threads: Number of threads of each listener, 1 to 1,000, overriding the listener's own setting; `None` keeps
                it.
            handlers: Maximum number of handlers that run in parallel over all listeners, 1 to 10,000, shared by weight.
                One handler of each listener can always start if `handlers` is not less than the number of listeners.
                `None` for no limit besides `threads`.
            drain_s: With owners: seconds that a slot which moves to another worker waits for its running handler.
                `drain_timeout_s` of a `Coordinator` or `RedisOwners` takes precedence.
            idle: `normal` polls each second in addition to wakeups. `economy` sends fewer than ten commands a minute
                while nothing happens, provided wakeups are proven to arrive: see docs/operate/economy.md.

        Raises:
            InvalidValueError: `threads` or `handlers` is out of range, or `idle` is unknown.
            RmqError: The listeners are already running, the client is closed, was created before a fork or has no
                listener, or the type, slots or `merge` of a topic differ from the registered ones.
            CoordinationError: ZooKeeper, or with `owners` Redis, does not answer or refuses.
        """
        self._put_scheduled(self._listeners.added)
        self._listeners.start(self._owners, threads, handlers, drain_s, idle)
        with suppress(ClientClosedError):  # a handler has closed this client already
            self.record_history()
        if not self._listeners.runners:  # or stopped it
            self._recording.stop()

    def _put_scheduled(self, listeners: Iterable[Listener]) -> None:
        """Put the schedules of handlers that are only schedules."""
        for listener in listeners:
            if listener.schedule is not None:
                self.schedules.put(listener.schedule)

    def stop(self, drain_s: float = DRAIN_S) -> list[Delivery]:
        """Stop all listeners: claim nothing more, release messages not yet started, and let running handlers finish.

        Args:
            drain_s: Seconds to wait for running handlers. With owners, this process keeps its slots until then.

        Returns:
            Deliveries whose handlers still run: they stay claimed until their leases expire.

        Called from a handler, `stop` does not wait for that handler: its delivery is acked or nacked when the handler
        returns, and `run` returns after that.

        Guarantee: it returns about 2 s after `drain_s` at the latest, whether Redis answers or not. Messages whose ack
        or nack has not reached Redis `deadline_s` after the last handler ended are redelivered when their leases
        expire.
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
        """Run all listeners until SIGTERM, SIGINT, `stop` or `close`, then stop them and close the client.

        A second signal exits at once.

        Takes the arguments of `start`, returns what `stop` returns, and raises what `start` raises, or `RmqError`
        outside the main thread. Objects that exist when `run` is called are excluded from garbage collection until it
        ends: see `gc.freeze`.

        Under systemd (`Type=notify`) it reports READY once `health` is ready, and STOPPING at the end; it feeds the
        watchdog each second while `health` is live.

        Args:
            drain_s: As for `start`.
            threads: As for `start`.
            handlers: As for `start`.
            idle: As for `start`.
            exit_when_hung: Once a handler exceeds the `timeout` of its listener, let the other handlers finish as at
                SIGTERM and end the process with exit code 75, so that its supervisor restarts it.
        """
        require_main_thread("run()")
        with frozen_objects(), self, until_signal(signal.SIG_DFL) as ended:
            self.start(threads, handlers, drain_s, idle)
            service, hung = ServiceManager(), False
            while not (hung or self._listeners.stopped or ended.wait(1.0)):
                service.report(self.health())
                hung = exit_when_hung and self._listeners.hang
            service.stopping()
            left = self.stop(drain_s)
        if hung:
            exit_hung()
        return left

    def health(self) -> Health:
        """Return whether the listeners of this process run, and are ready. Sends nothing, so it can be called often.

        They are ready while Redis accepts the process' reports (every 5 s, in economy mode every 40 s) and, with
        owners, once it owns all slots that are assigned to it. From the first moment of a stop they are not ready.
        """
        return self._listeners.health()

    def inspect(self, topic: Topic | str) -> Inspection:
        """Return a read-only view of a topic. Unlike a producer or a consumer, it does not register the topic.

        Raises:
            UnknownTopicError: The topic is given by name and is not registered, or it was deleted.
            TopicMismatchError: The topic is registered with another type, number of slots or `merge`.
            InvalidValueError: The topic is a stream topic: see `stream`.
        """
        return Inspection(self._connections, self._known.merging(topic, "client.stream(topic)"))

    def stream(self, topic: Topic | str) -> StreamTopic:
        """Return a view of a stream topic, to read, follow and manage it.

        Raises:
            InvalidValueError: The topic is not a stream topic.
            UnknownTopicError: The topic is given by name and is not registered, or it was deleted.
            TopicMismatchError: The topic is registered with another type, number of slots or `merge`.
        """
        return StreamTopic(self._connections, self._known.viewed(topic))

    def dead(self, topic: Topic | str, actor: str | None = None) -> DeadLetters:
        """Return a topic's dead letters. `actor` is recorded in the audit; the default is `user@host`.

        Raises:
            UnknownTopicError: The topic is given by name and is not registered, or it was deleted.
            TopicMismatchError: The topic is registered with another type, number of slots or `merge`.
            InvalidValueError: The topic is a stream topic, where each group has its own dead letters (see `stream`), or
                `actor` is empty or too long.
        """
        return DeadLetters(self._connections, self._known.merging(topic, "client.stream(topic).dead(group)"), actor)

    def control(self, topic: Topic | str, actor: str | None = None) -> Control:
        """Return the management calls of a topic. `actor` is recorded in their audit; the default is `user@host`.

        Raises:
            UnknownTopicError: The topic is given by name and is not registered, or it was deleted.
            TopicMismatchError: The topic is registered with another type, number of slots or `merge`.
            InvalidValueError: The topic is a stream topic (see `stream`), or `actor` is empty or too long.
        """
        return Control(self._connections, self._known.merging(topic, "client.stream(topic)"), actor)

    def workers(self) -> list[WorkerInfo]:
        """Return the processes with running listeners, sorted by name, as they last reported; at most 1,000."""
        return read_workers(self._connections)

    def topics(self) -> list[Topic]:
        """Return the registered definitions that this version of RMQ can read, sorted by name; see `definitions`."""
        return list(self._known.definitions().topics)

    def definitions(self) -> Definitions:
        """Return the definitions of all registered topics, including those that this version of RMQ cannot read."""
        return self._known.definitions()

    def topic(self, name: str) -> Topic:
        """Return the registered definition of a topic.

        Raises:
            UnknownTopicError: No topic of this name is registered.
            UnreadableTopicError: The registered definition is damaged or needs a newer version of RMQ.
        """
        return self._known.named(name)

    def change_topic(self, topic: Topic) -> Topic:
        """Change the registered settings of a topic.

        `max_rate` and `max_burst` take effect within seconds. Running processes keep their values of all other settings
        until they restart.

        Args:
            topic: The result of `Topic.changed`, of which only the changed settings are stored; or another definition,
                which is stored as a whole.

        Returns:
            The definition that is now registered.

        Raises:
            UnknownTopicError: No topic of this name is registered.
            UnreadableTopicError: The registered definition is damaged or needs a newer version of RMQ.
            TopicMismatchError: The topic is registered with another type, number of slots or `merge`.
            DurabilityError: The topic was changed, but `durability` was not confirmed. Repeating the change is safe.

        Guarantee: if two clients change different settings at once, both changes are kept; if they change the same
            setting, the last change is kept.
        """
        return self._known.change(topic)

    def update_topic(self, name: str, change: Callable[[Topic], Topic]) -> Topic:
        """Change a registered definition with a function; otherwise as `change_topic`.

        Args:
            name: Name of the topic.
            change: Called with the registered definition; returns the new one. It is called again if another client has
                changed the definition meanwhile, so it must have no side effects.

        Returns:
            The definition that is now registered.

        Raises:
            RmqError: As for `change_topic`, or other clients changed the definition during each of 100 attempts.
        """
        return self._known.update(name, change)

    def delete_topic(
        self, name: str, *, force: bool = False, forget: bool = False, actor: str | None = None
    ) -> DeletedTopic:
        """Delete a topic: its definition, and all that its slots hold.

        Running programs that use the topic get a `TopicDeletedError` for each send, and no more messages. A program
        that starts later and uses the same topic registers it again, and all programs can continue.

        Args:
            name: Name of the topic.
            force: Delete it even if it holds messages or is used; otherwise that raises `TopicInUseError`. Producers,
                consumers without a listener and Spark writes are not detected; a worker is, up to 11 s after its end.
            forget: Also free the name for a topic of another type or number of slots. Do so only once all programs
                that use the topic have ended: otherwise their sends are accepted, and register the topic again.
            actor: Name for the audit log; `user@host` by default.

        Returns:
            The number of messages that were dropped, and the names of the schedules that send to the topic.

        Raises:
            UnknownTopicError: No topic of this name is registered or was deleted.
            TopicInUseError: The topic holds messages or is used, and `force` is false; nothing was deleted.
            InvalidValueError: `name` is `rmq.recurring`, the topic of the schedules, or `actor` is empty or too long.
            DurabilityError: The topic was deleted, but `durability` was not confirmed. Repeating the call is safe.
            RmqError: Other clients changed the definition or undid the deletion meanwhile.

        Guarantee: atomic for each slot. After an interruption the topic may be deleted in part; it can neither be used
            nor registered until this call is repeated. Repeating it is safe, and its result counts all messages.
        """
        deletion = TopicDeletion(self._connections, self._known, name, actor)
        return deletion.run(sending_to(self.schedules, name), force=force, forget=forget)

    def adopt(self, topic: Topic | str, from_ensemble: str | None = None) -> Adoption:
        """Move a topic's slots to this client's `owners` or ZooKeeper ensemble; to none if the client has neither.

        The epochs of a rebuilt ensemble start again from the beginning, so slots refuse it until they are moved with
        this call. An ensemble restored from a backup gets a new identity here, unless a worker has already given it
        one. The owners in a Redis count as an ensemble, too: `redis:` and the identity of this Redis. Stop the workers
        of the old ensemble first: they are not notified.

        Args:
            topic: The topic to move.
            from_ensemble: Identity of the ensemble whose slots are moved; `None` only reports the ensembles.

        Returns:
            The ensembles of the slots before this call, and the number of slots that it has moved.

        Raises:
            UnknownTopicError: The topic is given by name and is not registered.
            EnsembleMismatchError: Some slots belong to a third ensemble; nothing was moved.
            CoordinationError: ZooKeeper, or with `owners` Redis, does not answer.

        Guarantee: safe to repeat, also after an interruption. Messages are not changed; those in flight are redelivered
            when their leases expire.
        """
        resolved = self._known.resolved(topic)
        marks = {} if from_ensemble is None else highest_epochs(self._connections, resolved)
        ours = self._listeners.ensemble or ensemble_of(self._connections, self._owners, marks)
        return adopt(self._connections, resolved, from_ensemble, ours)

    def history(self) -> History:
        """Return the figures of all topics during the last day, minute by minute."""
        return History(self._connections)

    def record_history(self) -> None:
        """Take part in recording `history` until `stop` or `close`. Running listeners do so automatically."""
        self._recording.start(self._listeners.finished if self._listeners.pace.economical else None)

    def server_memory(self) -> dict[str, ServerMemory]:
        """Return the memory usage of each Redis server that holds slots, by its address."""
        replies = self._connections.ask_masters("INFO", "memory").items()
        return {address: ServerMemory.from_info(info) for address, info in replies}

    def close(self) -> None:
        """Stop running listeners, close consumers and connections, and stop a temporary embedded Redis.

        In a handler, it stops the listeners as `stop` does; the rest follows in the background once that handler has
        ended and its delivery is acked or nacked.
        """
        if os.getpid() != self._pid:
            return
        if self._listeners.runs_here:
            self.stop()
            self._runtime.job(self.close, "rmq-close").start()
            return
        with ExitStack() as steps:  # runs every step even if one raises, in reverse order
            if self._server is not None:
                server, self._server = self._server, None
                steps.callback(self._runtime.call, server.close)
            steps.callback(self._connections.close)
            if self._listeners.runners or self._listeners.leaving or self._recording.runs:
                self.stop()

    def _choose_owners(self, owners: str) -> None:
        """Set the owners of a client that was made without. For `rmq worker`.

        Raises:
            InvalidValueError: It was made with `owners` or `zookeeper`.
        """
        if self._owners is not None:
            raise InvalidValueError(f"--owners is {owners!r}, but the client sets owners or zookeeper; omit --owners")
        self._owners = owners_from(None, owners)

    def _registered(self, topic: Topic) -> tuple[Connections, Topic]:
        """Register a topic at its first use; return its connections and registered definition. For `DelayedQueue`."""
        return self._connections, self._known.registered(topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
