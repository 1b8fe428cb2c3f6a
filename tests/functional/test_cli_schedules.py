"""`rmq schedules` against a real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq import RmqClient, Schedule, Topic, TopicType
from tests.support.cli import Cli

JOBS = Topic("jobs-of-schedules", TopicType.FIXED_TIME)


@pytest.fixture(autouse=True)
def registered(client: RmqClient) -> Iterator[None]:
    client.producer(JOBS)
    yield
    for each in client.schedules.list():
        client.schedules.remove(each.name)


def test_schedules_are_put_listed_run_and_removed(cli: Cli, client: RmqClient) -> None:
    command = ("schedules", "put", "close-orders", JOBS.name, "close", "--cron", "30 2 * * *", "--tz", "Europe/Berlin")
    assert cli(*command).out.startswith("schedule close-orders: new, next in ")
    assert cli(*command, "--json").json == {"schedule": "close-orders", "result": "unchanged"}
    more = ("--every", "1h", "--catch-up", "--version", "3", "--body", "{scheduled}", "--start", "2026-01-01T00:30:00Z")
    cli("schedules", "put", "report", JOBS.name, "report:{scheduled}", *more)
    [close, report] = client.schedules.list()
    assert (
        close.schedule.to_fields()
        == Schedule("close-orders", JOBS, "close", cron="30 2 * * *", tz="Europe/Berlin").to_fields()
    )
    assert (report.schedule.version, report.schedule.catch_up, report.due_ms or 0) == (3, True, report.due_ms)
    assert (report.due_ms or 0) % 3_600_000 == 1_800_000
    ran = cli("schedules")
    assert "30 2 * * *" in ran.out
    assert "every 1h" in ran.out
    lines = cli("schedules", "list", "--json").out.splitlines()
    assert len(lines) == 2
    ran = cli("schedules", "list", "--limit", "1")
    assert ("close-orders" in ran.out, "report" in ran.out, "only the first 1" in ran.err) == (True, False, True)
    assert cli("schedules", "run-now", "report").out == "schedule report is due now\n"
    assert (client.schedules.list()[1].late_ms >= 0, client.schedules.list()[1].next != report.next) == (True, True)
    assert cli("schedules", "remove", "report").out == "schedule report removed\n"
    assert [each.name for each in client.schedules.list()] == ["close-orders"]


def test_what_cannot_be_done_ends_with_1_and_wrong_input_with_2(cli: Cli) -> None:
    put = ("schedules", "put", "s", JOBS.name, "c")
    cli(*put, "--every", "1h", "--version", "2")
    assert "outranked" in cli(*put, "--every", "2h", code=1).out
    ended = ("schedules", "put", "ended", JOBS.name, "c", "--every", "1h", "--until", "2020-01-01T00:00:00Z")
    assert cli(*ended, code=1).out == "schedule ended: over, no due time is left before --until; nothing was stored\n"
    assert cli("schedules", "remove", "t", code=1).out == "there is no schedule t\n"
    assert cli("schedules", "run-now", "t", "--json", code=1).json == {"schedule": "t", "result": "absent"}
    for options, text in (
        ((), "must have either cron or every"),
        (("--every", "5"), "--every is '5'"),
        (("--cron", "x"), "five fields"),
        (("--cron", "61 * * * *"), "not a cron rule"),
        (("--every", "1h", "--tz", "Mars/Base"), "tz of schedule s is 'Mars/Base'"),
        (("--every", "1h", "--until", "2036-01-01"), "has no zone"),
        (("--every", "1h", "--priority", "5"), "it must be None, because topic jobs-of-schedules is of type FIXED"),
    ):
        assert text in cli(*put, *options, code=2).err, options
    assert "name of a schedule" in cli("schedules", "remove", "\x1b[31m", code=2).err
