"""Checks that Redis and ZooKeeper belong together: the identity of Redis, and the highest epoch of each ensemble.

Workers of two Redis behind one ZooKeeper would share slots: a message would wait in a slot that a worker of the other
Redis owns. So each Redis has an identity, and all slots of a topic go to workers of one Redis. A ZooKeeper that was
restored from a backup gives out epochs twice. So Redis keeps the highest epoch of each ensemble.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import uuid4

from rmq._broker.keys import ENSEMBLES_KEY, REDIS_KEY
from rmq._io.backend import Background
from rmq._model.reports import reporter
from rmq._model.times import monotonic_s
from rmq._ownership import Coordinator
from rmq._ownership.requests import RefusedError
from rmq._transport.connections import Connections
from rmq.errors import CoordinationError, MemoryFullError, RmqError, ScriptFailedError

log = reporter("rmq.identity")

AGAIN_S, IDENTITY_LOOK_S = 0.25, 5.0
"""How often it looks without being told: while slots wait for the epochs, or something has failed; and otherwise."""

IDENTIFY_EVERY_S = 10.0
CHECK_PEERS_EVERY_S = 60.0
FOREIGN_WORKERS_S = 12.0
"""Longer than `IDENTIFY_EVERY_S`: a worker whose Redis was emptied knows the new identity by then."""

EPOCH_FLOORS_PATIENCE_S = 10.0
"""How long a new connection to ZooKeeper waits for the highest epochs from Redis."""

MOST_ENSEMBLES = 1_000
PATIENCE_S = 2.0
"""Longest wait of a stop."""


class EpochFloors:
    """The identity and the highest epochs, as Redis keeps them for all workers.

    Args:
        connections: Where.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def redis(self, known: str) -> str:
        """Return the identity of this Redis; one that has none gets `known`, or a new one.

        Raises:
            RedisUnavailableError: No answer until the deadline.
            ScriptFailedError: No right to store it.
            MemoryFullError: Redis is at its maxmemory.

        Guarantee: two workers that ask at once get the same identity.
        """
        value: bytes | None = self._connections.command("GET", REDIS_KEY)
        if value is None:
            self._connections.command("SET", REDIS_KEY, known or str(uuid4()), "NX")
            value = self._connections.command("GET", REDIS_KEY)
        return "" if value is None else value.decode(errors="replace")

    def counted(self) -> dict[str, int]:
        """Return the highest known epoch of each ensemble."""
        value: list[Any] = self._connections.command("ZREVRANGE", ENSEMBLES_KEY, 0, MOST_ENSEMBLES - 1, "WITHSCORES")
        pairs = zip(value[::2], value[1::2], strict=True)
        return {name.decode(errors="replace"): int(float(score)) for name, score in pairs}

    def count(self, ensemble: str, epoch: int) -> None:
        """Store the highest epoch of an ensemble. Safe to repeat; a lower one changes nothing."""
        self._connections.command("ZADD", ENSEMBLES_KEY, "GT", epoch, ensemble)


class RedisIdentityCheck(Background):
    """Tells the coordinator the highest epochs that Redis knows, and Redis the highest epoch of the coordinator.

    Args:
        connections: Where Redis is.
        coordinator: This process as a worker in ZooKeeper.
        places: Names under which this process owns slots.
        rest_s: Shortest pause between two readings of the identity of Redis, if it is longer than the usual one.
    """

    def __init__(
        self, connections: Connections, coordinator: Coordinator, places: Collection[str], rest_s: float = 0.0
    ) -> None:
        super().__init__(connections.runtime, "rmq-identity")
        self._marks = EpochFloors(connections)
        self._call = connections.runtime.call
        self._shown = connections.url.shown
        self._coordinator = coordinator
        self._places = frozenset(places)
        self._stopping = connections.runtime.event()
        self._wakeup = connections.runtime.event()
        self._rest_s = rest_s
        self._redis = ""
        self._counted: tuple[str, int] = "", 0  # the ensemble and its epoch that Redis was told last
        self._identify_s = self._check_peers_s = 0.0
        self._awaits_since_s: float | None = None
        self._logged: set[str] = set()

    def begin(self) -> None:
        """Learn the identity of this Redis; before the coordinator starts."""
        self._identify()
        self._coordinator.expect_marks()

    def refuse_foreign_workers(self) -> None:
        """Wait a moment until live workers of the same topics name the same Redis.

        Raises:
            CoordinationError: They name another one: its workers and ours would share slots.
        """
        until_s = monotonic_s() + FOREIGN_WORKERS_S
        while text := self._foreign_worker():
            if monotonic_s() >= until_s:
                raise CoordinationError(text)
            self._stopping.wait(0.5)
            self._identify()

    def run(self) -> None:
        """Look at every change, and now and then, until `stop`."""
        self._check_peers_s = monotonic_s() + FOREIGN_WORKERS_S
        while True:
            self._wakeup.clear()
            if self._stopping.is_set():
                return
            failed = False
            for step in (self._send_epoch_floors, self._count, self._identify_again, self._check_peers):
                try:
                    step()
                    self._logged.discard(step.__name__)
                except Exception as error:  # another try comes
                    failed = True
                    if step.__name__ not in self._logged:
                        self._logged.add(step.__name__)
                        log.warning("the identities of Redis and ZooKeeper could not be compared: %s", error)
            self._wakeup.wait(AGAIN_S if failed else self._pause_s())

    def _pause_s(self) -> float:
        """Return how long nothing has to be done if nobody tells."""
        if self._coordinator.awaited_marks is not None:
            return AGAIN_S
        return max(0.0, min(IDENTITY_LOOK_S, min(self._identify_s, self._check_peers_s) - monotonic_s()))

    def notify(self) -> None:
        """Let it look: the coordinator has changed. Does not wait."""
        self._wakeup.set()

    def stop(self, patience_s: float) -> None:
        """End, and wait for that so long at most, in seconds."""
        self._stopping.set()
        self._wakeup.set()
        self.join(patience_s)

    def _send_epoch_floors(self) -> None:
        connection = self._coordinator.awaited_marks
        if connection is None:
            self._awaits_since_s = None
            return
        if self._awaits_since_s is None:
            self._awaits_since_s = monotonic_s()
        try:
            marks = self._marks.counted()
        except RmqError:
            if monotonic_s() - self._awaits_since_s >= EPOCH_FLOORS_PATIENCE_S:
                self._coordinator.give_marks(connection, {})
            raise
        self._coordinator.give_marks(connection, marks)

    def _count(self) -> None:
        highest = max(self._coordinator.owned().values(), key=lambda each: each.epoch, default=None)
        if highest is not None and (highest.ensemble, highest.epoch) != self._counted:
            self._marks.count(highest.ensemble, highest.epoch)
            self._counted = highest.ensemble, highest.epoch

    def _identify(self) -> None:
        try:
            self._redis = self._marks.redis(self._redis)
        except (ScriptFailedError, MemoryFullError) as error:
            if "identity" not in self._logged:
                self._logged.add("identity")
                log.warning("the identity of this Redis can't be published to other workers: %s", error)
        self._coordinator.belong_to(self._redis)

    def _identify_again(self) -> None:
        if monotonic_s() >= self._identify_s:
            self._identify_s = monotonic_s() + max(IDENTIFY_EVERY_S, self._rest_s)
            self._identify()
            self._counted = "", 0  # Redis may have forgotten that, too
            self._count()

    def _check_peers(self) -> None:
        if monotonic_s() >= self._check_peers_s:
            self._check_peers_s = monotonic_s() + CHECK_PEERS_EVERY_S
            if text := self._foreign_worker():
                log.error("%s", text)

    def _foreign_worker(self) -> str:
        """Return an error text about live workers of another Redis on our topics; empty if there are none."""
        if not self._redis:
            return ""
        try:
            others = self._call(self._coordinator.others)
        except RefusedError as error:
            log.warning("whether other workers use another Redis is not known: %s", error)
            return ""
        for name, other in sorted(others.items()):
            shared = sorted(self._places & other.topics.keys())
            if shared and other.redis not in ("", self._redis):
                return (
                    f"topic {shared[0]} at {self._shown} (Redis {self._redis}) is consumed by worker {name} on host"
                    f" {other.host}, process {other.pid}, from another Redis ({other.redis}), through the same"
                    " ZooKeeper and chroot; they would share its slots. Give each Redis a chroot of its own:"
                    " Coordinator(hosts, chroot=...)"
                )
        return ""
