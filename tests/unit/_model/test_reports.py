"""The library's log lines harm nobody."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from rmq._io.reports import reporter, traced


class Failing(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise LookupError("a filter of the program's")


def test_a_filter_that_fails_reaches_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    log, logger = reporter("rmq.test"), logging.getLogger("rmq.test")
    failing = Failing()
    logger.addFilter(failing)
    try:
        log.warning("a line")
        log.exception("another")
    finally:
        logger.removeFilter(failing)
    assert "a filter of the program's" in capfd.readouterr().err


def test_a_line_says_where_it_comes_from_and_what_it_is_about(caplog: pytest.LogCaptureFixture) -> None:
    log: Any = reporter("rmq.test")
    log.warning("number %d", 7, extra={"rmq_deliveries": ("one",)})
    log.debug("unwanted")
    [record] = [each for each in caplog.records if each.name == "rmq.test"]
    assert (record.getMessage(), record.filename, record.rmq_deliveries) == ("number 7", "test_reports.py", ("one",))  # pyright: ignore


class Falsy(Exception):
    """An error with a truth and a traceback of its own."""

    def __len__(self) -> int:
        return 0

    @property
    def __traceback__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise LookupError("no traceback")


def test_an_error_is_not_asked_for_its_truth_or_its_traceback() -> None:
    try:
        raise Falsy
    except Falsy as caught:
        error = caught
    kind, same, trace = traced(error)
    assert (kind, same) == (Falsy, error)
    assert trace is not None
    assert trace.tb_frame.f_code.co_name == "test_an_error_is_not_asked_for_its_truth_or_its_traceback"


class NotesExit(Exception):
    @property
    def __notes__(self) -> Any:
        raise SystemExit("no notes")


def test_an_error_whose_notes_fail_ends_no_thread() -> None:
    """They fail when it is logged, and again when that is told on standard error."""
    log, failing, ended = reporter("rmq.test"), Failing(), list[BaseException]()

    def work() -> None:
        try:
            raise NotesExit
        except NotesExit as error:
            try:
                log.warning("a line", exc_info=traced(error))
            except BaseException as other:
                ended.append(other)

    logging.getLogger("rmq.test").addFilter(failing)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        logging.getLogger("rmq.test").removeFilter(failing)
    assert ended == []


@pytest.mark.parametrize("way", ["raised", "caused", "grouped", "noted", "argument"])
def test_a_text_of_20_mb_is_cut(way: str, caplog: pytest.LogCaptureFixture) -> None:
    large = ValueError("x" * 20_000_000)
    try:
        if way == "caused":
            raise KeyError("small") from large
        if way == "grouped":
            raise ExceptionGroup("several", [large, KeyError("small")])
        if way == "noted":
            small = KeyError("small")
            small.add_note("x" * 20_000_000)
            raise small
        raise large
    except Exception as error:
        if way == "argument":
            reporter("rmq.test").warning("failed: %s, %r, %s", error, str(error), b"x" * 20_000_000)
        else:
            reporter("rmq.test").warning("failed", exc_info=True)
    assert len(caplog.text) < 40_000
    assert "failed" in caplog.text
    assert ("Traceback" in caplog.text) is (way != "argument")


def test_a_short_error_goes_along_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("short")
    reporter("rmq.test").warning("failed: %s", error, exc_info=error)
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert record.args == (error,)
