"""What Prometheus reads is what is there; the alerts and the dashboard name nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rmq import (
    Delivery,
    ImmediateRetry,
    Merge,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    StreamMessage,
    Sum,
    TopicType,
)
from rmq.errors import InvalidValueError, RedisUnavailableError
from rmq.metrics import Handlers, TopicsCollector, render, serve, serve_handlers
from tests.conftest import MakeTopic
from tests.support.clients import run_until
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
ALERTS = DEPLOY / "prometheus" / "rmq-alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "rmq.json"
NAME = re.compile(r"\brmq_[a-z_]+")


def parsed(text: str) -> dict[tuple[str, ...], float]:
    """Sample -> value: (name, topic, other label)."""
    return {
        (
            sample.name,
            *(value for _, value in sorted(sample.labels.items(), key=lambda each: each[0] != "topic")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def figures(client: RmqClient) -> dict[tuple[str, ...], float]:
    return parsed(render(client))


def exported_names() -> set[str]:
    """Every sample that can be exported: a registry that nobody has used yet names its families only."""
    registry = CollectorRegistry()
    Handlers(registry)
    handlers = {family.name for family in text_string_to_metric_families(generate_latest(registry).decode())}
    with RedisServer() as server, RmqClient(server.url) as client:
        topics: set[str] = set()
        family: Metric
        for family in TopicsCollector(client).collect():
            topics.add(family.name + ("_total" if family.type == "counter" else ""))
    buckets = {f"{name}_{end}" for name in handlers for end in ("bucket", "count", "sum", "total")}
    return handlers | buckets | topics


def test_every_figure_of_a_topic_is_there(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2, max_retries=0, retry=ImmediateRetry())
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100 + i) for i in range(10))
    client.producer(topic).send(PriorityMessage("m1", 900))
    with client.consumer(topic) as consumer:
        held = consumer.poll(4)
        held[0].ack()
        held[1].bury("no")
        found = figures(client)
    name = topic.name
    assert found["rmq_up",] == 1
    assert found["rmq_backlog", name] == found["rmq_due", name] == 6
    assert (found["rmq_in_flight", name], found["rmq_dead", name], found["rmq_waiting", name]) == (2, 1, 0)
    assert found["rmq_messages_total", name, "accepted"] == 11
    assert found["rmq_messages_total", name, "merged"] == 1
    assert found["rmq_merged_ratio", name] == pytest.approx(1 / 11)
    assert found["rmq_messages_total", name, "acked"] == 1
    assert (found["rmq_slots", name], found["rmq_unaccounted", name]) == (2, 0)
    assert ("rmq_oldest_due_age_seconds", name) not in found  # a PRIORITY topic does not know
    assert ("rmq_slots_unowned", name) not in found  # no ZooKeeper
    memory = [value for key, value in found.items() if key[0] == "rmq_redis_memory_used_bytes"]
    assert memory
    assert min(memory) > 100_000


def test_lateness_of_a_time_topic_in_seconds(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE)
    client.producer(topic).send(RangeMergeMessage("a", time_range_ms=1))
    wait_until(lambda: figures(client)["rmq_oldest_due_age_seconds", topic.name] > 0.2)
    assert figures(client)["rmq_oldest_due_age_seconds", topic.name] < 100


def test_groups_of_stream_topics(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, checked=False)
    with client.consumer(topic, group="g", start="all") as consumer:
        client.producer(topic).send_many(StreamMessage(f"e{i}") for i in range(5))
        consumer.poll(2, 50)
        found = figures(client)
    assert found["rmq_stream_length", topic.name] == 5
    assert found["rmq_group_in_flight", topic.name, "g"] == 2


def test_a_worker_measures_its_handlers(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=0)
    hold = threading.Event()

    @client.listener(topic)
    def handle(delivery: Delivery) -> None:
        hold.wait(30)
        if delivery.text == "bad":
            raise ValueError("no")

    server = serve_handlers(client, port=19_460)
    try:

        def found() -> dict[tuple[str, ...], float]:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
                return parsed(answer.read().decode())

        client.producer(topic).send_many(PriorityMessage(name, 100) for name in ("a", "b", "bad"))
        client.start()
        wait_until(lambda: found().get(("rmq_handlers_running", topic.name)) == 1)
        hold.set()
        wait_until(lambda: found().get(("rmq_deliveries_settled_total", topic.name, "ack")) == 2)
        wait_until(lambda: found().get(("rmq_deliveries_settled_total", topic.name, "retry")) == 1)
        assert found()["rmq_handler_seconds_count", topic.name, "done"] == 2
        assert found()["rmq_handler_seconds_count", topic.name, "failed"] == 1
        second = serve_handlers(client, port=server.port)  # as the next process of the same worker
        assert second.port != server.port
        second.close()
    finally:
        hold.set()
        server.close()


def test_a_folder_of_multiprocess_metrics_is_left_alone(tmp_path: Path) -> None:
    """A worker may have inherited it from a web server; it may not even be there."""
    program = """
import os, signal
from prometheus_client import CollectorRegistry, generate_latest
from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.metrics import Handlers
registry = CollectorRegistry()
with RmqClient("embedded://") as client:
    client.observers.all.append(Handlers(registry))
    topic = Topic("jobs", TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("a", 100))
    @client.listener(topic)
    def handle(delivery):
        os.kill(os.getpid(), signal.SIGTERM)
    client.run()
print(generate_latest(registry).decode())
"""
    for folder in (tmp_path, tmp_path / "gone"):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert "an observer of sends and handlers raised" not in ran.stderr
        assert 'rmq_handler_seconds_count{outcome="done",topic="jobs"} 1.0' in ran.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_worker_measures_how_many_sends_a_delivery_stood_for(client: RmqClient, make_topic: MakeTopic) -> None:
    topics = [make_topic(TopicType.PRIORITY, merge=Merge(Sum())), make_topic(TopicType.PRIORITY)]
    registry = CollectorRegistry()
    client.observers.all.append(Handlers(registry))
    done: list[str] = []
    for topic in topics:
        client.producer(topic).send_many(
            PriorityMessage("a", 9, body=None if topic.merge is None else 1) for _ in "123"
        )

        @client.listener(topic)
        def note(delivery: Delivery) -> None:
            done.append(delivery.topic.name)

    client.producer(topics[0]).send(PriorityMessage("b", 8, body=1, weight=1_000))
    run_until(client, lambda: len(done) == 3)
    found = parsed(generate_latest(registry).decode())
    merging, plain = (topic.name for topic in topics)
    assert (found["rmq_delivery_sends_count", merging], found["rmq_delivery_sends_sum", merging]) == (2, 1_003)
    below = [found["rmq_delivery_sends_bucket", merging, edge] for edge in ("2.0", "5.0", "500.0", "1000.0")]
    assert below == [0, 1, 1, 2]
    assert not any(key[0].startswith("rmq_delivery_sends") and plain in key for key in found)


def test_without_redis_it_answers_that_it_is_down() -> None:
    with RedisServer() as server, RmqClient(server.url, timeout_s=0.2, deadline_s=0.4) as client:
        collector = TopicsCollector(client, keep_s=0)
        values = {family.name: family.samples for family in collector.collect()}
        assert values["rmq_up"][0].value == 1
        server.stop()
        values = {family.name: family.samples for family in collector.collect()}
        assert values["rmq_up"][0].value == 0
        assert [sample.labels for sample in values["rmq_unread"]] == [{"part": "definitions"}]


@pytest.mark.parametrize(("part", "method"), [("workers", "workers"), ("memory", "server_memory")])
def test_what_can_be_read_is_exported_where_one_server_is_down(
    part: str, method: str, client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster one server holds the list of the workers, and topics have their slots on others."""
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("a", 5))

    def down() -> None:
        raise RedisUnavailableError("down")

    monkeypatch.setattr(client, method, down)
    found = figures(client)
    assert (found["rmq_up",], found["rmq_unread", part]) == (0, 1)
    assert found["rmq_backlog", topic.name] == 1
    assert (("rmq_workers",) in found) is (part != "workers")


def test_a_topic_whose_server_is_down_is_named(
    client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = client.producer(make_topic(TopicType.PRIORITY)).topic.name

    def down(topic: object) -> Any:
        raise RedisUnavailableError("gone")

    monkeypatch.setattr(client, "inspect", down)
    found = figures(client)
    assert (found["rmq_up",], found["rmq_topic_unreadable", name]) == (0, 1)


@pytest.mark.parametrize(
    ("method", "host", "status"),
    [
        ("GET", "evil.example", 421),
        ("GET", "127.0.0.1.evil.example:9460", 421),
        ("GET", "localhost:1", 200),
        ("GET", "127.0.0.1", 200),
        ("GET", "[::1]:9460", 200),
        ("POST", "localhost", 405),
        ("DELETE", "localhost", 405),
    ],
)
def test_who_may_ask_for_metrics(client: RmqClient, method: str, host: str, status: int) -> None:
    """A page elsewhere can lead its own name to a loopback address, and post whatever it likes."""
    server = serve(client, port=0)
    try:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        for path in ("/metrics", "/scale/none"):
            connection.request(method, path, headers={"Host": host})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == (404 if (path, status) == ("/scale/none", 200) else status)
            connection.close()
    finally:
        server.close()


def test_a_server_that_others_can_reach_has_any_name(client: RmqClient) -> None:
    server = serve(client, "0.0.0.0", 0)
    try:
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/metrics", headers={"Host": "rmq.shop.svc:9460"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
    finally:
        server.close()


def test_many_who_ask_at_once_cost_one_reading(client: RmqClient) -> None:
    collector = TopicsCollector(client, keep_s=1_000)
    assert next(iter(collector.collect())) is next(iter(collector.collect()))


def test_a_port_that_is_taken_is_a_clear_error(client: RmqClient) -> None:
    server = serve(client, port=0)
    try:
        with pytest.raises(InvalidValueError, match="cannot listen"):
            serve(client, port=server.port)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            assert parsed(answer.read().decode())["rmq_up",] == 1
    finally:
        server.close()


def alert_expressions() -> dict[str, str]:
    rules: Any = yaml.safe_load(ALERTS.read_text("utf-8"))
    return {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


def test_alerts_name_only_what_is_exported() -> None:
    expressions, exported = alert_expressions(), exported_names()
    assert {"RmqStuck", "RmqDeadGrowing", "RmqSlotWithoutOwner", "RmqRedisMemory"} <= expressions.keys()
    for alert, expression in expressions.items():
        names = set(NAME.findall(expression))
        assert names, alert
        assert names <= exported, alert
    for rule in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"][0]["rules"]:
        assert rule["for"]
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_dashboard_names_only_what_is_exported() -> None:
    board: Any = json.loads(DASHBOARD.read_text("utf-8"))
    exported = exported_names()
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(targets) > 10
    for expression in targets:
        assert set(NAME.findall(expression)) <= exported, expression
        assert expression.count("(") == expression.count(")")
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in board["panels"]}) == len(places)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on this machine")
def test_promtool_accepts_the_alerts() -> None:
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True, timeout=60)
