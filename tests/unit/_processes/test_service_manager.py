"""What processes report to their supervisor arrives, however many they are."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from rmq import Health
from rmq._processes.service_manager import MOST_MISSED, READY, VARIABLE, Reports, ServiceManager
from tests.support.waiting import wait_until


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reports]:
    with closing(Reports()) as reports:
        monkeypatch.setenv(VARIABLE, reports.path)
        yield reports


def test_many_processes_that_report_at_the_same_moment_are_all_heard(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A datagram socket keeps 10 reports: those of the same processes would be refused each time."""
    managers = [ServiceManager() for _ in range(40)]

    def all_heard() -> bool:
        for number, manager in enumerate(managers, 1):
            monkeypatch.setattr(os, "getpid", lambda number=number: number)
            manager.report(Health(True))
        return all(reports.of(number) == READY for number in range(1, 41))

    wait_until(all_heard)


def looks_until_it_hangs(reports: Reports) -> int | None:
    """Look as a supervisor does each second; `None` if that process counts as running however often one looks."""
    return next((number for number in range(3 * MOST_MISSED) if reports.hangs(os.getpid())), None)


def test_a_process_hangs_once_it_has_been_ready_and_no_longer_feeds_the_watchdog(reports: Reports) -> None:
    manager = ServiceManager()

    def tell(health: Health, status: str) -> None:
        manager.report(health)
        wait_until(lambda: reports.of(os.getpid()) == status)

    assert looks_until_it_hangs(reports) is None
    tell(Health(True, ("no Redis",)), "no Redis")
    assert looks_until_it_hangs(reports) is None  # a start may take as long as it will
    tell(Health(True), READY)
    assert looks_until_it_hangs(reports) == MOST_MISSED + 1
    tell(Health(True, ("no Redis",)), "no Redis")
    assert not reports.hangs(os.getpid())  # it has fed the watchdog
    tell(Health(False), "a thread of a listener has ended")
    assert looks_until_it_hangs(reports) == MOST_MISSED
    manager.stopping()
    wait_until(lambda: reports.of(os.getpid()) == "waiting for running handlers")
    assert looks_until_it_hangs(reports) is None  # its handlers may run until the end of the drain time


def test_nothing_is_left_of_one_that_is_closed() -> None:
    before = threading.active_count()
    reports = Reports()
    reports.close()
    assert not os.path.exists(reports.path)
    assert threading.active_count() == before
