"""Which session is taken where there is no Spark to start one, and what is said where it does not start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkRuntimeError

from rmq.spark import session

_START = """
from rmq.errors import RmqError
from rmq.spark.session import open_session
try:
    with open_session("none", quiet={quiet}):
        pass
except RmqError as error:
    print(error)
"""


@pytest.mark.parametrize("quiet", [True, False])
def test_a_spark_that_does_not_start_is_an_error_of_ours_with_what_java_said(tmp_path: Path, quiet: bool) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'no such VM' >&2\nexit 1\n", "utf-8")
    java.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    ran = subprocess.run(
        [sys.executable, "-c", _START.format(quiet=quiet)],
        env={**kept, "JAVA_HOME": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.startswith("Spark does not start: ")
    assert ("no such VM" in ran.stdout, "no such VM" in ran.stderr) == (quiet, not quiet)


@pytest.mark.parametrize(
    ("made", "taken"),
    [
        (SimpleNamespace(sparkContext=SimpleNamespace(_jsc=object())), True),
        (SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)), False),  # stopped
        (SimpleNamespace(), True),  # of Spark Connect
        (None, False),
    ],
)
def test_a_session_of_another_thread_is_taken_unless_it_is_over(
    monkeypatch: pytest.MonkeyPatch, made: object, taken: bool
) -> None:
    def active() -> object:
        if made is None:
            raise PySparkRuntimeError("none")
        return made

    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(getActiveSession=lambda: None, active=active))
    assert session._session_there() is (made if taken else None)
