"""Applies changes of the slots that this process owns to its listeners and queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Protocol

from rmq._io.backend import Background
from rmq._io.reports import reporter
from rmq._model.display import counted
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic
from rmq._ownership.coordinator import Coordinator
from rmq._ownership.redis_identity import PATIENCE_S, RedisIdentityCheck
from rmq._ownership.requests import RefusedError
from rmq._ownership.values import Ownership, SlotKey
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError, TopicMismatchError

log = reporter("rmq.runtime")

OWNED_LOOK_S = 5.0
"""Seconds between checks of the owned slots without a reported change."""

DRAINING_S, SLOTLESS_S = 0.2, 1.0
"""Seconds between checks of the ownership without a reported change: while slots wait for running handlers, which is
also how soon they are handed over; and while this process owns no slots."""


SETTLING_S = 10.0
"""Seconds after the start in which the leader assigns slots to a new worker. One that gets none is settled then."""


class SlotUser(Protocol):
    """A user of the slots that a process owns: a running listener, or the driver of a Spark query."""

    @property
    def place(self) -> str:
        """Name under which it owns slots."""
        ...

    @property
    def topic(self) -> Topic:
        """The registered definition of its topic."""
        ...

    def refresh_ownership(self, owned: Mapping[SlotKey, Ownership]) -> bool:
        """Use only the slots that the process owns now, and hand over revoked slots once they are not in use.

        Args:
            owned: The slots that the process owns, in all topics.

        Returns:
            True if slots are still in use. The caller must then call again, since no event reports the end of the use.
        """
        ...


class OwnershipFollower(Background):
    """Passes every change of the slots that a process owns to their users.

    Args:
        coordinator: This process as a worker in ZooKeeper.
        users: Users of its slots.
        connections: Connections to Redis.
        drain_s: Seconds that a revoked slot may wait for its running handler.
        identify_s: Least seconds between two reads of the identity of Redis; 0 for the usual pause.

    Level-triggered: it compares the state at every change that the coordinator reports, and also at intervals.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        users: Sequence[SlotUser],
        connections: Connections,
        drain_s: float,
        identify_s: float = 0.0,
    ) -> None:
        runtime = connections.runtime
        super().__init__(runtime, "rmq-ownership")
        coordinator.drain_within(drain_s)
        self._runtime = runtime
        self._coordinator = coordinator
        self._users = list(users)
        places = {user.place for user in users}
        self._identity_check = RedisIdentityCheck(connections, coordinator, places, identify_s)
        self._changed = runtime.event()
        self._told: Callable[[], None] | None = None  # whom the coordinator would tell without us
        self._settles_s = inf

    @property
    def ensemble(self) -> str:
        """Identity of the ensemble; empty until it has been read."""
        return self._coordinator.ensemble or ""

    def start(self) -> None:
        """Join the cluster, then follow its assignments.

        Raises:
            CoordinationError: ZooKeeper does not answer, or the login is refused; or live workers of another Redis
                consume the same topic in this ensemble.
            TopicMismatchError: A topic is registered in ZooKeeper with another type or number of slots.
            InvalidValueError: There are two listeners of one topic, or more slots than owners in Redis have.
        """
        for name, number in Counter(user.place for user in self._users).items():
            if number > 1:
                raise InvalidValueError(
                    f"topic {name} has {number} listeners; with owners each slot belongs to one thread, so give one "
                    "listener more threads",
                    topic=name,
                )
        self._told, self._coordinator.on_change = self._coordinator.on_change, self._tell
        self._identity_check.begin()
        self._runtime.call(self._coordinator.start)
        try:
            self._identity_check.refuse_foreign_workers()
            self._runtime.call(self._coordinator.check_slots, {user.place: user.topic.slots for user in self._users})
            for user in self._users:
                self._enter(user.place, user.topic)
        except BaseException:
            self._runtime.call(self._coordinator.stop, drain=False)
            raise
        self._identity_check.start()
        self._settles_s = monotonic_s() + SETTLING_S
        super().start()

    def unsettled(self) -> list[str]:
        """Return why this process does not own all slots that it is to own; empty if it does. Sends nothing."""
        if not self._coordinator.connected:
            return ["no session in which slots can be owned"]
        awaited = {user.place: len(self._coordinator.awaited(user.place)) for user in self._users}
        if any(awaited.values()):
            return [f"{counted(number, 'slot')} of topic {place} assigned to this worker, not owned yet"
                    for place, number in awaited.items() if number]  # fmt: skip
        new = monotonic_s() < self._settles_s and not self._coordinator.owned()
        return ["no slots are assigned to this worker yet"] if new else []

    def run(self) -> None:
        """Pass on every change until `stop`."""
        while True:
            self._changed.clear()
            if self._stopping.is_set():
                return
            owned, draining = self._coordinator.owned(), False
            for user in self._users:
                try:
                    draining |= user.refresh_ownership(owned)
                except Exception:  # whatever it is, the next round comes
                    log.exception(
                        "topic %s: changes to the owned slots could not be applied, and will be retried",
                        user.topic.name,
                    )
                    draining = True
            self._changed.wait(DRAINING_S if draining else OWNED_LOOK_S if owned else SLOTLESS_S)

    def _tell(self) -> None:
        """Wake the threads when the coordinator has changed the slots, and call the previous `on_change` function."""
        self._changed.set()
        self._identity_check.notify()
        if self._told is not None:
            self._told()

    def leave(self, drain_s: float) -> None:
        """Start handing over each slot whose handlers have ended, so that no slot waits for another. Does not wait.

        Args:
            drain_s: Seconds that handlers may take to finish; until then no other worker gets their slots.
        """
        self._coordinator.leave(drain_s)

    def stop(self, patience_s: float = PATIENCE_S) -> None:
        """Release all slots and leave the cluster. Call it after the users have stopped or exceeded their time.

        Args:
            patience_s: Seconds to wait for threads that may be waiting for Redis.
        """
        until_s = monotonic_s() + patience_s
        self._stopping.set()
        self._changed.set()
        self.join(patience_s)
        self._identity_check.stop(max(0.0, until_s - monotonic_s()))
        self._runtime.call(self._coordinator.stop, drain=False)

    def _enter(self, place: str, topic: Topic) -> None:
        """Register a topic for its owners; the definition in Redis replaces one that a deleted topic has left."""
        try:
            for register in (self._coordinator.register_topic, self._coordinator.replace_topic):
                registered = Topic.from_json(self._runtime.call(register, place, topic.to_json()))
                if (registered.type, registered.slots) == (topic.type, topic.slots):
                    break
            else:
                raise TopicMismatchError(
                    f"topic {topic.name} is registered for its owners as {registered.type.name} with "
                    f"{registered.slots} slots, not as {topic.type.name} with {topic.slots}; type and slots can't be "
                    "changed while workers own slots",
                    topic=topic.name,
                )
        except RefusedError as error:  # of this topic alone: the others shall not wait for it
            log.error("topic %s could not be registered for its owners: %s", topic.name, error)
        self._coordinator.consume(place, topic.slots)
