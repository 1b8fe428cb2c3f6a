"""The leader's part of a round: reads live workers and registered topics, and writes the assignment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import cast

from rmq._ownership.assignment import MAX_NODE_BYTES, NO_LIMIT, Assignment, SessionBudget, Share, assign_within
from rmq._ownership.problems import ProblemLog
from rmq._ownership.requests import Children, Create, Get, Node, Put, Refused, Reply, Steps, read
from rmq._ownership.values import (
    ASSIGNMENT,
    TOPICS,
    WORKERS,
    WorkerDocument,
    slots_from_definition,
    topic_name,
    topic_path,
    worker_path,
)
from rmq.errors import UnreadableDocumentError


def decide(
    workers: Mapping[str, WorkerDocument],
    slots: Mapping[str, int],
    current: Assignment | None,
    budget: SessionBudget = NO_LIMIT,
    unreadable: frozenset[str] = frozenset(),
) -> Assignment:
    """Return the assignment of slots to live workers.

    A worker that expects another number of slots than is registered gets none of the topic. Topics with an unreadable
    definition keep their owners.
    """
    shut_out = other_redis_workers(workers, current)
    shares: dict[str, Share] = {}
    for name, worker in workers.items():
        topics = (topic for topic, count in worker.topics.items() if slots.get(topic) == count)
        shares[name] = Share(frozenset(t for t in topics if name not in shut_out.get(t, ())), worker.weight)
    consumed = {topic: slots[topic] for share in shares.values() for topic in share.topics}
    rooms = {name: worker.room for name, worker in workers.items() if worker.room is not None}
    slot_bytes = {topic: budget.topic_bytes(topic, count) for topic, count in consumed.items()}
    present = current.topics if current else Assignment().topics
    return Assignment(assign_within(consumed, shares, present, rooms, slot_bytes), bool(unreadable))


def other_redis_workers(workers: Mapping[str, WorkerDocument], current: Assignment | None) -> dict[str, set[str]]:
    """Return topic → the workers that consume it from another Redis than its owners do.

    A topic belongs to the Redis whose workers own most of its slots, or else to the first worker's. Workers without an
    identity match any Redis.
    """
    others: dict[str, set[str]] = {}
    for topic in sorted({topic for worker in workers.values() for topic in worker.topics}):
        redis_of = {name: doc.redis for name, doc in sorted(workers.items()) if topic in doc.topics and doc.redis}
        if len(set(redis_of.values())) > 1:
            had = Counter(redis_of.get(str(owner)) for owner in (current.topics.get(topic, ()) if current else ()))
            mine = max(redis_of.values(), key=lambda redis: had[redis])
            others[topic] = {name for name, redis in redis_of.items() if redis != mine}
    return others


class Leader:
    """The leader's part of a round."""

    def __init__(self, problems: ProblemLog, budget: SessionBudget) -> None:
        self.limit, self.most_slots = MAX_NODE_BYTES, NO_LIMIT.limit
        self._problems = problems
        self._budget = budget
        self._topics: list[str] = []
        self._decided: object = None  # the inputs from which the present assignment was computed

    def lead(self, current: Assignment | None, version: int | None, *, readable: bool) -> Steps[bool]:
        """Write the assignment if it has changed; return whether ZooKeeper permits everything that a leader does.

        `current` is the last readable assignment. `version` (None without a node) and `readable` describe the node.
        """
        live = yield from self._live()
        if live is None:
            return False
        written: Reply = None
        slots, unreadable = yield from self._registered(live)
        for topic, names in other_redis_workers(live, current).items():
            text = f"workers {', '.join(sorted(names)[:10])} get no slots of topic {topic}: they use another Redis"
            self._problems.note(f"redis {topic}", f"{text} than its owners. Give each Redis its own chroot")
        basis = live, slots, unreadable, current
        if not (readable and basis == self._decided):
            whole = decide(live, slots, current, self._budget, unreadable)
            self._topics = sorted(whole.topics)
            keep = current.topics if current else ()
            due, data = whole.fitting(keep, self.limit, self.most_slots)
            if readable and current is not None and due == current:
                self._decided = basis  # only if nothing is written: the next round shows whether a write succeeded
                due = current
            elif version is None:
                (written,) = yield from read(Create(ASSIGNMENT, data, ephemeral=False))
            else:
                (written,) = yield from read(Put(ASSIGNMENT, data, version))
            current = due
        if current is not None:
            self._report_gaps(current)
        return not isinstance(written, Refused)

    def _live(self) -> Steps[dict[str, WorkerDocument] | None]:
        """Return the live workers whose nodes can be read; None if they cannot be listed."""
        (listed,) = yield from read(Children(WORKERS, watch=True))
        if isinstance(listed, Refused):
            return None
        workers = sorted(cast("list[str] | None", listed) or ())
        nodes = yield from read(*(Get(worker_path(name), watch=True) for name in workers))
        live: dict[str, WorkerDocument] = {}
        for name, node in zip(workers, cast("list[Node]", nodes), strict=True):
            try:
                if isinstance(node, Refused):
                    text = f"worker {name} gets no slots: the leader has no permission to read its node"
                    self._problems.note(f"worker {name}", f"{text}; do their logins differ?")
                elif node is not None and node[1].session == 0:
                    path = self._budget.chroot + worker_path(name)
                    text = f"worker {name} gets no slots: {path} is not ephemeral, as in a copied tree; delete it"
                    self._problems.note(f"worker {name}", text)
                elif node is not None:
                    live[name] = WorkerDocument.from_json(node[0])
            except UnreadableDocumentError as error:
                self._problems.note(f"worker {name}", f"worker {name} gets no slots: {error}")
        return live

    def _registered(self, live: Mapping[str, WorkerDocument]) -> Steps[tuple[dict[str, int], frozenset[str]]]:
        """Read the definitions of consumed topics, in every round: a topic may have been deleted and recreated."""
        (listed,) = yield from read(Children(TOPICS, watch=True))
        consumed = {topic for worker in live.values() for topic in worker.topics}
        known = {topic_name(node) for node in listed} if isinstance(listed, list) else consumed
        topics = sorted(consumed & known)
        nodes = yield from read(*(Get(topic_path(topic)) for topic in topics))
        slots: dict[str, int] = {}
        unreadable: set[str] = set()
        for topic, node in zip(topics, cast("list[Node]", nodes), strict=True):
            try:
                if isinstance(node, Refused):
                    unreadable.add(topic)
                elif node is not None:
                    slots[topic] = slots_from_definition(node[0])
            except UnreadableDocumentError as error:
                unreadable.add(topic)
                self._problems.note(f"definition {topic}", f"slots of topic {topic} get no new owners: {error}")
        return slots, frozenset(unreadable)

    def _report_gaps(self, due: Assignment) -> None:
        """Report topics that do not fit into the assignment, and slots that fit no worker's session."""
        long = [topic for topic in self._topics if topic not in due.topics]
        if long:
            names = ", ".join(long[:10]) + (f" and {len(long) - 10} more" if len(long) > 10 else "")
            most, instead = "", "distribute the topics over several chroots"
            if self.most_slots < NO_LIMIT.limit:
                most, instead = f" or has more than {self.most_slots:,} slots", "ZooKeeper"
            self._problems.note(
                "long",
                f"the assignment does not fit into {self.limit} bytes{most}. {len(long)} topics are omitted, so their"
                f" slots get no new owners: {names}. Use fewer slots, or {instead}",
            )
        ownerless = {topic: owners.count(None) for topic, owners in due.topics.items() if None in owners}
        if ownerless:
            self._problems.note(
                "ownerless",
                f"{sum(ownerless.values())} slots of {len(ownerless)} topics have no owner, for example of"
                f" {min(ownerless)}: {self._budget.advice()}",
            )
