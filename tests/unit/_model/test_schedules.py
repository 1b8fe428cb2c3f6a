"""When schedules are due: forty changes of clocks against a second implementation, and the values that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rmq import InvalidValueError, Schedule, Topic, TopicType, UnreadableDocumentError
from rmq._schedules import schedule as schedules
from rmq._schedules.schedule import MOST_MISSED, read_schedule

CHANGES = """
Europe/Berlin 2026-03-29, Europe/Berlin 2026-10-25, Europe/London 2026-03-29, Europe/London 2026-10-25
Europe/Lisbon 2026-03-29, Europe/Lisbon 2026-10-25, Atlantic/Azores 2026-03-29, Atlantic/Azores 2026-10-25
America/New_York 2026-03-08, America/New_York 2026-11-01, America/Los_Angeles 2026-03-08
America/Los_Angeles 2026-11-01, America/St_Johns 2006-04-02, America/St_Johns 2006-10-29
America/Sao_Paulo 2018-02-18, America/Sao_Paulo 2018-11-04, America/Havana 2026-03-08, America/Havana 2026-11-01
America/Santiago 2024-04-07, America/Santiago 2024-09-08, Asia/Beirut 2024-03-31, Asia/Beirut 2024-10-27
Asia/Tehran 2021-03-22, Asia/Tehran 2021-09-22, Africa/Cairo 2024-04-26, Africa/Cairo 2024-11-01
Africa/Casablanca 2024-03-10, Africa/Casablanca 2024-04-14, Australia/Sydney 2026-04-05
Australia/Sydney 2026-10-04, Australia/Lord_Howe 2026-04-05, Australia/Lord_Howe 2026-10-04
Pacific/Auckland 2026-04-05, Pacific/Auckland 2026-09-27, Pacific/Chatham 2026-04-05, Pacific/Chatham 2026-09-27
Antarctica/Troll 2026-03-29, Antarctica/Troll 2026-10-25, Europe/Moscow 2014-10-26, Asia/Pyongyang 2015-08-15
"""

RULES = (
    "30 2 * * *", "0 2 * * *", "30 0 * * *", "0 0 * * *", "0 3 * * *", "15,45 1-3 * * *", "0 */2 * * *", "10 */6 * * *",
    "0 * * * *", "30 * * * *", "*/30 * * * *", "*/20 * * * *", "7 0-4 * * 0", "0 12 * * 1-5", "0 0 1 * *",
)  # fmt: skip


def changes() -> list[tuple[str, datetime]]:
    rows = [row.split() for line in CHANGES.strip().splitlines() for row in line.split(", ")]
    return [(zone, datetime.fromisoformat(day).replace(tzinfo=UTC)) for zone, day in rows]


def brute_force(rule: str, zone: ZoneInfo, first: datetime, last: datetime) -> list[datetime]:
    """Walk over all minutes.

    Rules for certain hours and minutes run once: in the first of two equal hours, and right after a gap for what it
    swallowed. Rules with a star for minutes or hours run whenever the clock shows their time.
    """
    minutes, hours, days, months, weekdays = rule.split()
    by_the_clock = minutes.startswith("*") or hours.startswith("*")

    def matches(wall: datetime) -> bool:
        parts = (
            (minutes, wall.minute, 59), (hours, wall.hour, 23), (days, wall.day, 31), (months, wall.month, 12),
            (weekdays, wall.isoweekday() % 7, 6),
        )  # fmt: skip
        return all(value in numbers(part, highest) for part, value, highest in parts)

    found: list[datetime] = []
    before = first.astimezone(zone).replace(tzinfo=None)
    for moment, local, wall in minutes_of(zone, first, last):
        if by_the_clock:
            fits = matches(wall)
        else:
            gap = (wall - before) // timedelta(minutes=1)
            seen = range(gap if gap > 0 else 0)  # the minutes up to this one; none where the clock was set back
            fits = not local.fold and any(matches(wall - timedelta(minutes=back)) for back in seen)
        if fits:
            found.append(moment)
        before = wall
    return found


@cache
def minutes_of(zone: ZoneInfo, first: datetime, last: datetime) -> list[tuple[datetime, datetime, datetime]]:
    """Return each minute: in UTC, local, and what the clock shows."""
    moments = [first + timedelta(minutes=number) for number in range(1, (last - first) // timedelta(minutes=1) + 1)]
    rows = [(moment, moment.astimezone(zone)) for moment in moments]
    return [(moment, local, local.replace(tzinfo=None, fold=0)) for moment, local in rows]


@cache
def numbers(part: str, highest: int) -> set[int]:
    found: set[int] = set()
    for each in part.split(","):
        span, _, step = each.partition("/")
        low, _, high = span.partition("-")
        ends = (0, highest) if span == "*" else (int(low), int(high or low))
        found |= set(range(ends[0], ends[1] + 1, int(step or 1)))
    return found


def times_of(schedule: Schedule, first: datetime, last: datetime) -> Iterator[datetime]:
    """Return what a worker would compute: each time from the one before."""
    time_ms: int | None = int(first.timestamp() * 1_000)
    while (time_ms := schedule.next_ms(time_ms)) is not None and time_ms <= last.timestamp() * 1_000:
        yield datetime.fromtimestamp(time_ms / 1_000, UTC)


def test_there_are_forty_changes_of_clocks() -> None:
    rows = changes()
    assert len(set(rows)) == 40
    for name, day in rows:
        offsets = {(day + timedelta(hours=hour)).astimezone(ZoneInfo(name)).utcoffset() for hour in range(-24, 48)}
        assert len(offsets) == 2, (name, day)


@pytest.mark.parametrize(("name", "day"), changes(), ids=lambda value: str(value)[:16])
def test_cron_rules_agree_with_a_second_implementation_around_changes_of_clocks(name: str, day: datetime) -> None:
    first, last = day - timedelta(days=1), day + timedelta(days=2)
    for rule in RULES:
        expected = brute_force(rule, ZoneInfo(name), first, last)
        found = list(times_of(Schedule("s", "t", "c", cron=rule, tz=name), first, last))
        assert found == expected, rule


@pytest.mark.parametrize(("name", "day"), changes()[:8], ids=lambda value: str(value)[:16])
def test_the_next_time_from_any_minute_is_that_of_the_second_implementation(name: str, day: datetime) -> None:
    first, last = day - timedelta(hours=6), day + timedelta(days=2)
    for rule in ("30 2 * * *", "15,45 1-3 * * *", "*/30 * * * *"):
        schedule, expected = Schedule("s", "t", "c", cron=rule, tz=name), brute_force(rule, ZoneInfo(name), first, last)
        for minute in range(0, 12 * 60, 7):
            after = first + timedelta(minutes=minute)
            following = next(each for each in expected if each > after)
            assert schedule.next_ms(int(after.timestamp() * 1_000)) == following.timestamp() * 1_000, (rule, after)


@pytest.mark.parametrize(
    ("options", "after", "expected"),
    [
        ({"every": "1h"}, "2026-01-01T10:20", "2026-01-01T11:00"),
        ({"every": "1h"}, "2026-01-01T11:00", "2026-01-01T12:00"),
        ({"every": "7s"}, "1970-01-01T00:00:03", "1970-01-01T00:00:07"),
        ({"every": "1h", "start": datetime(2026, 1, 1, 0, 30, tzinfo=UTC)}, "2026-01-01T10:20", "2026-01-01T10:30"),
        ({"every": "1h", "start": datetime(2026, 1, 1, 0, 30, tzinfo=UTC)}, "2025-01-01", "2026-01-01T00:30"),
        ({"cron": "0 6 * * *", "start": datetime(2026, 1, 1, 6, tzinfo=UTC)}, "2025-01-01", "2026-01-01T06:00"),
        ({"cron": "0 6 * * *", "until": datetime(2026, 1, 1, 6, tzinfo=UTC)}, "2026-01-01", "2026-01-01T06:00"),
        ({"cron": "0 6 * * *", "until": datetime(2026, 1, 1, 6, tzinfo=UTC)}, "2026-01-01T06:00", None),
    ],
)
def test_the_next_time(options: dict[str, Any], after: str, expected: str | None) -> None:
    after_ms, expected_ms = (
        None if each is None else int(datetime.fromisoformat(each).replace(tzinfo=UTC).timestamp() * 1_000)
        for each in (after, expected)
    )
    assert Schedule("s", "t", "c", **options).next_ms(after_ms or 0) == expected_ms


@pytest.mark.parametrize("options", [{"every": "1h"}, {"cron": "0 * * * *"}, {"every": "7s"}, {"cron": "* * * * *"}])
def test_after_a_long_standstill_the_latest_thousand_times_are_left(options: dict[str, Any]) -> None:
    schedule = Schedule("s", "t", "c", **options)
    now_ms = 1_790_000_000_123
    due_ms = schedule.next_ms(now_ms - 3_000 * 3_600_000) or 0
    oldest_ms = schedule.newest_missed_ms(due_ms, now_ms)
    left, time_ms = 0, oldest_ms - 1
    while (time_ms := schedule.next_ms(time_ms) or 0) <= now_ms:
        left += 1
    assert left == MOST_MISSED
    assert schedule.next_ms(oldest_ms - 1) == oldest_ms
    near_ms = schedule.next_ms(now_ms - 5 * 3_600_000) or 0
    assert (
        options["every" if "every" in options else "cron"] == "7s"
        or schedule.newest_missed_ms(near_ms, now_ms) == near_ms
    )


@pytest.mark.parametrize("options", [{"cron": "7 3 * * *"}, {"cron": "* * 1 * *"}, {"every": "1h"}])
@pytest.mark.parametrize("days", [1, 3, 40, 100])
def test_missed_times_count_from_one_that_is_not_of_the_rule(options: dict[str, Any], days: int) -> None:
    """As after a run by hand. The latest thousand times are those of the rule; fewer are all there."""
    schedule, now_ms = Schedule("s", "t", "c", **options), 1_790_000_000_123
    due_ms, missed = now_ms - days * 86_400_000 + 17, list[int]()
    time_ms = due_ms
    while (time_ms := schedule.next_ms(time_ms) or 0) <= now_ms:
        missed.append(time_ms)
    expected_ms = missed[-MOST_MISSED] if len(missed) >= MOST_MISSED else due_ms
    assert schedule.newest_missed_ms(due_ms, now_ms) == expected_ms


def test_times_of_a_standstill_of_years_are_not_all_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = 0

    def counted(*args: Any) -> Iterator[int]:
        nonlocal computed
        for each in all_times(*args):
            computed += 1
            yield each

    all_times = schedules._cron_times  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(schedules, "_cron_times", counted)
    schedule, now_ms = Schedule("s", "t", "c", cron="*/5 * * * *"), 1_790_000_000_123
    due_ms = schedule.next_ms(now_ms - 3 * 366 * 86_400_000) or 0
    computed = 0
    assert schedule.newest_missed_ms(due_ms, now_ms) == now_ms // 300_000 * 300_000 - 999 * 300_000
    assert computed < 6 * MOST_MISSED


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"name": "ä", "every": "1h"},
            "name of a schedule is 'ä'; it must be 1 to 128 characters of A-Z a-z 0-9 . _ : -",
        ),
        ({"name": "x" * 129, "every": "1h"}, "1 to 128 characters"),
        ({"name": "x\n", "every": "1h"}, "1 to 128 characters"),
        ({"topic": 5, "every": "1h"}, "topic of schedule s is 5; it must be a Topic"),
        ({"topic": "rmq.recurring", "every": "1h"}, "registered one, other than rmq.recurring"),
        ({"content": "", "every": "1h"}, "content of schedule s is ''; it must be a text"),
        ({"body": b"x", "every": "1h"}, "body of schedule s is b'x'; it must be a text"),
        ({}, "schedule s must have either cron or every"),
        ({"every": "1h", "cron": "0 * * * *"}, "schedule s must have either cron or every"),
        ({"every": "999ms"}, "every of schedule s is '999ms'; it must be 1 s or more"),
        ({"every": 60}, "every of schedule s is 60: is it '60ms' or '60s'?"),
        ({"cron": "61 * * * *"}, "cron of schedule s is '61 * * * *', which is not a cron rule: Bad minute"),
        ({"cron": "0 0 31 2 *"}, "cron of schedule s is '0 0 31 2 *', which is not a cron rule"),
        ({"cron": "* * * * * *"}, "it must be five fields: minute, hour, day, month, day of the week"),
        ({"cron": "@daily"}, "it must be five fields"),
        ({"cron": "0 0 * * *", "tz": "Mars/Olympus"}, "tz of schedule s is 'Mars/Olympus'; it must be a zone that"),
        ({"cron": "0 0 * * *", "tz": "../etc/passwd"}, "tz of schedule s is '../etc/passwd'; it must be a time zone"),
        ({"every": "1h", "until": datetime(2026, 1, 1)}, "until of schedule s is"),
        (
            {"every": "1h", "start": datetime(2026, 1, 1, tzinfo=UTC), "until": datetime(2025, 1, 1, tzinfo=UTC)},
            "until",
        ),
        ({"every": "1h", "version": -1}, "version of schedule s is -1; it must be a whole number"),
        ({"every": "1h", "priority": True}, "priority of schedule s is True; it must be a whole number"),
        ({"every": "1h", "catch_up": "no"}, "catch_up of schedule s is 'no'; it must be True or False"),
        ({"every": "1h", "body": "x" * 4_096}, "bytes; the maximum is 4096"),
    ],
)
def test_wrong_values_are_refused_with_their_rule(options: dict[str, Any], text: str) -> None:
    values: dict[str, Any] = {"name": "s", "topic": "t", "content": "c", **options}
    with pytest.raises(InvalidValueError) as caught:
        Schedule(values.pop("name"), values.pop("topic"), values.pop("content"), **values)
    assert text in str(caught.value)


def test_a_schedule_is_read_as_it_was_stored() -> None:
    schedule = Schedule(
        "a:b", Topic("t", TopicType.PRIORITY), "c:{scheduled}", cron="0 6 * * mon", tz="Asia/Kathmandu", catch_up=True,
        start=datetime(2026, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")), until=datetime(2036, 1, 1, tzinfo=UTC), version=7,
        body="{scheduled} é", priority=5,
    )  # fmt: skip
    read = read_schedule(b"a:b", schedule.put_at(12_345).to_json().encode())
    assert read.to_fields() == schedule.to_fields()
    assert (read.since_ms, read.topic, read.version) == (12_345, "t", 7)
    message: Any = read.message(Topic("t", TopicType.PRIORITY), 1_790_000_000_000)
    assert (message.content, message.body, message.priority) == (
        "c:2026-09-21T19:58:20+05:45", "2026-09-21T19:58:20+05:45 é", 5,
    )  # fmt: skip


@pytest.mark.parametrize("body", [None, b"", b"no JSON", b"[]", b"{}", b'{"version":4,"min_reader":4,"topic":"t"}'])
def test_a_body_that_is_no_schedule_is_refused(body: bytes | None) -> None:
    with pytest.raises(UnreadableDocumentError, match="schedule b's' cannot be read"):
        read_schedule(b"s", body)
