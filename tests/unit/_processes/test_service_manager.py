"""What processes report to their supervisor arrives, however many they are."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from rmq import Health
from rmq._processes.service_manager import READY, VARIABLE, Reports, ServiceManager
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


def test_nothing_is_left_of_one_that_is_closed() -> None:
    before = threading.active_count()
    reports = Reports()
    reports.close()
    assert not os.path.exists(reports.path)
    assert threading.active_count() == before
