"""The accounts of a topic during a run of the demo, from what Redis counted. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from rmq._model.figures import TopicStats


@dataclass(frozen=True, slots=True)
class Account:
    """What a topic took in and what became of it since the demo began.

    Attributes:
        topic: Topic name.
        accepted: Messages accepted.
        merged: Those of them that merged with another one.
        delivered: Deliveries, retries among them.
        retried: Failed deliveries that were to be repeated.
        acked: Messages done.
        cancelled: Messages taken out by their sender.
        dead: Messages that died.
        backlog: Messages in store now.
        due: Those of them that are due now.
        in_flight: Messages in a handler's hands now.
        waiting: Messages that wait for their retry now.
        found: Messages that an earlier run had left in the topic.
    """

    topic: str
    accepted: int
    merged: int
    delivered: int
    retried: int
    acked: int
    cancelled: int
    dead: int
    backlog: int
    due: int
    in_flight: int
    waiting: int
    found: int

    @classmethod
    def between(cls, before: TopicStats, now: TopicStats) -> Account:
        """Return the account from one reading to another."""

        def grown(name: str) -> int:
            return now.total(name) - before.total(name)

        return cls(
            topic=now.topic.name,
            accepted=grown("accepted"),
            merged=grown("merged"),
            delivered=grown("delivered"),
            retried=grown("retried"),
            acked=grown("acked"),
            cancelled=grown("cancelled"),
            # what somebody removed from the dead meanwhile died as well
            dead=now.dead - before.dead + grown("purged") + grown("trimmed"),
            backlog=now.backlog,
            due=now.due_now,
            in_flight=now.in_flight,
            waiting=now.waiting,
            found=before.backlog + before.in_flight + before.waiting,
        )

    @property
    def left(self) -> int:
        """Messages that are neither done nor dead: in store, prepare or retry."""
        return self.backlog + self.in_flight + self.waiting

    @property
    def missing(self) -> int:
        """0, always: accepted - merged = acked + dead + cancelled, once nothing is left."""
        return self.found + self.accepted - self.merged - self.acked - self.dead - self.cancelled - self.left

    @property
    def settled(self) -> bool:
        """Whether nothing is left and nothing is missing."""
        return self.left == self.missing == 0


def total(accounts: Iterable[Account]) -> Account:
    """Return the sum of some accounts, at least one."""
    rows = [astuple(account)[1:] for account in accounts]
    return Account("all", *map(sum, zip(*rows, strict=True)))
