"""Executes requests in Redis, with the script `keeper`, in place of a ZooKeeper.

Each batch of requests is one call. The script notes the session's contact first, by Redis' clock, so any reply proves
contact. A reply that was lost leaves the batch UNKNOWN: nothing is repeated here, and the next round reads what there
is. A change is announced by a hint to all workers, which then run a round; a lost hint costs a sixth of the timeout.

Answers of reads are kept with the number of the last transaction. While that number stays, Redis answers "unchanged" to
the first batch of a round, and the reads that follow in the round are not sent at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmq._broker.keys import OWNERS_KEYS, REDIS_KEY
from rmq._claiming.wakeups import RECONNECT_S, WakeupSubscriber
from rmq._io.backend import THREADS, Background, Runtime
from rmq._io.wire import Argument
from rmq._model.display import brief
from rmq._model.times import monotonic_s
from rmq._model.workers import process_name
from rmq._ownership.assignment import NO_LIMIT
from rmq._ownership.coordinator import Coordinator
from rmq._ownership.redis_identity import EpochFloors
from rmq._ownership.requests import UNKNOWN, Children, Create, Get, Look, OwnNodes, Put, Release, Reply, Request, Sync
from rmq._ownership.values import RedisOwners, SlotKey, Stat, check
from rmq._registry.shared import KeeperReply, keep_nodes
from rmq._servers.durability import parse_durability
from rmq._servers.urls import RedisUrl
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq.errors import (
    CoordinationError,
    DurabilityError,
    MemoryFullError,
    RedisUnavailableError,
    RmqError,
    ScriptFailedError,
)

MOST_TIMEOUT_S = 2.0
"""Longest wait for a reply, in seconds; less with a session timeout below 6 s."""

HINT_GAP_S, NODE_S = 0.1, 0.0001
"""Minimum pause between two rounds because of hints, and pause for each node that was read or listed, in seconds: each
change is hinted to all workers, and Redis, which serves messages too, shall not spend its time with their rounds."""

MOST_SLOTS, MOST_SLOTS_IN_ALL = 16_384, 65_536
"""Most slots that a worker consumes, and that all live workers together do: at each change each worker lists its own
slots, and the leader assigns all of them."""


def keeper_call(
    session: int, timeout_ms: int, requests: Sequence[Request], known: int = 0, unless: int = 0
) -> Call[KeeperReply]:
    """Return a call that carries out requests of a session; see the header of the script `keeper`."""
    packed = [part for request in requests for part in _packed(request)]
    changes = any(isinstance(each, Create | Put | Release) for each in requests)
    return keep_nodes(session, timeout_ms, packed, known, unless, changes=changes)


class RedisKeeper:
    """A sequence of sessions in Redis; see `Keeper`.

    Args:
        url: The Redis.
        options: Settings of the owners.
        wake: Called, from any thread, when a round is due. Must not block.
        broken: Called when a call has failed. Must not block.
        doubt: Called when Redis was found to have lost transactions, as a failover can.
        ended: Called when Redis has said that a session has ended.
        runtime: Threads, but in tests.
    """

    name = "Redis"

    def __init__(
        self,
        url: RedisUrl,
        options: RedisOwners,
        wake: Callable[[], None],
        broken: Callable[[], None],
        doubt: Callable[[], None],
        ended: Callable[[], None],
        runtime: Runtime = THREADS,
    ) -> None:
        self.session_timeout_s = options.session_timeout_s
        self.session: int | None = None
        self.refusal: str | None = None
        self.identity = ""
        """Identity of this Redis; empty until it has been read."""
        self.known = 0
        """Highest transaction number that was seen."""
        timeout_s = min(MOST_TIMEOUT_S, options.session_timeout_s / 3)
        durability = parse_durability("replicated" if options.replicas else "memory", options.replicas)
        self._connections = Connections(
            url, timeout_s=timeout_s, deadline_s=timeout_s / 2, durability=durability, runtime=runtime
        )
        self._wake, self._broken, self._doubt, self._ended = wake, broken, doubt, ended
        self._hints = _Hints(self._connections, self._take_hint)
        self._lock = runtime.lock()
        self._last = 0  # the last session
        self._era = -1
        self._answers: dict[Request, Reply] = {}  # as of transaction `_answers_number`
        self._answers_number = 0
        self._nodes = 0  # number of nodes that were read or listed since the last hint

    def start(self) -> None:
        self._hints.start()
        self._wake()

    def stop(self) -> None:
        self._hints.request_stop()
        with self._lock:
            if self.session is not None:
                with contextlib.suppress(CoordinationError):
                    self._call(self.session, (), timeout_s=0.0)
                self.session = None
        self._hints.join(RECONNECT_S)
        self._connections.close()

    def renew(self) -> None:
        """Resume the last session if it lives, or else open a new one."""
        with self._lock:
            state = self._call(self._last, ())
            if state is not None and not state.session:
                state = self._call(0, ())
            if state is not None:
                self._last = self.session = state.session
                self.refusal = None
                self._wake()

    def ensure_chroot(self) -> None:
        """Read the identity of this Redis, by which its owners are known."""
        try:
            self.identity = EpochFloors(self._connections).redis(self.identity)
        except (ScriptFailedError, MemoryFullError) as error:
            raise CoordinationError(f"the identity of Redis cannot be read or set in {REDIS_KEY}: {error}") from error

    def carry_out(
        self, session: int, requests: Sequence[Request], heard: Callable[[float], None] | None = None
    ) -> list[Reply]:
        with self._lock:
            replies = self._carry_out(session, requests, heard)
        return [UNKNOWN] * len(requests) if replies is None else replies

    def _carry_out(
        self, session: int, requests: Sequence[Request], heard: Callable[[float], None] | None
    ) -> list[Reply] | None:
        if self.session != session:
            return None
        reads = [each for each in requests if isinstance(each, Look | Get | Children)]
        reads_only = all(isinstance(each, Look | Get | Children | Sync) for each in requests)
        kept = reads_only and self._answers.keys() >= set(reads)
        if kept and len(reads) == len(requests):
            return [self._answers[each] for each in reads]
        sent_s = monotonic_s()
        state = self._call(session, requests, self._answers_number if kept else 0)
        if state is None or not state.session:
            self._lose()
            return None
        if heard is not None:
            heard(sent_s)
        if state.answers is None:
            return [True if isinstance(each, Sync) else self._answers[each] for each in requests]
        replies = [_reply(each, answer) for each, answer in zip(requests, state.answers, strict=True)]
        self._nodes += len(replies) + sum(len(each.names) for each in replies if isinstance(each, OwnNodes))
        if state.number != self._answers_number:
            self._answers, self._answers_number = {}, state.number
        if reads_only:
            self._answers.update(zip(requests, replies, strict=True))
        return replies

    def _call(
        self, session: int, requests: Sequence[Request], unless: int = 0, timeout_s: float | None = None
    ) -> KeeperReply | None:
        """Return the reply; None if Redis does not answer.

        Raises:
            CoordinationError: Redis refuses the call.
        """
        timeout_s = self.session_timeout_s if timeout_s is None else timeout_s
        try:
            state = self._connections.run(keeper_call(session, round(timeout_s * 1000), requests, self.known, unless))
        except (RedisUnavailableError, DurabilityError) as error:
            self.refusal = str(error)
            self._lose()
            return None
        except RmqError as error:
            self._lose()
            keys = OWNERS_KEYS["nodes"].replace("nodes", "*")
            raise CoordinationError(f"Redis refuses to keep the owners of slots in {keys}: {error}") from error
        self.known = max(self.known, state.number)
        if session and not state.session:
            self._ended()
        if state.era != self._era:
            before, self._era = self._era, state.era
            if before >= 0:
                self._answers.clear()
                self._doubt()
        return state

    def _take_hint(self) -> float:
        """Start a round; return the seconds until a hint may start the next one."""
        pause_s, self._nodes = max(HINT_GAP_S, self._nodes * NODE_S), 0
        self._wake()
        return min(pause_s, self.session_timeout_s / 6)

    def _lose(self) -> None:
        """Note that the connection is broken, or the session has ended."""
        if self.session is not None:
            self.session = None
            self._broken()
            self._wake()


class _Hints(Background):
    """Receives the hints of changes; `changed` returns the seconds until it may be called again."""

    def __init__(self, connections: Connections, changed: Callable[[], float]) -> None:
        super().__init__(connections.runtime, "rmq-owners")
        self._hints = WakeupSubscriber.of_channel(connections, OWNERS_KEYS["wake"])
        self._changed = changed

    def request_stop(self) -> None:
        self._stopping.set()
        self._hints.end()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                found = self._hints.read(min(self._hints.max_wait_s(), 60.0))
                pause_s = self._changed() if found.due or found.missed else HINT_GAP_S
                self._stopping.wait(pause_s if self._hints.connected else RECONNECT_S)
            except RmqError:  # the rounds, which call Redis, report it
                self._stopping.wait(RECONNECT_S)
        self._hints.close()


Owners = str | Coordinator | RedisOwners
"""What keeps the owners of a client's slots: servers of ZooKeeper, a coordinator that uses them, or Redis."""


def owners_from(zookeeper: str | Coordinator | None, owners: str | RedisOwners | None) -> Owners | None:
    """Return the keeper of owners that a client's arguments name; None if its slots have no owners.

    Raises:
        InvalidValueError: Both are given, or `owners` is neither "redis" nor a `RedisOwners`.
    """
    if owners is None:
        return zookeeper
    check(zookeeper is None, "owners and zookeeper are both given; a slot has one owner, so use one of them")
    known = isinstance(owners, RedisOwners) or owners == "redis"
    check(known, f"owners is {brief(owners)}; it must be 'redis' or a RedisOwners")
    return owners if isinstance(owners, RedisOwners) else RedisOwners()


def new_coordinator(owners: Owners | None, url: RedisUrl) -> Coordinator | None:
    """Return a coordinator, which is not started; None without owners. The first one with ZooKeeper imports kazoo."""
    if isinstance(owners, RedisOwners):
        return RedisCoordinator(url, owners)
    return Coordinator(owners) if isinstance(owners, str) else owners


class RedisCoordinator(Coordinator):
    """Represents this process as a worker in Redis; otherwise as `Coordinator`.

    Args:
        url: The Redis.
        options: Settings of the owners.
    """

    def __init__(self, url: RedisUrl, options: RedisOwners) -> None:
        def connect(wake: Callable[[], None], broken: Callable[[], None]) -> RedisKeeper:
            ended = lambda: self._rounds.session_ended()  # noqa: E731 - the rounds are made later
            return RedisKeeper(url, options, wake, broken, self._doubt, ended, self._runtime)

        self.on_change: Callable[[], None] | None = None
        self.worker_id = options.worker_id or process_name()
        self._keeper: RedisKeeper = self._set_up(
            connect, options.session_timeout_s, options.weight, options.drain_timeout_s, NO_LIMIT
        )
        self._member.new_identity = lambda: f"redis:{self._keeper.identity}"
        self._member.lists_own = True
        self._member.leader.most_slots = MOST_SLOTS_IN_ALL  # two workers that start at once do not see each other

    def check_slots(self, topics: Mapping[str, int]) -> None:
        own, known = sum(topics.values()), dict[str, int]()
        text = f"the topics of this worker have {own:,} slots in all; a worker with owners in Redis has at most"
        check(own <= MOST_SLOTS, f"{text} {MOST_SLOTS:,}. Use fewer slots or topics, or ZooKeeper")
        for other in self.others().values():
            known |= other.topics
        number = sum({**known, **topics}.values())
        text = f"with the topics of this worker, the live workers consume {number:,} slots in all; owners in Redis have"
        check(number <= MOST_SLOTS_IN_ALL, f"{text} at most {MOST_SLOTS_IN_ALL:,}. Use fewer slots, or ZooKeeper")

    def expect_marks(self) -> None:
        """Do nothing: numbers of transactions follow Redis' clock, so they are above those before a restore."""

    def fenced(self, epoch: int, ensemble: str, key: SlotKey | None = None) -> None:
        """Own the slot anew, with an epoch above this one, if no other worker owns it.

        A failover may have lost an acquisition, and the release before it. Then the earlier owner has the slot again,
        with an epoch that the slot refuses.
        """
        if ensemble == self.ensemble:
            self._keeper.known = max(self._keeper.known, epoch)
            with self._changing() as member:
                if key is not None:
                    member.machine.outrun(key, epoch)

    def verified(self, marks: Mapping[str, int], timeout_s: float = 15.0) -> str:
        """Return the identity of these owners; numbers of transactions are above `marks` from then on."""
        self._keeper.known = max((self._keeper.known, *marks.values()))
        return super().verified({}, timeout_s)

    def _doubt(self) -> None:
        with self._changing() as member:
            member.machine.doubt()


def _packed(request: Request) -> tuple[Argument, Argument, Argument, Argument]:
    match request:
        case Sync():
            return ("sync", "", "", "")
        case Look(path):
            return ("look", path, "", "")
        case Get(path):
            return ("get", path, "", "")
        case Children(path, _, own):
            return ("children", path, int(own), "")
        case Create(path, data, ephemeral):
            return ("create", path, data, int(ephemeral))
        case Put(path, data, version):
            return ("put", path, data, version)
        case Release(path, guard, version, epoch):
            return ("release", path, guard, epoch or version)


def _reply(request: Request, answer: Any) -> Reply:
    match request:
        case Look() | Create():
            return None if answer is None else _stat(answer)
        case Get():
            if answer is None:
                return None
            *fields, data = answer.split(b" ", 4)
            return data, _stat(b" ".join(fields))
        case Children(_, _, own):
            if answer is None:
                return None
            number, *members = answer
            names = [member.rpartition(b"/" if own else b"\0")[2].decode() for member in members]
            return OwnNodes(number, names) if own else names
        case _:
            return answer == b"1"


def _stat(fields: bytes) -> Stat:
    created, changed, version, session = map(int, fields.split(b" "))
    return Stat(created, version, session, changed)
