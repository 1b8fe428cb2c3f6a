"""Dead letters: messages that failed permanently, with their errors. They can be listed, sent again and deleted."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice
from numbers import Real
from operator import attrgetter
from typing import Any, Generic, TypeVar

from rmq._admin import stream_view
from rmq._admin.calls import dead as dead_
from rmq._admin.calls import viewing
from rmq._admin.calls.dead import Turn, Untold
from rmq._admin.messages import DeadEntry, DeadMessage
from rmq._admin.notices import DeadNotices, DeadNotifier
from rmq._admin.view import most
from rmq._broker.claims import NACK_BATCH
from rmq._model.display import brief, counted
from rmq._model.encoding import checked_priority
from rmq._model.entries import checked_group
from rmq._model.handlers import check_plain, check_takes_one
from rmq._model.replies import Redriven
from rmq._model.times import MAX_SCORE, Duration, Instant, due_ms, duration_ms, instant_ms, monotonic_s
from rmq._model.topics import Topic
from rmq._registry.audit import Audit, Progress, confirm_all
from rmq._transport.call import Call
from rmq._transport.connections import Connections, call_in_parts, call_slots
from rmq.errors import InvalidValueError, SendError

D = TypeVar("D", bound=DeadMessage)


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Selects the dead messages that meet all conditions; without conditions, all dead messages.

    Attributes:
        contents: The contents to select, in bytes.
        matching: Pattern for the content as text, with `*`, `?` and `[...]`.
        error_type: Type of the last error, such as `ValueError`.
        died_after: Earliest time of death, inclusive: an aware `datetime`.
        died_before: Latest time of death, exclusive: an aware `datetime`.

    Examples:
        >>> topic = client.producer(Topic("jobs", TopicType.PRIORITY)).topic
        >>> client.dead(topic).count(DeadFilter(matching="job:*", error_type="TimeoutError"))
        0
    """

    contents: frozenset[bytes] | None = None
    matching: str | None = None
    error_type: str | None = None
    died_after: Instant | None = None
    died_before: Instant | None = None

    def __call__(self, message: DeadMessage) -> bool:
        """Return whether a dead message is selected."""
        return (
            (self.contents is None or message.content in self.contents)
            and (self.matching is None or fnmatchcase(message.text, self.matching))
            and (self.error_type is None or message.error_type == self.error_type)
            and (self.died_after is None or message.died_ms >= instant_ms(self.died_after, "died_after"))
            and (self.died_before is None or message.died_ms < instant_ms(self.died_before, "died_before"))
        )


ALL = DeadFilter()


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """Result of a redrive.

    Attributes:
        redriven: Number of messages that were sent again and did not merge.
        merged: Number of messages that merged with one of the same content in the backlog.
        absent: Number of messages that had been removed in the meantime.

    Examples:
        >>> topic = client.producer(Topic("jobs", TopicType.PRIORITY)).topic
        >>> client.dead(topic).redrive()
        RedriveResult(redriven=0, merged=0, absent=0)
    """

    redriven: int = 0
    merged: int = 0
    absent: int = 0


class Dead(Generic[D]):
    """The dead messages of a topic, or the dead entries of a group."""

    def __init__(
        self, connections: Connections, topic: Topic, actor: str | None = None, group: str | None = None
    ) -> None:
        self._connections, self._group = connections, group
        self._about = "" if group is None else f"group {group}: "
        self._audit = Audit(connections, topic, actor)
        self.topic = topic

    def list(self, where: DeadFilter = ALL, limit: int | None = None) -> Iterator[D]:
        """Yield up to `limit` dead messages, by default all: slot by slot, oldest death first.

        On a stream topic, `contents` and `matching` of the filter compare `DeadEntry.content`.

        Raises:
            InvalidValueError: `where` is not a `DeadFilter`, or `limit` is not a whole number of 0 or more.
        """
        check_filter(where)
        dead = chain.from_iterable(map(self._dead_of, range(self.topic.slots)))
        return islice(filter(where, dead), most(limit, "limit"))

    def _dead_of(self, slot: int) -> Iterator[D]:
        start = 0
        while page := self._page(slot, start):
            yield from page
            start += len(page)

    def count(self, where: DeadFilter = ALL) -> int:
        """Return the number of selected dead messages. Without conditions Redis counts them, and none is read.

        Raises:
            InvalidValueError: `where` is not a `DeadFilter`.
        """
        if where != ALL:
            return sum(1 for _ in self.list(where))
        topic, group = self.topic, self._group

        def sizes(slot: int) -> Call[Any]:
            return viewing.stats(topic, slot) if group is None else stream_view.group_stats(topic, slot, group)

        return sum(stats.dead for stats in call_slots(self._connections, range(topic.slots), sizes))

    def purge(self, where: DeadFilter = ALL, *, limit: int | None = None, progress: Progress | None = None) -> int:
        """Delete dead messages, and return their number. On a stream topic, the entries stay in the stream.

        Arguments as for `redrive`.

        Raises:
            InvalidValueError: `where` is not a `DeadFilter`, or `limit` is not a whole number of 0 or more.

        Guarantee: atomic per call of up to 100 messages. Messages that die while this runs are not deleted.
        """
        check_filter(where)
        dropped, left = 0, most(limit, "limit")
        with self._audit.step("purge dead", self._about + meaning(where, limit), progress) as note:
            for slot, dead in self._chosen(where, left, NACK_BATCH, ()):
                names = [dead_.name_of(message) for message in dead]
                dropped += self._connections.run(dead_.purge_dead(self.topic, slot, names, group=self._group))
                note(f"dropped {dropped}", dropped)
            confirm_all(self._connections, self.topic)
        return dropped

    def on_dead(
        self, tell: Callable[[builtins.list[D]], object], *, name: str = "on_dead", every_s: float = 5.0
    ) -> DeadNotices:
        """Call a function with every message that dies, whichever process it dies in.

        Args:
            tell: Called with 1 to 100 dead messages of a slot, oldest death first, in a separate thread: a `Webhook`,
                or a function, which should return within a minute.
            name: Name of the subscription, 1 to 64 characters of `A-Z a-z 0-9 . _ -`. Of the processes that use the
                same name, one calls its function; when it ends, another one takes over. Each name is notified of all
                deaths after its first use: a name that was used before continues where it stopped.
            every_s: Seconds between two checks, 0.01 to a day. A check costs one script call per slot.

        Returns:
            An object that calls the function until it, or the client, is closed.

        Raises:
            InvalidValueError: `name` is invalid, `every_s` is out of range, or `tell` is an async function or does not
                take one argument.

        Guarantee: each message is passed at least once. Messages for which `tell` raised an error are passed again, and
            so are the last ones after a crash. Messages that were purged, trimmed or redriven before a check are not
            passed.
        """
        check_plain(tell, "tell")
        check_takes_one(tell, "tell", "a list of DeadMessage")
        notifier = DeadNotifier(self._connections, self.topic, self._unnotified_call, tell, name=name, every_s=every_s)
        return DeadNotices(notifier.begin())

    def _redrive(
        self,
        where: DeadFilter,
        limit: int | None,
        build: Callable[[int, Sequence[bytes]], Call[list[Any]]],
        progress: Progress | None,
        per_second: float | None = None,
    ) -> RedriveResult:
        """Send the selected dead messages again; `build` returns the call for the names of some in a slot.

        In the result of the call, `None` stands for an entry that stays dead.
        """
        left = most(limit, "limit")
        counts, stays = dict.fromkeys(Redriven, 0), list[D]()
        started_s, done = monotonic_s(), 0
        size = NACK_BATCH if per_second is None else max(1, int(min(NACK_BATCH, per_second / 10)))
        check_filter(where)
        with self._audit.step("redrive", self._about + meaning(where, limit), progress) as note:
            for slot, dead in self._chosen(where, left, size, stays):
                if per_second is not None:
                    self._connections.runtime.sleep(max(0.0, started_s + done / per_second - monotonic_s()))
                names = [dead_.name_of(message) for message in dead]
                answers = call_in_parts(self._connections, partial(build, slot), names)
                stays += [message for message, answer in zip(dead, answers, strict=False) if answer is None]
                for answer in filter(None, answers):
                    counts[answer] += 1
                done += len(dead)
                note(", ".join(f"{number} {answer.value}" for answer, number in counts.items() if number), done)
            confirm_all(self._connections, self.topic)
        result = RedriveResult(counts[Redriven.DONE], counts[Redriven.MERGED], counts[Redriven.ABSENT])
        if stays:
            number = counted(len(stays), "trimmed entry", "trimmed entries")
            first = f"{number} stayed dead, the first is {dead_.name_of(stays[0]).decode()} in slot {stays[0].slot}"
            text = f"topic {self.topic.name}, {self._about}{first}: more than 3,949 fields cannot be copied"
            raise SendError(text, topic=self.topic.name, stored=result.redriven, not_stored=tuple(stays))
        return result

    def _chosen(self, where: DeadFilter, left: int, size: int, stays: Sequence[D]) -> Iterator[tuple[int, Sequence[D]]]:
        """Yield a slot and some of its selected dead messages.

        Before the next step the caller removes them, or adds to `stays` those that it leaves.
        """
        # read all clocks before the first page, and per slot: the clocks of a cluster's nodes may differ
        begun_ms = call_slots(self._connections, range(self.topic.slots), self._clock_call)
        for slot, from_ms in enumerate(begun_ms):
            start = 0
            while left > 0 and (page := self._page(slot, start, size)):
                # messages that died since then stay; a death in the future happened before the clock was set back
                to_ms = from_ms
                if any(message.died_ms > from_ms for message in page):
                    to_ms = self._connections.run(self._clock_call(slot))
                before = (message for message in page if not from_ms < message.died_ms <= to_ms)
                chosen, stayed = list(islice(filter(where, before), left)), len(stays)
                if chosen:
                    yield slot, chosen
                left -= len(chosen)
                start += len(page) - len(chosen) + len(stays) - stayed

    def _unnotified_call(self, slot: int, turn: Turn, limit: int) -> Call[Untold[D]]:
        return dead_.untold(self.topic, slot, turn, limit, self._group)

    def _clock_call(self, slot: int) -> Call[int]:
        stats = viewing.stats if self._group is None else stream_view.stats
        return stats(self.topic, slot).then(attrgetter("now_ms"))

    def _page(self, slot: int, start: int, size: int = NACK_BATCH) -> Sequence[D]:
        return self._connections.run(dead_.list_dead(self.topic, slot, start, size, self._group))


class DeadLetters(Dead[DeadMessage]):
    """The dead messages of one topic.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> [delivery.bury("no photo") for delivery in client.consumer(jobs).poll(timeout=5)]
        [True]
        >>> client.dead(jobs).count(), client.dead(jobs).redrive().redriven, client.dead(jobs).count()
        (1, 1, 0)
    """

    def redrive(
        self,
        where: DeadFilter = ALL,
        *,
        limit: int | None = None,
        per_second: float | None = None,
        priority: int | None = None,
        due_in: Duration | None = None,
        progress: Progress | None = None,
    ) -> RedriveResult:
        """Send dead messages again, with their bodies and all retries.

        Args:
            where: Selects the messages; all by default. Messages that die while this runs are not sent.
            limit: Maximum number of messages; unlimited by default.
            per_second: Maximum number of messages per second; unlimited by default.
            priority: For PRIORITY topics: priority of the messages; the lowest by default.
            due_in: For time topics: delay until they are due, a `timedelta` or a text such as "5m"; at once by default.
            progress: Called with the number of messages processed so far.

        Returns:
            Numbers of messages sent again, merged with one in the backlog, and removed in the meantime.

        Raises:
            InvalidValueError: `priority` is given on a time topic or `due_in` on a PRIORITY topic, a number is out of
                range, or `where` is not a `DeadFilter`.
            SendError: Redis is full; the message stays dead.

        Guarantee: atomic per call of up to 100 messages. If the content is in the backlog already, the message there
            keeps its body, which is newer, or with the topic's `merge` the two values are combined. It keeps its
            priority or due time unless `priority` or `due_in` is given.
        """
        score = new_score(self.topic, priority, due_in)
        overwrite = priority is not None or due_in is not None
        number = isinstance(per_second, Real) and not isinstance(per_second, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if per_second is not None and not (number and 0 < per_second < MAX_SCORE):
            raise InvalidValueError(f"per_second is {per_second!r}; it must be more than 0 and below 2^53, or None")

        def build(slot: int, contents: Sequence[bytes]) -> Call[list[Redriven]]:
            return dead_.redrive(self.topic, slot, score, overwrite=overwrite, contents=contents)

        return self._redrive(where, limit, build, progress, per_second)


class GroupDead(Dead[DeadEntry]):
    """The dead entries of one group of a stream topic.

    Examples:
        >>> clicks = client.producer(Topic("clicks", TopicType.STREAM)).topic
        >>> client.stream(clicks).add_group("billing")
        >>> client.stream(clicks).dead("billing").count()
        0
    """

    def __init__(self, connections: Connections, topic: Topic, group: str, actor: str | None = None) -> None:
        super().__init__(connections, topic, actor, checked_group(group))
        self.group = group

    def redrive(
        self, where: DeadFilter = ALL, *, limit: int | None = None, progress: Progress | None = None
    ) -> RedriveResult:
        """Deliver dead entries again, to this group only, with all retries.

        Arguments as for `DeadLetters.redrive`.

        Returns:
            Numbers of entries redelivered, and removed in the meantime; `merged` is 0, since streams do not merge.

        Raises:
            InvalidValueError: `where` is not a `DeadFilter`, or `limit` is not a whole number of 0 or more.
            SendError: Redis is full; the entry stays dead. Or trimmed entries have more than 3,949 fields, so
                that they cannot be copied: those in `not_stored` stay dead, and the others are redelivered.

        Guarantee: atomic per call of up to 100 entries; safe to repeat. An entry that has been trimmed from the stream
            is appended again as a copy, which the other groups skip.
        """

        def build(slot: int, ids: Sequence[bytes]) -> Call[list[Redriven | None]]:
            return dead_.redrive_entries(self.topic, slot, self.group, ids)

        return self._redrive(where, limit, build, progress)


def new_score(
    topic: Topic, priority: int | None, due_in: Duration | None, fixed_time: Instant | None = None
) -> tuple[str, int]:
    """Return kind and value of a message's new score: by default due at once, or the lowest priority.

    Raises `InvalidValueError` for a priority on a time topic, a time on a PRIORITY topic, or a value out of range.
    """
    kind = f"topic {topic.name} is {topic.type.name}"
    if topic.type.timed:
        if priority is not None:
            raise InvalidValueError(f"priority is {priority!r:.80}; {kind} and has due times, not priorities")
        if fixed_time is not None:
            return "at", due_ms(fixed_time, "fixed_time")
        return "after", 0 if due_in is None else duration_ms(due_in, "due_in")
    if due_in is not None or fixed_time is not None:
        raise InvalidValueError(f"{kind} and has priorities, not due times; omit the due time")
    return "priority", topic.priorities[0] if priority is None else checked_priority(topic, priority)


def check_filter(where: DeadFilter) -> None:
    """Raise `InvalidValueError` unless `where` is a `DeadFilter`."""
    if not isinstance(where, DeadFilter):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(
            f"where is {brief(where)}; it must be a DeadFilter, such as DeadFilter(error_type='ValueError')"
        )


def meaning(where: DeadFilter, limit: int | None) -> str:
    """Describe the selected dead messages, for the audit log."""
    conditions = [
        f"{field.name}={getattr(where, field.name)!r:.200}"
        for field in fields(where)
        if getattr(where, field.name) is not None
    ]
    return " ".join([*(conditions or ["all dead messages"]), *([] if limit is None else [f"limit={limit}"])])
