"""What Spark says when something fails, as one line."""

from __future__ import annotations

import importlib
import sys

import pytest
from pyspark.errors import PySparkException

from rmq.errors import InvalidValueError, RmqError
from rmq.spark import jobs
from rmq.spark.jobs import SPARK_ERRORS, one_line, plain_errors

TRACE = "\n\tat org.apache.spark.sql.Dataset.collect(Dataset.scala:1)\nCaused by: java.io.IOException: less"
OF_A_WORKER = (
    "An error occurred while calling o71.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to stage "
    'failure: Task 0 in stage 3.0 failed 1 times\nTraceback (most recent call last):\n  File "sink.py", line 1\n'
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "An error occurred while calling o45.parquet.\n: org.apache.spark.SparkException: "
            f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a.md.  SQLSTATE: KD001{TRACE}",
            "Encountered error while reading file file:///a.md. less",
        ),
        (
            f"An error occurred while calling o9.json.\n: java.io.IOException: No space left on device{TRACE}",
            "No space left on device",
        ),
        (
            f"An error occurred while calling o9.json.\n: java.lang.NullPointerException{TRACE}",
            "java.lang.NullPointerException",
        ),
        ("[_LEGACY_ERROR_TEMP_1009] Too deep. SQLSTATE: 42K01\n\nJVM stacktrace:\n...", "Too deep."),
        (f"{OF_A_WORKER}rmq.InvalidMessageError: content is null{TRACE}", "content is null"),
        (f"{OF_A_WORKER}ZeroDivisionError: division by zero{TRACE}", "division by zero"),
        ("", "Exception"),
    ],
)
def test_the_line_says_what_went_wrong_and_not_which_call_it_was(text: str, line: str) -> None:
    assert one_line(Exception(text)) == line


def test_a_rule_of_rmq_that_a_worker_found_broken_is_wrong_input_and_all_else_is_not() -> None:
    with pytest.raises(InvalidValueError, match=r"^content is null$"), plain_errors():
        raise PySparkException(f"{OF_A_WORKER}rmq.InvalidMessageError: content is null{TRACE}")
    with pytest.raises(RmqError, match=r"^no answer$") as raised, plain_errors():
        raise PySparkException(f"{OF_A_WORKER}rmq.RedisUnavailableError: no answer{TRACE}")
    assert type(raised.value) is RmqError


def test_without_py4j_as_a_client_of_spark_connect_is_it_is_imported_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(SPARK_ERRORS) == 2
    try:
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "py4j.protocol", None)
            assert importlib.reload(jobs).SPARK_ERRORS == (PySparkException,)
    finally:
        importlib.reload(jobs)
