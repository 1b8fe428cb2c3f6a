"""What goes wrong many times a second is logged now and then."""

from __future__ import annotations

import logging

import pytest

from rmq._io import reports
from rmq._io.reports import REPEAT_S, Sparing, reporter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [0.0]
    monkeypatch.setattr(reports, "monotonic_s", lambda: now_s[0])
    return now_s


def test_one_line_stands_for_those_that_follow_it(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    troubles, log = Sparing(), reporter("rmq.test")
    for _ in range(10):
        troubles.warning(log, "refused", "topic %s: no right", "shop")
        clock[0] += 0.2
    assert caplog.messages == ["topic shop: no right"]
    clock[0] = REPEAT_S
    troubles.warning(log, "refused", "topic %s: no right", "shop")
    assert caplog.messages[1:] == ["topic shop: no right (similar warnings in the last 10 s: 9)"]
    clock[0] = 3 * REPEAT_S
    troubles.warning(log, "refused", "topic %s: no right", "shop")
    assert caplog.messages[2:] == ["topic shop: no right"], "nothing was left out"


def test_another_kind_is_logged_at_once(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    del clock
    troubles, log = Sparing(), reporter("rmq.test")
    troubles.warning(log, ValueError, "one")
    troubles.warning(log, KeyError, "another")
    assert caplog.messages == ["one", "another"]


def test_a_traceback_goes_with_it(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    del clock
    try:
        raise ValueError("broken")
    except ValueError as error:
        Sparing().warning(reporter("rmq.test"), ValueError, "%s", error, exc_info=True)
    [record] = caplog.records
    assert (record.levelno, record.exc_info is not None) == (logging.WARNING, True)
