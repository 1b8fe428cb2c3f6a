"""The end of a query's process that owns slots: Spark closes its pipe and sends SIGTERM, in any order."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rmq import Coordinator, RmqClient, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperEnsemble

SESSION_S = 600
"""A session that no test waits for."""

PROGRAM = f"""
import os, signal, sys
from rmq._ownership.follower import OwnershipFollower
from rmq.spark.options import parse_options
from rmq.spark.source.reader import RmqStreamReader

url, topic, hosts, chroot, moment = sys.argv[1:]
options = parse_options({{"url": url, "topic": topic, "zookeeper": hosts, "zookeeperChroot": chroot,
    "zookeeperSessionSeconds": "{SESSION_S}"}})

def end():
    os.kill(os.getpid(), signal.SIGTERM)

def stop(follower, real=OwnershipFollower.stop):
    if moment == "within":
        end()
    real(follower)

OwnershipFollower.stop = stop
reader = RmqStreamReader(None, options)
reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
try:  # as pyspark.sql.streaming.python_streaming_source_runner does
    try:
        print("joined", flush=True)  # from here on a signal ends it as one that comes while it waits
        if moment == "while it waits":
            sys.stdin.read()
        raise EOFError
    finally:
        if moment == "before":
            end()
        reader.stop()
except BaseException:
    sys.exit(-1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["never", "while it waits", "before", "within"])
def test_its_slots_go_back_at_once(
    make_topic: MakeTopic, redis_server: RedisServer, zookeeper: ZooKeeperEnsemble, moment: str
) -> None:
    topic: Topic = make_topic(TopicType.PRIORITY, slots=4)
    with RmqClient(redis_server.url) as client:
        client.consumer(topic).close()  # registers it
    chroot = f"/{topic.name}"
    arguments = [redis_server.url, topic.name, zookeeper.hosts, chroot, moment]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as query:
        assert query.stdout is not None
        assert query.stdout.readline() == "joined\n"
        if moment == "while it waits":
            query.terminate()
        query.wait(60)
    assert query.returncode == 255
    worker = Coordinator(zookeeper.hosts, chroot=chroot, session_timeout_s=SESSION_S)
    worker.start()
    try:
        worker.consume(topic.name, topic.slots)
        wait_until(lambda: len(worker.owned()) == topic.slots)
    finally:
        worker.stop(drain=False)
