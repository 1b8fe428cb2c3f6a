"""The page of schedules: what it lists, and what its buttons do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

from rmq import RmqClient, Schedule, Topic, TopicType
from rmq.dashboard.pages import MOST_SCHEDULES
from rmq.dashboard.security import Settings
from rmq.testing import Server, run_schedules
from tests.support.dashboard import served
from tests.support.waiting import wait_until

JOBS = Topic("jobs", TopicType.FIXED_TIME, max_backlog=1)


@pytest.fixture
def client(rmq: RmqClient) -> RmqClient:
    return rmq


@pytest.fixture
def browser(client: RmqClient) -> Iterator[httpx.Client]:
    with served(client) as address, httpx.Client(base_url=address, follow_redirects=True) as browser:
        yield browser


def post(browser: httpx.Client, action: str, **fields: str) -> httpx.Response:
    token = re.search(r'name="token" value="([^"]+)"', browser.get("/schedules").text)
    assert token is not None
    data = {"token": token[1], "back": "/schedules", **fields}
    return browser.post(f"/do/{action}", data=data, headers={"origin": str(browser.base_url).rstrip("/")})


def page_with(browser: httpx.Client, text: str) -> str:
    """Return the page once it has a text, else an empty one: what it has read may be a second old."""
    page = browser.get("/schedules").text
    return page if text in page else ""


def test_the_page_lists_schedules_and_finds_them_by_name(client: RmqClient, browser: httpx.Client) -> None:
    assert "No schedules." in browser.get("/schedules").text
    client.schedules.put(Schedule("close-orders", JOBS, "close", cron="30 2 * * *", tz="Europe/Berlin"))
    client.schedules.put(Schedule("report", JOBS, "report", every="1h", catch_up=True))
    page = wait_until(lambda: page_with(browser, "2 schedules"))
    for text in ("2 schedules", "close-orders", "30 2 * * * Europe/Berlin", "every 1h", "catches up", "never"):
        assert text in page, text
    page = browser.get("/schedules?filter=CLOSE").text
    assert ("1 schedule<" in page, "close-orders" in page, "every 1h" in page) == (True, True, False)


def test_a_late_and_a_failing_schedule_show(server: Server, client: RmqClient, browser: httpx.Client) -> None:
    clock = server.clock()
    client.schedules.put(Schedule("late", JOBS, "job", every="1h"))
    clock.advance("2h")
    assert wait_until(lambda: page_with(browser, "1 late"))
    assert run_schedules(client) == 1
    client.schedules.put(Schedule("failing", JOBS, "another", every="1h"))
    clock.advance("1h")
    with pytest.raises(AssertionError, match="BacklogFullError"):
        run_schedules(client)
    page = wait_until(lambda: page_with(browser, "1 failing"))
    assert "BacklogFullError" in page


def test_many_schedules_are_shown_in_pages_with_those_in_trouble_first(
    server: Server, client: RmqClient, browser: httpx.Client
) -> None:
    clock = server.clock()
    clock.move_to(datetime.fromtimestamp(57_900 * 36_000 + 600, UTC))  # within the hour no ten hours are over
    for number in range(MOST_SCHEDULES + 1):
        client.schedules.put(Schedule(f"s{number:03}", JOBS, "job", every="10h"))
    client.schedules.put(Schedule("the-last", JOBS, "job", every="1h"))
    clock.advance("1h")
    page = wait_until(lambda: page_with(browser, "1 late"))
    for text in ("202 schedules", "1 to 200 are shown", "the-last", "s198", "Next schedules"):
        assert text in page, text
    assert "s199" not in page
    page = browser.get("/schedules?first=200").text
    assert ("201 to 202 are shown" in page, "s199" in page, "s200" in page, "s198" in page) == (True, True, True, False)
    assert browser.get("/schedules?first=x").status_code == 400


def test_the_buttons_run_and_remove(client: RmqClient, browser: httpx.Client) -> None:
    client.schedules.put(Schedule("report", JOBS, "report", every="1h"))
    assert "schedule report is due now" in post(browser, "run-schedule", schedule="report").text
    assert run_schedules(client) == 1
    assert "Remove the schedule report?" in post(browser, "remove-schedule", schedule="report").text
    assert len(client.schedules.list()) == 1
    assert "schedule report removed" in post(browser, "remove-schedule", schedule="report", yes="yes").text
    assert client.schedules.list() == []
    assert [line.actor for line in client.inspect("rmq.recurring").audit()] == ["somebody@dashboard"] * 2


def test_who_may_only_read_has_no_buttons(client: RmqClient) -> None:
    client.schedules.put(Schedule("report", JOBS, "report", every="1h"))
    with served(client, Settings(read_only=True)) as address:
        page = httpx.get(f"{address}/schedules").text
        assert ("report" in page, "Run now" in page) == (True, False)
        assert httpx.post(f"{address}/do/run-schedule", data={"schedule": "report"}).status_code == 403
