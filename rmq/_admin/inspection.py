"""Read-only views of a topic. Bounded, and safe on a loaded server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from rmq._admin.calls import dead as dead_
from rmq._admin.calls import viewing
from rmq._admin.figures import TopicStats
from rmq._admin.messages import (
    SECTIONS,
    AnyPlace,
    AuditLine,
    DeadReasons,
    PeekedMessage,
    Place,
    SearchPage,
    Whereabouts,
)
from rmq._admin.search import glob_of, search
from rmq._admin.view import View, locate, most
from rmq._broker.claims import MAX_BATCH
from rmq._model.display import brief
from rmq._model.messages import Payload
from rmq._model.settings import check_whole
from rmq._model.topics import checked_slots
from rmq._model.workers import WorkerInfo
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError, ScriptFailedError

_MOST_SAMPLED_SLOTS = 64


class Inspection(View):
    """Reads one topic. The argument `slots` of its methods limits them to some slots; all by default.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> view = client.inspect(jobs)
        >>> view.stats().backlog, [message.text for message in view.peek(limit=10)]
        (1, ['job:1'])
    """

    def stats(self, slots: Sequence[int] | None = None) -> TopicStats:
        """Return the topic's sizes and totals.

        Raises:
            InvalidValueError: The topic does not have one of the slots.
        """
        figures = self._per_slot(partial(viewing.stats, self.topic), slots, viewing.joined_stats)
        return TopicStats(self.topic, tuple(figures))

    def peek(self, place: Place = "store", limit: int = 10, slots: Sequence[int] | None = None) -> list[PeekedMessage]:
        """Return up to `limit` messages per slot (1 to 1,000) in order of delivery, without claiming them.

        `place` is `store` (the backlog), `prepare` (in flight) or `retry` (waiting for a retry).

        Raises:
            InvalidValueError: A slot or `place` is invalid, or `limit` is out of range.
        """
        chosen = checked_slots(self.topic, slots)
        _check_page(place, "limit", limit)
        answers = self._per_slot(lambda slot: viewing.peek(self.topic, slot, place, 0, limit), chosen)
        messages: list[PeekedMessage] = []
        for slot, (page, more) in zip(chosen, answers, strict=True):
            messages += page
            if more:  # large bodies take several calls
                messages += islice(self.pages(slot, place, limit, len(page)), limit - len(page))
        if place == "prepare" and messages:
            workers = self._workers()
            messages = [_with_handler(message, workers) for message in messages]
        return messages

    def pages(self, slot: int, place: Place, page: int = 1_000, start: int = 0) -> Iterator[PeekedMessage]:
        """Yield all messages of a slot in one state, page by page.

        While messages enter or leave this state, others may be missed or returned twice. `place` and errors as for
        `peek`. A page has 1 to 1,000 messages; the first `start` messages are skipped.
        """
        checked_slots(self.topic, [slot])
        _check_page(place, "page", page)
        return self._pages(slot, place, page, most(start, "start"))

    def _pages(self, slot: int, place: Place, page: int, start: int) -> Iterator[PeekedMessage]:
        while True:
            messages, more = self._connections.run(viewing.peek(self.topic, slot, place, start, page))
            yield from messages
            if len(messages) < page and not more:
                return
            start += len(messages)

    def find(self, content: Payload, slot_basis: Payload | None = None, everywhere: bool = False) -> Whereabouts:
        """Return the present states of a message. If it has none, `gone` of the result is true.

        The message is looked up in the slot of its slot basis, by default its content. If it is not there, `everywhere`
        continues in all other slots.
        """
        name, home = locate(self.topic, content, slot_basis)
        place = self._connections.run(viewing.find(self.topic, home, name))
        if place.gone and everywhere:
            others = [slot for slot in range(self.topic.slots) if slot != home]
            answers = self._per_slot(lambda slot: viewing.find(self.topic, slot, name), others)
            place = next((answer for answer in answers if not answer.gone), place)
        if place.in_flight is None:
            return place
        workers = self._workers()
        holders = tuple(worker.name for worker in workers if worker.holds(self.topic.name, place.slot))
        return replace(place, holders=holders, in_flight=_with_handler(place.in_flight, workers))

    def search(
        self,
        pattern: Payload | None = None,
        *,
        prefix: Payload | None = None,
        places: Collection[AnyPlace] = SECTIONS,
        slots: Sequence[int] | None = None,
        cursor: str | None = None,
        limit: int = 50,
        budget: int = 10_000,
    ) -> SearchPage:
        """Search messages by content, page by page.

        Args:
            pattern: Pattern for the content, with Redis' `*`, `?` and `[...]`; any content by default.
            prefix: Literal start of the content, instead of a pattern.
            places: States to search: `store`, `prepare` (in flight), `retry`, `dead`; all by default.
            slots: Only these slots; all by default. Must be the same for every page.
            cursor: Cursor of the previous page; `None` for the first page.
            limit: Maximum number of messages per page, 1 to 1,000.
            budget: Approximate number of messages to examine per page, 1 to 1,000,000, even if none matches.

        Returns:
            A page. Its `cursor` is `None` on the last page.

        Raises:
            InvalidValueError: Both `pattern` and `prefix` are given, a state, slot or cursor is invalid, or a number is
                out of range.

        Guarantee: messages that exist from the first page to the last are returned at least once.
        """
        glob = glob_of(pattern, prefix)
        for place in places:
            if place not in SECTIONS:
                raise InvalidValueError(f"place is {place!r}; it must be store, prepare, retry or dead")
        check_whole("limit", limit, MAX_BATCH)
        check_whole("budget", budget, 1_000_000)
        chosen = checked_slots(self.topic, slots)
        return search(self._connections, self.topic, glob, places, chosen, cursor, limit, budget)

    def dead_reasons(self, sample: int = 2_000, stats: TopicStats | None = None) -> DeadReasons:
        """Return the numbers of dead messages by type of error, from a sample of at most 64 slots.

        Passing `stats` of all slots saves a round trip.

        Raises:
            InvalidValueError: `sample`, the approximate maximum of messages to examine, is not 1 to 10,000, or `stats`
                is not a `TopicStats` of this topic.
        """
        check_whole("sample", sample, 10_000)
        if stats is not None and (not isinstance(stats, TopicStats) or stats.topic.name != self.topic.name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"stats is {brief(stats, 100)}; it must be a result of `Inspection.stats` for topic {self.topic.name}",
                topic=self.topic.name,
            )
        dead = {slot.slot: slot.dead for slot in (stats or self.stats()).slots if slot.dead}
        chosen = sorted(dead)[:: max(1, -(-len(dead) // _MOST_SAMPLED_SLOTS))]
        among = sum(dead[slot] for slot in chosen)
        shares = {slot: max(1, min(viewing.MOST_REASONS, -(-sample * dead[slot] // among))) for slot in chosen}
        answers = self._per_slot(lambda slot: dead_.dead_reasons(self.topic, slot, shares[slot]), chosen)
        counts = sum((counts for _, counts in answers), Counter[str]())
        total = sum(dead.values()) - among + sum(size for size, _ in answers)
        return DeadReasons(total, counts.total(), dict(counts.most_common()))

    def audit(self, limit: int = 50, slots: Sequence[int] | None = None) -> list[AuditLine]:
        """Return the audit log, newest entry first. About the last 1,000 entries of each slot are kept.

        Slot 0 has the actions on all slots, and the purges, redrives and cancellations of many messages.

        Raises:
            InvalidValueError: `limit` is not 1 to 1,000, or the topic does not have one of the slots.
        """
        return self._audit_lines(limit, slots)

    def _workers(self) -> list[WorkerInfo]:
        try:
            return read_workers(self._connections)
        except ScriptFailedError:  # no permission to read them
            return []


def _with_handler(message: PeekedMessage, workers: Sequence[WorkerInfo]) -> PeekedMessage:
    """Return a message in flight with the worker that handles it, if a worker reports it."""
    for worker in workers:
        if (handled_ms := worker.handles(message.topic, message.slot, message.content)) is not None:
            return replace(message, handled_by=worker.name, handled_ms=handled_ms)
    return message


def read_workers(connections: Connections) -> list[WorkerInfo]:
    """Return the processes with running listeners, sorted by name."""
    workers, rest = connections.run(viewing.workers())
    while rest:
        more, rest = connections.run(viewing.workers(rest))
        workers += more
    return sorted(workers, key=lambda worker: worker.name)


def _check_page(section: object, name: str, size: int) -> None:
    if section not in ("store", "prepare", "retry"):
        raise InvalidValueError(f"place is {section!r}; it must be store, prepare or retry")
    check_whole(name, size, MAX_BATCH)
