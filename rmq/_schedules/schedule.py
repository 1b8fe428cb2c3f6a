"""Schedules: what is sent again and again, and when. Pure.

A schedule is a message on the topic `RECURRING`: its content is the schedule's name, its score the next due time, and
its body a document with what to send and when. The member of the set is the schedule, so it exists once, and only the
worker that has claimed it computes its next time. All times are those of Redis' clock. A message that comes back after
its lease has expired, or after a failure, has lost its due time. Its due time then follows from the last one that was
sent, which is kept beside the topic, or from the time at which the schedule was put (`since_ms`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice, takewhile
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from rmq._broker.keys import RECURRING_TOPIC
from rmq._model.display import brief
from rmq._model.encoding import Encoder
from rmq._model.messages import FixedTimeMessage, Message, PriorityMessage, RangeMergeMessage, StreamMessage
from rmq._model.schema import new_document, reading
from rmq._model.settings import check_flag, check_name, json_of, settings_of
from rmq._model.times import Duration, Instant, duration_ms, duration_text, instant_ms, moment_at, moment_of
from rmq._model.topics import Topic, TopicType
from rmq.errors import InvalidMessageError, InvalidValueError, PayloadError

MAX_SCHEDULES = 10_000
MAX_SPEC_BYTES = 4_096
MOST_MISSED = 1_000
"""Maximum number of missed times that `catch_up` sends: the latest ones."""

SCHEDULED = "{scheduled}"
"""Stands for the due time, in ISO 8601, in the content and the body of a schedule."""

_LONGEST_MS = 4_102_444_799_999
"""A due time whose text is as long as that of any other: runs by hand have milliseconds."""

RECURRING = Topic(
    RECURRING_TOPIC,
    TopicType.FIXED_TIME,
    max_retries=999,
    lease="30s",
    max_content_bytes=128,
    max_body_bytes=2 * MAX_SPEC_BYTES,
    max_backlog=MAX_SCHEDULES,
)
"""The topic of the schedules. Its retries are used up only by workers that die, not by failures."""

REMOVED = b"removed"
"""Body of a schedule that was removed while a worker had it in flight; the worker that gets it next acks it."""


def check_schedule_name(name: str) -> None:
    """Raise `InvalidValueError` unless a name is one of a schedule."""
    check_name("name of a schedule", name, ":")


class SchedulePut(Enum):
    """Result of `Schedules.put`.

    Examples:
        >>> [each.value for each in SchedulePut]
        ['new', 'changed', 'unchanged', 'outranked', 'over']
    """

    NEW = "new"
    """There was no schedule of this name."""
    CHANGED = "changed"
    """It replaces an earlier one; its next due time is counted from now."""
    UNCHANGED = "unchanged"
    """The same schedule already exists; its due time is unchanged."""
    OUTRANKED = "outranked"
    """A schedule of this name with a higher `version` exists and is kept."""
    OVER = "over"
    """Its last due time has passed: nothing is stored, and an existing schedule of this name is kept."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A message that is sent again and again, at times that `cron` or `every` gives.

    Args:
        name: Identifies the schedule: 1 to 128 characters of `A-Z a-z 0-9 . _ : -`.
        topic: The topic to send to, or its name.
        content: Content of the messages. `{scheduled}` in it or in `body` stands for the due time in ISO 8601, in the
            zone `tz`.
        cron: Five fields, minute to day of the week, as Debian's cron reads them. Requires the extra `rmq[cron]`.
        every: Instead of `cron`: an interval of 1 s or more, a `timedelta` or a text such as "1h". The times are its
            multiples since `start`.
        tz: The IANA time zone of `cron` and of `{scheduled}`, such as "Europe/Berlin"; "UTC" by default.
        catch_up: After a standstill, send a message for each missed due time, up to the latest 1,000, instead of one
            message for all of them.
        start: Earliest due time, an aware `datetime`. By default `every` counts from 1970-01-01 UTC.
        until: Latest due time, an aware `datetime`; `None` for no end.
        version: A whole number from 0: a schedule with a lower version, or without one, does not replace this one.
        body: Body of the messages, a text; `None` for no body.
        priority: Priority of the messages, required on PRIORITY topics; `None` on others.

    Raises:
        InvalidValueError: A value breaks its rule, the schedule is never due, or it has more than 4,096 bytes as JSON.

    Examples:
        >>> reports = Topic("reports", TopicType.FIXED_TIME)
        >>> client.schedules.put(Schedule("report", reports, "report:{scheduled}", every="1h", catch_up=True)).name
        'NEW'
    """

    name: str
    topic: Topic | str
    content: str
    _: KW_ONLY
    cron: str | None = None
    every: Duration | None = None
    tz: str = "UTC"
    catch_up: bool = False
    start: Instant | None = None
    until: Instant | None = None
    version: int | None = None
    body: str | None = None
    priority: int | None = None
    since_ms: int = field(default=0, init=False, repr=False, compare=False)
    """Redis' time at which it was put, epoch ms. Internal."""

    def __post_init__(self) -> None:
        check_schedule_name(self.name)
        if not isinstance(self.topic, Topic | str) or self.topic_name == RECURRING.name:  # pyright: ignore[reportUnnecessaryIsInstance]
            self._refuse("topic", self.topic, f"a Topic, or the name of a registered one, other than {RECURRING.name}")
        for name in ("content", "body"):
            if not (isinstance(text := getattr(self, name), str) and text) and (name == "content" or text is not None):
                self._refuse(name, text, "a text that is not empty")
        check_flag(f"catch_up of schedule {self.name}", self.catch_up)
        for name in ("version", "priority"):
            if (number := getattr(self, name)) is not None and (type(number) is not int or not 0 <= number < 2**53):
                self._refuse(name, number, "a whole number from 0 to 2^53 - 1, or None")
        self._check_zone()
        if (self.cron is None) == (self.every is None):
            raise InvalidValueError(f"schedule {self.name} must have either cron or every")
        self._set_times()
        if (size := len(self.to_json().encode(errors="replace"))) > MAX_SPEC_BYTES:
            raise InvalidValueError(f"schedule {self.name} has {size} bytes; the maximum is {MAX_SPEC_BYTES}")

    def _check_zone(self) -> None:
        try:
            ZoneInfo(self.tz)
        except (OSError, TypeError, ValueError):
            self._refuse("tz", self.tz, "a time zone such as Europe/Berlin")
        except KeyError:
            self._refuse(
                "tz", self.tz, "a zone that this machine knows, such as Europe/Berlin; else pip install tzdata"
            )

    def _set_times(self) -> None:
        """Check the times, and keep `every` as a `timedelta` and `start` and `until` in UTC, so that equals compare."""
        for name in ("start", "until"):
            if (moment := getattr(self, name)) is not None:
                object.__setattr__(self, name, moment_at(instant_ms(moment, f"{name} of schedule {self.name}")))
        if self.every is not None:
            if (every_ms := duration_ms(self.every, f"every of schedule {self.name}")) < 1_000:
                self._refuse("every", self.every, "1 s or more")
            object.__setattr__(self, "every", timedelta(milliseconds=every_ms))
        elif not isinstance(self.cron, str) or len(self.cron.split()) != 5:
            self._refuse("cron", self.cron, "five fields: minute, hour, day, month, day of the week")
        else:
            object.__setattr__(self, "cron", " ".join(self.cron.split()).upper())
        if (self.cron is None or find_spec("cronsim") is not None) and self.next_ms(0) is None:
            rule = "such that the schedule is due at least once"
            self._refuse("cron" if self.cron else "until", self.cron or self.until, rule)

    def _refuse(self, what: str, value: object, rule: str) -> None:
        raise InvalidValueError(f"{what} of schedule {self.name} is {brief(value)}; it must be {rule}")

    @property
    def topic_name(self) -> str:
        """Name of the topic to send to."""
        return self.topic if isinstance(self.topic, str) else self.topic.name

    @property
    def rule(self) -> str:
        """The rule of its due times, as text: `every 1h`, or `30 2 * * * Europe/Berlin`."""
        if isinstance(self.every, timedelta):
            return f"every {duration_text(self.every // timedelta(milliseconds=1))}"
        return f"{self.cron} {self.tz}"

    def next_ms(self, after_ms: int) -> int | None:
        """Return the first due time after `after_ms`, both in epoch ms; `None` if there is none.

        Raises:
            InvalidValueError: `cron` cannot be read, or the extra `rmq[cron]` is not installed.
        """
        return next(self._times(after_ms), None)

    def newest_missed_ms(self, due_ms: int, now_ms: int) -> int:
        """Return the due time at which `catch_up` continues: `due_ms`, or the oldest of the latest 1,000 missed."""
        least = self.every if isinstance(self.every, timedelta) else timedelta(minutes=1)  # from one time to the next

        def missed(since_ms: int) -> Iterator[int]:
            return takewhile(lambda time_ms: time_ms <= now_ms, self._times(since_ms))

        span_ms, latest = MOST_MISSED * (least // timedelta(milliseconds=1)), deque[int]()
        if now_ms - due_ms < span_ms or next(islice(missed(due_ms), MOST_MISSED - 1, None), None) is None:
            return due_ms
        while len(latest) < MOST_MISSED:  # it goes back until there are enough: after years most times need no look
            latest = deque(missed(max(due_ms, now_ms - span_ms)), MOST_MISSED)
            span_ms *= 2
        return latest[0]

    def _times(self, after_ms: int) -> Iterator[int]:
        start_ms = 0 if self.start is None else instant_ms(self.start, "start")
        until_ms = None if self.until is None else instant_ms(self.until, "until")
        after_ms = max(after_ms, start_ms - 1)
        if isinstance(self.every, timedelta):
            every_ms = self.every // timedelta(milliseconds=1)
            times = iter(range(after_ms + every_ms - (after_ms - start_ms) % every_ms, 2**53, every_ms))
        else:
            times = _cron_times(self, after_ms)
        return times if until_ms is None else takewhile(lambda time_ms: time_ms <= until_ms, times)

    def check_for(self, topic: Topic) -> None:
        """Check that a topic takes the messages of all due times; `topic` is the registered definition.

        Raises:
            InvalidMessageError: The topic does not take such messages.
            InvalidValueError: `priority` does not fit the type of the topic, `cron` cannot be read, or the extra
                `rmq[cron]`, which `cron` needs, is not installed.
        """
        self.next_ms(0)
        try:
            message: Any = self.message(topic, _LONGEST_MS)
            Encoder(topic).one(message)
            if topic.typed is not None:
                topic.decode(message.body and message.body.encode())
        except (InvalidMessageError, PayloadError) as error:
            text = f"topic {topic.name} does not take the messages of schedule {self.name}: {error}"
            rule = "The messages of a schedule have no version, and either a text as body or no body"
            raise InvalidMessageError(f"{text}. {rule}", topic=topic.name) from error

    def message(self, topic: Topic, due_ms: int) -> Message:
        """Return the message of a due time; `topic` is the registered definition.

        Raises:
            InvalidMessageError: The topic does not take such a message.
            InvalidValueError: `priority` does not fit the type of the topic.
        """
        moment = moment_at(due_ms).astimezone(ZoneInfo(self.tz))
        scheduled = moment.isoformat(timespec="milliseconds" if due_ms % 1_000 else "seconds")
        content = self.content.replace(SCHEDULED, scheduled)
        body = None if self.body is None else self.body.replace(SCHEDULED, scheduled)
        if (self.priority is None) == (topic.type is TopicType.PRIORITY):
            rule = "a priority" if self.priority is None else "None"
            self._refuse("priority", self.priority, f"{rule}, because topic {topic.name} is of type {topic.type.name}")
        match topic.type:
            case TopicType.PRIORITY:
                return PriorityMessage(content, self.priority or 0, body=body)
            case TopicType.FIXED_TIME:
                return FixedTimeMessage(content, delay="0s", body=body)
            case TopicType.STREAM:
                return StreamMessage(content, body=body)
            case TopicType.RANGE_MERGE:
                window_ms = 1 if topic.default_range_ms is None else None
                return RangeMergeMessage(content, time_range_ms=window_ms, body=body)

    def put_at(self, now_ms: int) -> Schedule:
        """Return a copy that records `now_ms`, epoch ms by Redis' clock, as the time at which it was stored."""
        put = replace(self)
        object.__setattr__(put, "since_ms", now_ms)
        return put

    def outranks(self, other: Schedule) -> bool:
        """Return whether this schedule has a higher version than `other`; one without a version ranks lowest."""
        return (-1 if self.version is None else self.version) > (-1 if other.version is None else other.version)

    def to_fields(self) -> dict[str, Any]:
        """Return the settings as JSON values, without the name and the time at which the schedule was stored."""
        stored = json_of(self) | {"topic": self.topic_name}
        del stored["name"]
        if self.version is not None:  # a document has a version, too
            stored["schedule_version"] = stored.pop("version")
        return stored

    def to_json(self) -> str:
        """Return the document that is stored as the body of the schedule."""
        return new_document({**self.to_fields(), "since_ms": self.since_ms}).to_json()


@lru_cache(maxsize=MAX_SCHEDULES)
def read_schedule(name: bytes, body: bytes | None) -> Schedule:
    """Parse a stored schedule. Cached: the body of a schedule changes only when it is put.

    Raises:
        UnreadableDocumentError: The body is for newer versions of RMQ only, or is not that of a schedule.
    """
    with reading(body or b"", f"schedule {name!r:.140}") as values:
        moments = {each: datetime.fromisoformat(values[each]) for each in ("start", "until") if each in values}
        given = {"name": name.decode(), "version": values.get("schedule_version"), **moments}
        return settings_of(Schedule, {**values, **given}).put_at(int(values["since_ms"]))


class Runs(NamedTuple):
    """What is kept beside the topic about the runs of a schedule, epoch ms; `None` where there was none.

    Attributes:
        due_ms: The last due time that was sent.
        sent_ms: When it was sent.
        asked_ms: When a run by hand was asked for that may not have been sent.
    """

    due_ms: int | None = None
    sent_ms: int | None = None
    asked_ms: int | None = None


def fields_of_runs(name: str) -> tuple[str, str]:
    """Return the fields with what is kept about the runs of a schedule: its last run, and when one was asked for."""
    return name, f"{name}/asked"  # no name has a slash


def read_runs(last: bytes | None, asked: bytes | None) -> Runs:
    """Parse the values of the fields of `fields_of_runs`."""
    asked_ms = int(asked) if asked is not None and asked.isdigit() else None
    try:
        due_ms, sent_ms = map(int, (last or b"").split())
    except ValueError:
        return Runs(asked_ms=asked_ms)
    return Runs(due_ms, sent_ms, asked_ms)


def due_after(schedule: Schedule, runs: Runs) -> int | None:
    """Return the due time of a schedule that has lost it, as it is after an expired lease or a failure.

    It is the first one after the last one that was sent; without `catch_up`, after the last send, since one message
    stands for all that were missed. If a run by hand was asked for before, and since the last send, it is that time.
    """
    sent_ms = runs.sent_ms or 0
    due_ms = schedule.next_ms(max(schedule.since_ms, runs.due_ms or 0, 0 if schedule.catch_up else sent_ms))
    asked_ms = runs.asked_ms
    if asked_ms is None or asked_ms <= sent_ms or asked_ms < schedule.since_ms:
        return due_ms
    return asked_ms if due_ms is None else min(asked_ms, due_ms)


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule in Redis, with its next and last due times.

    Attributes:
        schedule: The schedule; its topic is given by name.
        due_ms: Its next due time, epoch ms; in the past if it is late. `None` if none is left, or if it cannot be
            computed here because the extra `rmq[cron]` is not installed.
        now_ms: Redis' time of the reading, epoch ms.
        last_due_ms: The last due time whose message was sent, epoch ms; `None` if no message was sent yet.
        last_sent_ms: Time at which that message was sent, epoch ms; `None` if no message was sent yet.
        error: Error of the last attempt to send a message; empty if it succeeded.

    Examples:
        >>> reports = Topic("reports", TopicType.FIXED_TIME)
        >>> _ = client.schedules.put(Schedule("report", reports, "report", every="1h"))
        >>> [(each.name, each.last, each.late_ms) for each in client.schedules.list()]
        [('report', None, 0)]
    """

    schedule: Schedule
    due_ms: int | None
    now_ms: int
    last_due_ms: int | None = None
    last_sent_ms: int | None = None
    error: str = ""

    @property
    def name(self) -> str:
        """Name of the schedule."""
        return self.schedule.name

    @property
    def next(self) -> datetime | None:
        """The next due time, in UTC; `None` as for `due_ms`."""
        return moment_of(self.due_ms)

    @property
    def last(self) -> datetime | None:
        """The last due time whose message was sent, in UTC; `None` if no message was sent yet."""
        return moment_of(self.last_due_ms)

    @property
    def late_ms(self) -> int:
        """Time since the schedule became due, ms; 0 if it is not due yet, or if `due_ms` is `None`."""
        return 0 if self.due_ms is None else max(0, self.now_ms - self.due_ms)

    @property
    def last_late_ms(self) -> int | None:
        """Time from the last due time to the send of its message, ms; `None` if no message was sent yet."""
        sent_ms, due_ms = self.last_sent_ms, self.last_due_ms
        return None if sent_ms is None or due_ms is None else max(0, sent_ms - due_ms)


def _cron_times(schedule: Schedule, after_ms: int) -> Iterator[int]:
    """Yield the times of a cron rule after a moment, epoch ms.

    cronsim computes what the clock on the wall would show, without a zone; the changes of clocks are treated here, as
    Debian's cron does. A rule with a star for minutes or hours runs whenever the clock shows its time: in both of two
    equal hours, and not in one that is skipped. Any other rule runs once in two equal hours, in the first, and right
    after a skipped hour for all that was in it.
    """
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        text = f"schedule {schedule.name} has cron, which needs an extra: pip install 'rmq[cron]'"
        raise InvalidValueError(text) from None
    rule, zone = schedule.cron or "", ZoneInfo(schedule.tz)
    moments = _shown if any(part.startswith("*") for part in rule.split()[:2]) else _once
    moment: datetime | None = moment_at(after_ms)
    while moment is not None:
        start = moment.astimezone(zone)
        again = timedelta(hours=3) if start.fold == 0 and _has_two(start) else timedelta()
        first, found = start.replace(tzinfo=None, fold=0), list[datetime]()
        try:
            walls = CronSim(rule, first - again)
        except CronSimError as error:
            text = f"cron of schedule {schedule.name} is {rule!r}, which is not a cron rule: {error}"
            raise InvalidValueError(text) from None
        for wall in walls:
            found += [each for each in moments(wall.replace(tzinfo=zone)) if each > moment]
            if found and wall > first:
                break
        moment = min(found, default=None)
        if moment is not None:
            yield int(moment.timestamp()) * 1_000


def _has_two(local: datetime) -> bool:
    """Return whether the clock shows this local time twice, or never."""
    return local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset()


def _shown(local: datetime) -> list[datetime]:
    """Return the moments at which the clock shows a local time, in UTC: one, two, or none."""
    moments = {local.replace(fold=fold).astimezone(UTC) for fold in (0, 1)}
    return [
        each
        for each in moments
        if each.astimezone(local.tzinfo).replace(tzinfo=None, fold=0) == local.replace(tzinfo=None)
    ]


def _once(local: datetime) -> list[datetime]:
    """Return the first moment at which the clock shows a local time or, if it is skipped, a later one; in UTC."""
    if shown := _shown(local):
        return [min(shown)]
    moment = min(local.replace(fold=fold).astimezone(UTC) for fold in (0, 1))  # before the change
    while moment.astimezone(local.tzinfo).replace(tzinfo=None, fold=0) < local.replace(tzinfo=None):
        moment += timedelta(minutes=1)
    return [moment]
