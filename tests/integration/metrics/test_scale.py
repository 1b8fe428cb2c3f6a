"""What an autoscaler reads: how much work a topic has; and the page's manifest asks for what the exporter answers."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from rmq import LadderRetry, PriorityMessage, RangeMergeMessage, RmqClient, StreamMessage, TopicType
from rmq.errors import RedisUnavailableError
from rmq.metrics import Scale, scale, serve
from rmq.metrics.server import ScalePages
from tests.conftest import MakeTopic
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

PAGE = (Path(__file__).resolve().parents[3] / "docs/operate/autoscaling.md").read_text("utf-8")
MANIFESTS: list[str] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ANSWERS: list[str] = re.findall(r"^```json\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)

MODULE = import_module("rmq.metrics.server")
"""The module, in which tests replace names."""

Ask = Callable[[str], tuple[int, dict[str, Any]]]


def ask_at(port: int) -> Ask:
    def ask(path: str) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                assert answer.headers["Content-Type"] == "application/json"
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return ask


@pytest.fixture
def ask(client: RmqClient) -> Iterator[Ask]:
    """Ask a real exporter; each test asks for topics of its own, so that nothing kept is handed out."""
    server = serve(client, port=0)
    yield ask_at(server.port)
    server.close()


def test_a_topic_over_http(client: RmqClient, make_topic: MakeTopic, ask: Ask) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    client.producer(topic).send_many([PriorityMessage(f"job:{number}", 1) for number in range(5)])
    held = client.consumer(topic).poll(2, timeout=5)
    assert ask(f"/scale/{topic.name}") == (
        200,
        {"topic": topic.name, "group": None, "due_now": 3, "lateness_s": None, "in_flight": 2, "work": 5},
    )
    assert [delivery.ack() for delivery in held] == [True, True]


def test_what_is_not_due_yet_needs_no_worker(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE)
    producer = client.producer(topic)
    producer.send(RangeMergeMessage("later", timedelta(hours=1)))
    assert scale(client, topic.name) == Scale(topic.name, None, 0, 0.0, 0, 0)
    producer.send(RangeMergeMessage("now", timedelta(milliseconds=1)))
    wait_until(lambda: (scale(client, topic.name).lateness_s or 0) > 0)
    assert scale(client, topic.name).due_now == 1


def test_a_due_retry_calls_for_a_worker_where_none_runs(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, retry=LadderRetry(("1s",)))
    client.producer(topic).send(PriorityMessage("job", 1))
    [delivery] = client.consumer(topic).poll(1, timeout=5)
    delivery.nack(error="not now")
    stats = client.inspect(topic).stats()
    assert (stats.waiting, stats.due_now) == (1, 0)
    wait_until(lambda: scale(client, topic.name).work == 1)  # nobody claims, so that the retry stays where it is
    assert client.inspect(topic).stats().due_now == 0


def test_an_ended_lease_calls_for_a_worker(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, lease=timedelta(seconds=1))
    client.producer(topic).send(PriorityMessage("job", 1))
    [delivery] = client.consumer(topic).poll(1, timeout=5)
    assert scale(client, topic.name).in_flight == 1
    wait_until(lambda: scale(client, topic.name).due_now == 1)
    assert delivery.ack()  # nobody has swept it yet


def test_a_paused_topic_calls_for_nobody(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send(PriorityMessage("job", 1))
    client.control(topic).pause()
    assert scale(client, topic.name).work == 0
    client.control(topic).resume()
    assert scale(client, topic.name).work == 1


def test_a_group_of_a_stream(client: RmqClient, make_topic: MakeTopic, ask: Ask) -> None:
    topic = make_topic(TopicType.STREAM, slots=2, checked=False)
    client.stream(topic).add_group("billing", start="all")
    client.producer(topic).send_many([StreamMessage(f"page:{number}") for number in range(4)])
    held = client.consumer(topic, group="billing").poll(1, timeout=5)
    status, answer = ask(f"/scale/{topic.name}/billing")
    assert (status, answer["due_now"], answer["in_flight"], answer["work"]) == (200, 3, 1, 4)
    assert held[0].ack()


def test_wrong_questions(client: RmqClient, make_topic: MakeTopic, ask: Ask) -> None:
    stream, jobs = make_topic(TopicType.STREAM, checked=False), make_topic(TopicType.PRIORITY)
    assert client.producer(stream).topic != client.producer(jobs).topic
    client.stream(stream).add_group("billing")
    assert [ask(path)[0] for path in ("/scale/nobody", "/scale/", "/scale/a%00b")] == [404, 404, 404]
    status, answer = ask(f"/scale/{stream.name}")
    assert (status, "needs a group" in answer["error"]) == (400, True)
    assert ask(f"/scale/{stream.name}/nobody")[0] == 404
    assert ask(f"/scale/{jobs.name}/billing")[0] == 400


def test_without_redis_it_says_so_and_never_zero() -> None:
    with RedisServer() as redis, RmqClient(redis.url, timeout_s=0.2, deadline_s=0.4) as client:
        server = serve(client, port=0)
        redis.stop()
        status, answer = ask_at(server.port)("/scale/jobs")
        assert (status, list(answer)) == (503, ["error"])
        server.close()


def test_many_who_ask_at_once_cost_one_reading(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic)
    pages, told = ScalePages(client, keep_s=1_000), list[str]()

    def read() -> dict[str, Any]:
        body = pages({"PATH_INFO": f"/scale/{topic.name}"}, lambda status, headers: told.append(status))
        return json.loads(b"".join(body))

    assert read()["work"] == 0
    client.producer(topic).send(PriorityMessage("job", 1))
    assert read()["work"] == 0
    assert told == ["200 OK"] * 2


def test_the_manifest_of_the_page_asks_for_what_is_answered(client: RmqClient, make_topic: MakeTopic) -> None:
    """As KEDA does: it asks the address, takes what stands at `valueLocation`, and needs a number."""
    server = serve(client, port=0)
    triggers = [trigger for text in MANIFESTS for each in yaml.safe_load_all(text) for trigger in triggers_of(each)]
    assert triggers
    for trigger in triggers:
        assert trigger["type"] == "metrics-api"
        asked = trigger["metadata"]
        _, prefix, topic_name, *group = urlsplit(asked["url"]).path.split("/")
        assert prefix == "scale"
        topic = make_topic(TopicType.STREAM if group else TopicType.PRIORITY, checked=not group)
        assert topic_name in ("thumbnails", "clicks")
        client.producer(topic).send(StreamMessage("a") if group else PriorityMessage("a", 1))
        for name in group:
            client.stream(topic).add_group(name, start="all")
        status, answer = ask_at(server.port)("/".join(["/scale", topic.name, *group]))
        assert (status, type(answer[asked["valueLocation"]])) == (200, int)
        assert answer[asked["valueLocation"]] > float(asked.get("activationTargetValue", 0))
        assert float(asked["targetValue"]) > 0
    server.close()


def triggers_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return manifest["spec"]["triggers"] if manifest["kind"] == "ScaledObject" else []


def test_the_answer_on_the_page_has_the_names_of_the_real_one() -> None:
    assert [list(json.loads(text)) for text in ANSWERS] == [list(Scale.__dataclass_fields__)]


def test_who_waits_while_redis_is_silent_shares_one_answer(client: RmqClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waited for Redis after the other, 15 s each: more came in that time than were answered."""
    asked = list[str]()

    def silent(client: RmqClient, topic: str, group: str | None) -> Scale:
        asked.append(topic)
        wait_until(lambda: len(begun) == 5)
        raise RedisUnavailableError("Redis gave no answer")

    monkeypatch.setattr(MODULE, "scale", silent)
    pages, statuses, begun = ScalePages(client, keep_s=60.0), list[str](), list[str]()

    def ask(topic: str) -> None:
        begun.append(topic)
        pages({"PATH_INFO": f"/scale/{topic}"}, lambda status, _: statuses.append(status))

    threads = [threading.Thread(target=ask, args=(f"t{number}",)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(asked), set(statuses), len(statuses)) == (1, {"503 Service Unavailable"}, 5)


def test_it_asks_again_after_a_while(client: RmqClient, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = client.producer(make_topic(TopicType.PRIORITY)).topic
    pages, statuses = ScalePages(client, keep_s=0.01), list[str]()

    def silent(client: RmqClient, topic: str, group: str | None) -> Scale:
        raise RedisUnavailableError("Redis gave no answer")

    def ask() -> str:
        pages({"PATH_INFO": f"/scale/{topic.name}"}, lambda status, _: statuses.append(status))
        return statuses[-1]

    with monkeypatch.context() as patch:
        patch.setattr(MODULE, "scale", silent)
        assert ask() == "503 Service Unavailable"
    wait_until(lambda: ask() == "200 OK")


def test_a_peer_that_says_nothing_is_cut_off(
    client: RmqClient, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It held a thread for ever."""
    monkeypatch.setattr("rmq._processes.http_server.QuietHandler.timeout", 0.1)
    server = serve(client, port=0)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as peer:
            peer.sendall(b"GET /metrics")
            assert peer.recv(1) == b""
    finally:
        server.close()
    assert capfd.readouterr().err == ""
