"""Which session is taken where there is no Spark to start one, and what is said where it does not start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    assert ran.stdout.startswith("Spark did not start: ")
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


class Builder:
    """Notes what a session would be started with."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def appName(self, name: str) -> Builder:
        return self

    def master(self, master: str) -> Builder:
        self.settings["spark.master"] = master
        return self

    def config(self, key: str, value: str) -> Builder:
        self.settings[key] = value
        return self

    def getOrCreate(self) -> Builder:
        return self


@pytest.mark.parametrize(("master", "local"), [("local[2]", True), ("spark://spark-master:7077", False)])
def test_the_executors_of_a_cluster_can_reach_the_driver(
    monkeypatch: pytest.MonkeyPatch, master: str, local: bool
) -> None:
    for name in ("SPARK_LOCAL_IP", "JAVA_HOME", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "before")  # and back after the test
        monkeypatch.delenv(name)
    monkeypatch.setattr(session, "java_home_for_spark", lambda: "/java")
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=Builder()))
    started: Any = session._start("job", master, {"spark.cores.max": "1"}, False)
    assert started.settings["spark.master"] == master
    assert started.settings["spark.cores.max"] == "1"
    assert started.settings["spark.sql.session.timeZone"] == "UTC"
    addresses = {"spark.driver.host", "spark.driver.bindAddress"} & started.settings.keys()
    assert (len(addresses), os.environ.get("SPARK_LOCAL_IP")) == ((2, "127.0.0.1") if local else (0, None))
