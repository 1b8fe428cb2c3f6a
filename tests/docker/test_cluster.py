"""The cluster of docker-compose.yml does its work, and goes on without a master, a ZooKeeper and a worker."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from rmq.demo.cluster import PICTURES
from tests.support.compose import ComposeProject, run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

LIMIT_S = 300.0
BATCH, BEFORE, AFTER = 20, 400, 400

# Sends each content until Redis has confirmed it, and prints how many it has confirmed. A line of input tells it that
# AFTER more are enough.
SENDER = f"""
import sys, threading, time
from datetime import timedelta
from itertools import count
from rmq import RangeMergeMessage, RmqClient
from rmq.demo.cluster import PICTURES
from rmq.errors import RmqError

told = threading.Event()
threading.Thread(target=lambda: sys.stdin.readline() and told.set(), daemon=True).start()
with RmqClient(durability="replicated") as client:
    producer = client.producer(PICTURES)
    enough = sys.maxsize
    for first in count(0, {BATCH}):
        numbers = range(first, first + {BATCH})
        messages = [RangeMergeMessage(f"sent-{{number}}", timedelta(milliseconds=100)) for number in numbers]
        while True:
            try:
                producer.send_many(messages)
                break
            except RmqError as error:
                print(error, file=sys.stderr, flush=True)
                time.sleep(0.2)
        print(numbers.stop, flush=True)
        if enough == sys.maxsize and told.is_set():
            enough = numbers.stop + {AFTER}
        if numbers.stop >= enough:
            break
        time.sleep(0.05)
"""

SERVICES = {
    **{f"redis-{number}": 1 for number in range(1, 7)},
    **{f"zookeeper-{number}": 1 for number in range(1, 4)},
    "producer": 1,
    "worker": 2,
    "dashboard": 1,
}


def test_all_services_are_well(cluster: ComposeProject) -> None:
    wait_until(lambda: {name: cluster.healthy(name) for name in SERVICES} == SERVICES, LIMIT_S, "healthy services")


def test_the_producers_messages_are_delivered(cluster: ComposeProject) -> None:
    wait_until(lambda: totals(cluster)["acked"] > 100, LIMIT_S, "the workers to draw the producer's pictures")


def test_no_accepted_message_is_lost_when_a_master_a_zookeeper_and_a_worker_die(cluster: ComposeProject) -> None:
    cluster("up", "--detach", "--no-recreate", "--scale", "worker=4", "worker", slow=True)
    wait_until(lambda: cluster.healthy("worker") == 4, LIMIT_S, "four healthy workers")
    with cluster.popen("run", "--rm", "--no-deps", "-T", "producer", "python", "-c", SENDER) as sender:
        assert sender.stdin is not None
        assert sender.stdout is not None
        confirmed = (int(line) for line in sender.stdout)
        try:
            next(number for number in confirmed if number >= BEFORE)
            victims = [cluster.containers(name)[0] for name in ("redis-1", "zookeeper-1", "worker")]
            run("docker", "kill", *victims)
            wait_until(lambda: _taken_over(cluster), LIMIT_S, "a replica that takes over for redis-1")
            # its shard confirms nothing before the replica has a replica of its own
            run("docker", "start", victims[0])
            sender.stdin.write("enough\n")
            sender.stdin.flush()
            sent = {f"sent-{number}" for number in range(max(confirmed))}
            assert sender.wait(60) == 0
            assert len(sent) >= BEFORE + AFTER
        finally:
            sender.kill()
    wait_until(lambda: not sent - delivered(cluster), LIMIT_S, "the delivery of every confirmed message")

    cluster("stop", "producer")
    wait_until(lambda: sizes(cluster) == (0, 0, 0), LIMIT_S, "an empty backlog")
    figures = stats(cluster)
    assert figures["unaccounted"] == figures["dead"] == 0

    # what is down comes back into the cluster, which is whole again
    run("docker", "start", *victims[1:])
    for name in ("redis-1", "zookeeper-1"):
        wait_until(lambda name=name: cluster.healthy(name) == 1, LIMIT_S, f"{name} is well again")
    wait_until(lambda: _whole(cluster), LIMIT_S, "three masters with a replica each")
    cluster("up", "--detach", "--no-recreate", "--scale", "worker=2", "producer", "worker", slow=True)
    before = totals(cluster)["acked"]
    wait_until(lambda: totals(cluster)["acked"] > before, LIMIT_S, "work that flows again")


def stats(cluster: ComposeProject) -> dict[str, Any]:
    """Return what `rmq stats` says of the topic."""
    # one of the containers may be dead: a new one asks
    text = cluster("run", "--rm", "--no-deps", "-T", "producer", "rmq", "stats", PICTURES.name, "--json")
    (topic,) = json.loads(text)["topics"]
    return topic


def totals(cluster: ComposeProject) -> dict[str, int]:
    return stats(cluster)["totals"]


def sizes(cluster: ComposeProject) -> tuple[int, int, int]:
    figures = stats(cluster)
    return figures["backlog"], figures["in_flight"], figures["waiting"]


def delivered(cluster: ComposeProject) -> set[str]:
    """Return the contents that the workers' logs name, those of dead workers, too."""
    return set(re.findall(r"drawing (sent-\d+)$", cluster("logs", "--no-color", "worker"), re.MULTILINE))


def _nodes(cluster: ComposeProject) -> list[list[str]]:
    """Return what redis-2 knows of each node: id, address, flags, its master, ..., hash slots."""
    text = run("docker", "exec", cluster.containers("redis-2")[0], "redis-cli", "cluster", "nodes")
    return [line.split() for line in text.splitlines()]


def _masters(cluster: ComposeProject) -> list[list[str]]:
    return [node for node in _nodes(cluster) if "master" in node[2] and "fail" not in node[2] and len(node) > 8]


def _taken_over(cluster: ComposeProject) -> bool:
    """Return whether three masters serve hash slots, none of which is redis-1."""
    addresses = [node[1].partition(":")[0] for node in _masters(cluster)]
    return len(addresses) == 3 and not any(address.endswith(".11") for address in addresses)


def _whole(cluster: ComposeProject) -> bool:
    """Return whether all six nodes are well, and each of three masters has one replica."""
    nodes = _nodes(cluster)
    replicas = [sum(node[3] == master[0] for node in nodes) for master in _masters(cluster)]
    return replicas == [1, 1, 1] and not any("fail" in node[2] for node in nodes)
