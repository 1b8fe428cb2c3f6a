"""What is said of Spark's jobs before there is a Spark."""

from __future__ import annotations

import importlib
import threading
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest
from spark_shop import audience
from spark_shop.audience import AudienceReport, AudienceSettings, access_of
from spark_shop.report import show_audience
from spark_shop.serial import Disorder

import rmq.spark
from rmq.errors import InvalidValueError, RmqError
from rmq.spark.jobs.dead_audit import DeadReport
from rmq.spark.jobs.dead_files import write_files
from rmq.spark.jobs.redrive import Again
from rmq.spark.jobs.replay import ReplaySettings
from rmq.spark.options import parse_options


@pytest.mark.parametrize(
    "given", [{"time_column": "sent"}, {"from_topic": "other"}, {"fixed_time_ms": 2**41}, {"run": "again"}]
)
def test_what_is_for_an_archive_is_refused_where_there_is_none(given: dict[str, object]) -> None:
    [name] = given
    with pytest.raises(InvalidValueError, match=f"^{name} can be used with an archive only"):
        ReplaySettings("t", date(2026, 11, 20), "redis://localhost", Again(rate=5.0), **given)  # pyright: ignore[reportArgumentType]


def test_a_batch_of_customers_is_what_the_source_takes() -> None:
    most = AudienceSettings("lines", "out", "redis://localhost", batch=10**9).batch
    assert parse_options({"url": "redis://localhost", "maxMessagesPerTrigger": str(most)})
    with pytest.raises(InvalidValueError, match="batch is 1000000001; it must be at most 1,000,000,000"):
        AudienceSettings("lines", "out", "redis://localhost", batch=most + 1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"hosts": "zk1"}, "zookeeper is 'zk1'; it must be servers as host:port"),
        ({"hosts": "zk1:2181", "chroot": "rmq"}, "chroot is 'rmq'; it must be a path such as /rmq"),
        (
            {"hosts": "zk1:2181", "user": "spark"},
            "zookeeper_user needs a password: set the environment variable RMQ_ZOOKEEPER_",
        ),
        ({"hosts": "zk1:2181", "ca": "/nowhere"}, "zookeeper_ca is '/nowhere', but there is no such file"),
        ({"hosts": "zk1:2181", "cert": "/nowhere"}, "zookeeper_cert and zookeeper_key must be given together"),
        ({"chroot": "/other"}, "chroot is '/other', but zookeeper is not set"),
        ({"user": "spark"}, "zookeeper_user is 'spark', but zookeeper is not set"),
        ({"key": "key.pem"}, "zookeeper_key is 'key.pem', but zookeeper is not set"),
    ],
)
def test_an_audience_with_a_wrong_zookeeper_is_refused_before_anything_is_sent(given: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{why}"):
        access_of(**given)
    assert access_of() is None


def test_an_audience_reaches_zookeeper_as_its_stream_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_ZOOKEEPER_PASSWORD", "secret")
    access = access_of("zk1:2181", "/other", "spark", "system")
    assert access is not None
    options = {"zookeeper": "zk1:2181", "zookeeperChroot": "/other", "zookeeperUser": "spark", "zookeeperCa": "system"}
    assert access.options() == options
    assert parse_options({"url": "redis://localhost", "topic": "t"} | options).zookeeper_user == "spark"


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path, form: str) -> None:
    (tmp_path / f"by_hour.{form}").mkdir()
    with pytest.raises(RmqError, match="cannot be written: "):
        write_files(DeadReport(0, 0, (), (), ()), str(tmp_path), form)


def test_where_nothing_is_dead_any_more_no_picture_says_otherwise(tmp_path: Path) -> None:
    for name in ("by_reason.png", "by_hour.png", "by_slot.png", "other.png"):
        (tmp_path / name).touch()
    files = write_files(DeadReport(0, 0, (), (), ()), str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"other.png", *(path.name for path in files)}


def test_a_spark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr("pyspark.__version__", "4.1.2")
        with pytest.raises(ImportError, match=r"needs pyspark >= 4\.2; the installed version is 4\.1\.2"):
            importlib.reload(rmq.spark)
    importlib.reload(rmq.spark)


def test_a_stop_is_heard_between_the_sources() -> None:
    stop, steps, nothing = threading.Event(), list[str](), cast("Any", None)
    stop.set()
    settings = AudienceSettings("lines", "out", "redis://localhost")
    assert audience._Job(nothing, settings, steps.append, stop)._send(nothing) == {}
    assert steps == []


def test_customers_that_died_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {field.name: 0 for field in fields(AudienceReport)}
    report = AudienceReport(**{**figures, "sent": {}, "members": {}, "disorder": Disorder(), "died": 1_234})  # pyright: ignore[reportArgumentType]
    show_audience(report, {})
    assert "1,234 messages died without an evaluation" in capsys.readouterr().out
    assert report.to_json()["died"] == 1_234
