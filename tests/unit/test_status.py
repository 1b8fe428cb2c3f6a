"""What `rmq status` and the dashboard's overview find in what was read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq import (
    GroupSlot,
    GroupStats,
    HandlerTimes,
    ListenerInfo,
    Minute,
    RunningHandler,
    ServerMemory,
    SlotStats,
    SparkQuery,
    Topic,
    TopicStats,
    TopicType,
    WhenFull,
    WorkerInfo,
)
from rmq.views.columns import TOPICS
from rmq.views.findings import Reading, Severity, TopicReading, all_well, findings_of, worst_first
from rmq.views.reading import rates_between

NOW_MS = 1_800_000_000_000
MINUTE = NOW_MS // 60_000
SPARK = SparkQuery("source", "q", 1, NOW_MS, NOW_MS, {})


def queue(name: str = "jobs", *, due: int = 0, age_ms: int = 0, paused: int = 0, **more: Any) -> TopicReading:
    """Return a reading of a topic with two slots, the first of which has the messages.

    Those in flight, or waiting for a retry, are overdue for `overdue_ms`.
    """
    settings = more.pop("settings", {})
    topic = Topic(name, more.pop("type", TopicType.FIXED_TIME), slots=2, **settings)
    slots: list[SlotStats] = []
    for number in range(2):
        own, flying, waiting = (due, more.get("in_flight", 0), more.get("waiting", 0)) if number == 0 else (0, 0, 0)
        oldest = NOW_MS - age_ms if own else None
        totals = more.get("totals", {}) if number == 0 else {}
        known = {"accepted": own + flying + waiting} | totals
        next_due_ms = NOW_MS - more["overdue_ms"] if flying + waiting and "overdue_ms" in more else 0
        slots.append(
            SlotStats(
                name, number, NOW_MS, own, own, flying, waiting, 0, oldest, next_due_ms,
                more.get("epoch", 0), number < paused, known, oldest if topic.type is TopicType.PRIORITY else None,
            )
        )  # fmt: skip
    figures = Minute(MINUTE, due, due, dead=more.get("dead", 0), refailed=more.get("refailed", 0))
    stats = TopicStats(topic, tuple(slots))
    return TopicReading(topic, figures, paused, stats, earlier=more.get("earlier"), queries=more.get("queries", ()))


def worker(topic: str = "jobs", *, group: str | None = None, silent_ms: int = 0, **listener: Any) -> WorkerInfo:
    info = ListenerInfo(topic, group, 4, (0, 1), (), 0, 0, 0, 5.0, 0.0)
    return WorkerInfo("w:1:a", "w", 1, 0, NOW_MS - silent_ms, NOW_MS, False, (replace(info, **listener),))


def told(topic: TopicReading, *workers: WorkerInfo, **more: Any) -> list[tuple[str, str]]:
    found = findings_of(Reading([topic], workers, **more))
    return [(each.severity.value, f"{each.kind.value}: {each.text}") for each in found]


def running(ms: int, *, hung: bool = False) -> tuple[RunningHandler, ...]:
    return (RunningHandler(0, "item:6", 1, ms, hung),)


@pytest.mark.parametrize(
    ("topic", "workers"),
    [
        (queue(), ()),
        (queue(due=5), (worker(),)),
        (queue(due=5, age_ms=60_000, in_flight=3), (worker(),)),
        (queue(due=5, age_ms=5_000, in_flight=3), ()),  # a consumer that polls, and does not report
        (queue(due=50_000, age_ms=9_000_000, in_flight=3, type=TopicType.PRIORITY), (worker(),)),  # normal work
        (queue("rmq.recurring", due=1, age_ms=1_000), (worker(),)),  # each process with listeners runs schedules
        (queue(due=5, age_ms=60_000, queries=[SPARK]), ()),
        (queue(in_flight=3, overdue_ms=-20_000), ()),  # a consumer that polls, whose leases run
        (queue(in_flight=3, overdue_ms=9_999), ()),  # it may poll again
        (queue(waiting=3, overdue_ms=-20_000), ()),
        (queue(in_flight=3, overdue_ms=60_000), (worker(),)),
        (queue(in_flight=3, overdue_ms=60_000, queries=[SPARK]), ()),
        (queue("rmq.recurring", in_flight=1, overdue_ms=60_000), (worker(),)),
        (queue(epoch=4), ()),  # with owners, empty, and scaled to zero
        (queue(epoch=4), (worker(slots=(1,)),)),
        (queue(epoch=4, due=5, age_ms=60_000, in_flight=2, queries=[SPARK]), ()),  # a query owns the slots
        (queue(), (worker(running=running(59_000), times=HandlerTimes(((40, 99),))),)),
        (queue(), (worker(running=running(500_000)),)),
        (queue(dead=5, refailed=4, earlier=Minute(MINUTE - 9, dead=5, refailed=4)), (worker(),)),
        (queue(dead=5, refailed=4, earlier=Minute(MINUTE - 9, dead=5)), (worker(),)),  # of an earlier version
        (queue(), (worker(handled_per_s=9.0, failed_per_s=4.0),)),
    ],
)
def test_a_green_line_where_nothing_is_wrong(topic: TopicReading, workers: tuple[WorkerInfo, ...]) -> None:
    reading = Reading([topic], workers, {":0": ServerMemory(10, 0), "b:1": ServerMemory(84, 100)})
    assert findings_of(reading) == []
    assert all_well(reading).startswith(f"Nothing needs attention: 1 topic, {len(workers)} worker")


@pytest.mark.parametrize(
    ("topic", "workers", "severity", "text"),
    [
        (queue(due=5, age_ms=60_000, in_flight=2), (worker("other"),), "critical",
         "no-worker: no worker listens: 5 messages due, the oldest for 1 m"),
        (queue(due=1), (worker("other"),), "critical", "no-worker: no worker listens: 1 message due"),
        (queue(due=5, age_ms=60_000, in_flight=3, type=TopicType.PRIORITY), (worker("other"),), "critical",
         "no-worker: no worker listens: 5 messages due, the oldest for 1 m"),
        (queue(in_flight=3, waiting=2, overdue_ms=60_000), (worker("other"),), "critical",
         "no-worker: no worker listens: 5 messages in flight or waiting for a retry, the first overdue for 1 m"),
        (queue(waiting=1, overdue_ms=10_000, queries=[replace(SPARK, seen_ms=NOW_MS - 60_000)]), (worker("other"),),
         "critical",
         "no-worker: no worker listens: 1 message in flight or waiting for a retry, the first overdue for 10 s"),
        (queue(in_flight=5, overdue_ms=60_000, paused=1), (), "warning", "paused: 1 of 2 slots is paused; 0 due there"),
        (queue(due=5, age_ms=60_000), (worker(),), "critical",
         "not-claimed: nothing is claimed, although 1 listener is alive: 5 messages due, the oldest for 1 m"),
        (queue(due=5, age_ms=60_000), (worker(paused_ms=9_000),), "critical",
         "not-claimed: all listeners pause, for 9 s more, because handlers fail or asked for it:"
         " 5 messages due, the oldest for 1 m"),
        (queue(due=5, age_ms=300_000, in_flight=1), (worker(),), "warning",
         "behind: 5 messages due, the oldest for 5 m"),
        (queue(due=5, age_ms=20_000, in_flight=1, settings={"max_rate": 10.0}), (worker(throttled=True),), "warning",
         "held-back: the rate limit of 10 messages per second holds back 5 messages due, the oldest for 20 s"),
        (queue(paused=1), (worker(),), "warning", "paused: 1 of 2 slots is paused; 0 due there"),
        (queue(due=7, paused=2), (worker(),), "warning", "paused: 2 of 2 slots are paused; 7 due there"),
        (queue(due=9, in_flight=1, settings={"max_backlog": 10, "when_full": WhenFull.DROP}), (worker(),), "warning",
         "full: the backlog has 9 of at most 10 messages; a full slot drops messages"),
        (queue(totals={"accepted": 3}), (worker(),), "critical",
         "unaccounted: 3 messages missing, by the topic's totals"),
        (queue(due=20, age_ms=20_000, settings={"max_rate": 0.5}), (worker(), worker(throttled=True)), "warning",
         "held-back: the rate limit of 0.5 messages per second holds back 20 messages due, the oldest for 20 s"),
        *(
            (filled, (worker(slots=(1,)),), "critical",
             "unowned: 1 slot has no owner; messages there wait")
            for filled in (queue(epoch=4, due=1), queue(epoch=4, in_flight=1), queue(epoch=4, waiting=1))
        ),
        (queue(), (worker(handled_per_s=6.0, failed_per_s=4.5),), "warning",
         "failing: handlers fail: 4.5 of 6.0 messages per second"),
        (queue(dead=7, earlier=Minute(MINUTE - 10, dead=5)), (worker(),), "warning",
         "dead-growing: 2 more dead in 10 minutes, 7 in all"),
        (queue(refailed=7, earlier=Minute(MINUTE - 1, refailed=5)), (worker(),), "warning",
         "failing-again: messages that were sent again after a failure fail again: 2 failures in 1 minute"),
        (queue(), (worker(running=running(1_000, hung=True)),), "critical",
         "hung-handler: a handler has run with item:6 for 1 s and is hung, on worker w:1:a"),
        (queue(), (worker(running=running(600_000)),), "warning",
         "long-handler: a handler has run with item:6 for 10 m, on worker w:1:a"),
        (queue(), (worker(running=running(70_000), times=HandlerTimes(((40, 99),))),), "warning",
         "long-handler: a handler has run with item:6 for 1 m 10 s, on worker w:1:a"),
        (queue(), (worker(silent_ms=20_000),), "warning",
         "silent: worker w:1:a has been silent for 20 s, and may have stopped"),
        (TopicReading(Topic("jobs", TopicType.PRIORITY), Minute(0), trouble="no \x1b[31m"), (), "warning",
         r"unreadable: no \x1b[31m"),
    ],
)  # fmt: skip
def test_each_trouble_is_told_in_words(
    topic: TopicReading, workers: tuple[WorkerInfo, ...], severity: str, text: str
) -> None:
    assert told(topic, *workers) == [(severity, text)]


def test_a_group_that_nobody_reads_for_and_one_that_is_behind() -> None:
    topic = Topic("events", TopicType.STREAM, slots=1)
    groups = tuple(
        GroupStats(name, (GroupSlot("events", 0, name, "1-0", 0, 0, 0, 9, 0, False, ""),)) for name in ("a", "b")
    )
    reading = TopicReading(topic, Minute(MINUTE), groups=groups, unread_ms={"a": 40_000, "b": 360_000})
    busy = replace(groups[1].slots[0], pending=1)
    reading = replace(reading, groups=(groups[0], GroupStats("b", (busy,))))
    found = findings_of(Reading([reading], [worker("events", group="b")]))
    assert [(each.about, each.text) for each in found] == [
        ("events @ a", "no worker listens: 9 entries unread, the oldest for 40 s"),
        ("events @ b", "9 entries unread, the oldest for 6 m"),
    ]
    assert reading.oldest_ms == 360_000


def test_what_a_group_has_read_and_nobody_takes_up() -> None:
    topic = Topic("events", TopicType.STREAM, slots=4)
    left = GroupSlot("events", 0, "a", "1-0", 3, 1, 0, 0, 0, False, "1-0", overdue_ms=10_000)
    slots = (left, replace(left, slot=1, overdue_ms=9_999), replace(left, slot=2, paused=True))
    reading = TopicReading(topic, Minute(MINUTE), groups=(GroupStats("a", slots),))
    text = "no worker listens: 3 entries in flight or waiting for a retry, the first overdue for 10 s"
    assert [each.text for each in findings_of(Reading([reading])) if each.severity is Severity.CRITICAL][1:] == [text]
    served = replace(reading, queries=[replace(SPARK, name="a")])
    for each, workers in ((reading, [worker("events", group="a")]), (served, [])):
        assert [one.kind.value for one in findings_of(Reading([each], workers))] == ["paused"]


def test_a_redis_that_is_nearly_full() -> None:
    memory = {"a:1": ServerMemory(86, 100), ":0": ServerMemory(120, 100), "c:1": ServerMemory(9, 0)}
    assert told(queue(), worker(), memory=memory) == [
        ("critical", "memory: Redis uses 120% of its maxmemory; sends are refused"),
        ("warning", "memory: Redis a:1 uses 86% of its maxmemory; sends are refused when it is full"),
    ]


def test_the_worst_comes_first_and_nobody_alive_before_all() -> None:
    topics = [queue("late", due=1, age_ms=400_000, in_flight=1, paused=0), queue("a", paused=1), queue("z", due=3)]
    findings = findings_of(Reading(topics, [replace(worker("late"), seen_ms=NOW_MS - 40_000)]))
    assert [(each.about, each.kind.value) for each in findings] == [
        ("", "no-worker"), ("z", "no-worker"), ("late", "no-worker"), ("a", "paused"), ("", "silent"),
    ]  # fmt: skip
    assert [each.topic.name for each in worst_first(topics, findings)] == ["z", "late", "a"]
    assert [each.topic.name for each in worst_first(topics, [])] == ["late", "a", "z"]


def test_a_total_that_fell_counts_as_unchanged() -> None:
    rates = rates_between(Minute(0, accepted=10, acked=9), Minute(0, accepted=30), 5.0)
    assert (rates["accepted"], rates["acked"]) == (4, 0)


def test_columns_sort_texts_upwards_and_numbers_downwards_and_say_what_is_unknown() -> None:
    late, idle = queue("a", due=1_200, age_ms=90_000, dead=3), queue("b")
    shown = {name: (TOPICS[name](late), TOPICS[name].tone(late)) for name in (">backlog", ">oldest", ">dead")}
    assert shown == {">backlog": ("1,200", ""), ">oldest": ("1 m 30 s", "warn"), ">dead": ("3", "bad")}
    assert all(sorted([idle, late], key=TOPICS[name].rank) == [late, idle] for name in ("~topic", ">backlog"))
    assert TOPICS[">dead"](replace(idle, trouble="NOPERM")) == "?"
