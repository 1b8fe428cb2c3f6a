"""What the commands of `rmq spark` refuse before Spark starts, which takes seconds. There is no JVM here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from spark_shop import audience, prices
from spark_shop.audience import AudienceSettings, ZooKeeperAccess, check
from spark_shop.order_lines import COLUMNS, slice_path

from rmq import Coordinator, Retention, RmqClient, Topic, TopicType
from rmq.errors import EnsembleMismatchError, FencedError, InvalidValueError, RmqError
from rmq.spark.jobs.redrive import connect
from tests.support.cli import Cli
from tests.support.core import adopt
from tests.support.slots import forget_topic
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperEnsemble

QUEUE = Topic("before-queue", TopicType.PRIORITY, slots=2)
LOG = Topic("before-log", TopicType.STREAM, slots=2)
DROPPING = Topic("before-dropping", TopicType.STREAM, slots=2, retention=Retention(unacked=True))
OWNED = Topic("before-owned", TopicType.RANGE_MERGE, slots=2)

REPLAY = ("--day", "2026-11-20", "--rate", "5/s")


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("rmq.spark.session.open_session", start)


@pytest.fixture(scope="module")
def url(redis_url: str, redis_client: redis.Redis) -> Iterator[str]:
    topics = (QUEUE, LOG, DROPPING, OWNED)
    with RmqClient(redis_url) as client:
        for topic in topics:
            client.producer(topic)
    yield redis_url
    for topic in topics:
        forget_topic(redis_client, topic.name)


def refused(url: str, *words: str, code: int) -> str:
    """Return what a command says: one line, and for some errors a hint below it."""
    said = Cli(url)("spark", *words, code=code).err
    assert said.startswith("rmq: ")
    line, *hint = said.splitlines()
    assert all(text.startswith("`rmq adopt ") for text in hint), said
    return line


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("dead", "nobody-knows"), 1, "topic nobody-knows is not registered"),
        (("dead", LOG.name), 2, f"topic {LOG.name} is STREAM: its dead entries belong to groups"),
        (("dead", QUEUE.name, QUEUE.name), 2, f"topics contains a topic twice: {QUEUE.name}"),
        (("dead", QUEUE.name, "--out", "/dev/null/x"), 2, "folder '/dev/null/x' cannot be created"),
        (("dead", QUEUE.name, "--out", ".", "--format", "xml"), 2, "format is 'xml'"),
        (("replay", "nobody-knows", *REPLAY), 1, "topic nobody-knows is not registered"),
        (("replay", QUEUE.name, *REPLAY, "--run", "2"), 2, "run can be used with an archive only"),
        (("replay", QUEUE.name, *REPLAY, "--archive", "a", "--due-in", "1m"), 2, "due_in_ms is for RANGE_MERGE topics"),
        (("archive-stream", QUEUE.name, "--out", "a", "--older-than", "1d"), 2, "only STREAM topics can be archived"),
        (
            ("archive-stream", DROPPING.name, "--out", "a", "--older-than", "1d"),
            2,
            "drops entries that groups have not acked",
        ),
        (("archive-stream", LOG.name, "--out", "a", "--older-than", "1d", "--batch", "0"), 2, "batch is 0"),
    ],
)
def test_what_does_not_fit_is_one_line_and_no_spark(url: str, words: tuple[str, ...], code: int, why: str) -> None:
    assert why in refused(url, *words, code=code)


def test_a_redis_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.cli.console.DEADLINE_S", 0.2)
    assert "127.0.0.1:1" in refused("redis://127.0.0.1:1", "dead", QUEUE.name, code=1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"lines": __file__}, "cannot be read: "),
        ({"topic": QUEUE.name}, f"topic {QUEUE.name} is registered as PRIORITY with 2 slots"),
        ({"sources": ("returns",)}, "source is 'returns'; it must be one of"),
        ({"rival": -1}, "rival is -1; it must be 0 or more"),
        ({"topic": "a b"}, "'a b'"),
        ({"rules": {"a b": "orders > 1"}}, "rule 'a b' has an invalid name; it must be 1 to 64"),
    ],
)
def test_an_audience_that_does_not_fit(url: str, given: dict[str, Any], why: str) -> None:
    with pytest.raises(RmqError, match=re.escape(why)):
        check(AudienceSettings(**{"lines": slice_path(), "out": "out", "url": url, **given}))


def test_prices_for_another_topic(url: str) -> None:
    with pytest.raises(RmqError, match=f"topic {QUEUE.name} is registered as PRIORITY with 2 slots"):
        prices.check(prices.PriceSettings(slice_path(), url, pictures=QUEUE.name))


def test_order_lines_that_lack_a_column(url: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({name: ["x"] for name in COLUMNS if name != "country"}), tmp_path / "lines.parquet")
    with pytest.raises(InvalidValueError, match="have no column country; they need invoice_no, "):
        check(AudienceSettings(str(tmp_path / "lines.parquet"), "out", url))


def test_a_zookeeper_that_does_not_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audience, "_ANSWER_S", 0.5)
    access = ZooKeeperAccess("127.0.0.1:1")
    with pytest.raises(RmqError, match=r"^no ZooKeeper server answered within 0\.5 s \("):
        check(AudienceSettings(slice_path(), "out", url, zookeeper=access))


def test_a_topic_that_workers_of_a_zookeeper_own(url: str, zookeeper: ZooKeeperEnsemble) -> None:
    plain = AudienceSettings(slice_path(), "out", url, topic=OWNED.name, slots=OWNED.slots)
    with closing(connect(url)) as connections:
        own = replace(plain, zookeeper=ZooKeeperAccess(zookeeper.hosts, "/before"))
        with RmqClient(url, zookeeper=Coordinator(zookeeper.hosts, chroot="/before")) as client:
            client.listener(OWNED)(lambda delivery: None)
            client.start()
            wait_until(lambda: "" not in client.adopt(OWNED).stored, message="owners")
            (ensemble,) = client.adopt(OWNED).stored
            client.stop()
        with pytest.raises(FencedError, match=f"the workers of topic {OWNED.name} use ZooKeeper, but zookeeper is not"):
            check(plain)
        check(own)
        adopt(connections, OWNED, ensemble, "elsewhere")
        why = f"topic {OWNED.name} has slots of ensemble elsewhere, but the ensemble at {zookeeper.hosts} is "
        with pytest.raises(EnsembleMismatchError, match=re.escape(why)):
            check(own)
