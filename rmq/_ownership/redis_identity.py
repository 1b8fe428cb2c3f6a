"""Checks that Redis and ZooKeeper belong together: the identity of Redis, and the highest epoch of each ensemble.

If workers of two Redis servers used one ZooKeeper, they would divide the slots between them, and messages would wait in
slots owned by workers of the other Redis. So each Redis has an identity, and all slots of a topic go to workers of one
Redis. A ZooKeeper that was restored from a backup assigns epochs twice. So Redis stores the highest epoch of each
ensemble.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import uuid4

from rmq._broker.keys import ENSEMBLES_KEY, REDIS_KEY
from rmq._io.backend import Background
from rmq._io.reports import reporter
from rmq._model.times import monotonic_s
from rmq._ownership.coordinator import Coordinator
from rmq._ownership.requests import RefusedError
from rmq._transport.connections import Connections
from rmq.errors import CoordinationError, MemoryFullError, RmqError, ScriptFailedError

log = reporter("rmq.identity")

AGAIN_S, IDENTITY_LOOK_S = 0.25, 5.0
"""Intervals of the check without a notification: while slots wait for epochs or after a failure, and otherwise."""

IDENTIFY_EVERY_S = 10.0
CHECK_PEERS_EVERY_S = 60.0
FOREIGN_WORKERS_S = 12.0
"""Longer than `IDENTIFY_EVERY_S`, so that a worker whose Redis was emptied knows the new identity by then."""

EPOCH_FLOORS_PATIENCE_S = 10.0
"""Seconds that a new connection to ZooKeeper waits for the highest epochs from Redis."""

MOST_ENSEMBLES = 1_000
PATIENCE_S = 2.0
"""Maximum wait of a stop."""


class EpochFloors:
    """The identity of Redis and the highest epochs of ensembles, stored in Redis for all workers.

    Args:
        connections: Connections to Redis.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def redis(self, known: str) -> str:
        """Return the identity of this Redis. If it has none, store `known` or a new one.

        Raises:
            RedisUnavailableError: No answer before the deadline.
            ScriptFailedError: No permission to store it.
            MemoryFullError: Redis is at its maxmemory.

        Guarantee: two workers that call this at the same time get the same identity.
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
    """Passes the highest epochs from Redis to the coordinator and back, and checks the identities of other workers.

    Args:
        connections: Connections to Redis.
        coordinator: This process as a worker in ZooKeeper.
        places: Names under which this process owns slots.
        rest_s: Minimum seconds between two readings of the identity of Redis, if longer than the default.
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
        self._wakeup = connections.runtime.event()
        self._rest_s = rest_s
        self._redis = ""
        self._counted: tuple[str, int] = "", 0  # the ensemble and epoch last stored in Redis
        self._identify_s = self._check_peers_s = 0.0
        self._awaits_since_s: float | None = None
        self._logged: set[str] = set()

    def begin(self) -> None:
        """Read the identity of this Redis; call it before the coordinator starts."""
        self._identify()
        self._coordinator.expect_marks()

    def refuse_foreign_workers(self) -> None:
        """Check, for up to `FOREIGN_WORKERS_S`, that live workers of the same topics use the same Redis.

        Raises:
            CoordinationError: They use another Redis: its workers and ours would share slots.
        """
        until_s = monotonic_s() + FOREIGN_WORKERS_S
        while text := self._foreign_worker():
            if monotonic_s() >= until_s:
                raise CoordinationError(text)
            self._stopping.wait(0.5)
            self._identify()

    def run(self) -> None:
        """Check at every change and regularly, until `stop`."""
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
                except Exception as error:  # it is retried
                    failed = True
                    if step.__name__ not in self._logged:
                        self._logged.add(step.__name__)
                        log.warning(
                            "epochs or identities could not be exchanged with Redis or ZooKeeper; retrying: %s", error
                        )
            self._wakeup.wait(AGAIN_S if failed else self._pause_s())

    def _pause_s(self) -> float:
        """Return the seconds until the next check without a notification."""
        if self._coordinator.awaited_marks is not None:
            return AGAIN_S
        return max(0.0, min(IDENTITY_LOOK_S, min(self._identify_s, self._check_peers_s) - monotonic_s()))

    def notify(self) -> None:
        """Check soon, because the coordinator has changed. Does not wait."""
        self._wakeup.set()

    def stop(self, patience_s: float) -> None:
        """Stop, and wait up to `patience_s` seconds for the end."""
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
            self._counted = "", 0  # Redis may have lost the epochs, too
            self._count()

    def _check_peers(self) -> None:
        if monotonic_s() >= self._check_peers_s:
            self._check_peers_s = monotonic_s() + CHECK_PEERS_EVERY_S
            if text := self._foreign_worker():
                log.error("%s", text)

    def _foreign_worker(self) -> str:
        """Return an error text about live workers of another Redis on our topics, or ""."""
        if not self._redis:
            return ""
        try:
            others = self._call(self._coordinator.others)
        except RefusedError as error:
            log.warning("the Redis of other workers could not be checked: %s", error)
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
