"""`rmq metrics`, and a worker that answers Prometheus and logs JSON lines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from rmq import PriorityMessage, RmqClient, TopicType
from tests.conftest import MakeTopic
from tests.support.cli import Cli
from tests.support.waiting import wait_until

RMQ = [sys.executable, "-c", "from rmq.cli import main; main()"]
JOBS = """
import logging, rmq
client = rmq.RmqClient()

@client.listener(rmq.Topic({topic!r}, rmq.TopicType.PRIORITY, max_retries=0), threads=4, adaptive=rmq.Adaptive())
def handle(delivery):
    logging.getLogger("shop").info("at work")
    raise ValueError(delivery.text)
"""
EVIL = "\x1b[31mred\x07"


def test_it_prints_what_prometheus_reads(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    with RmqClient(redis_url) as client:
        client.producer(topic).send(PriorityMessage("a", 100))
    ended = subprocess.run([*RMQ, "metrics", "--once", "--url", redis_url], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    samples = [sample for family in text_string_to_metric_families(ended.stdout) for sample in family.samples]
    assert [each.value for each in samples if each.name == "rmq_backlog" and each.labels["topic"] == topic.name] == [1]


def test_it_serves_until_it_is_told_to_end(redis_url: str) -> None:
    process = subprocess.Popen([*RMQ, "metrics", "--port", "0", "--url", redis_url], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+/metrics", process.stderr.readline())
        assert found is not None
        with urllib.request.urlopen(found[0]) as answer:
            assert b"rmq_up 1.0" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_worker_answers_prometheus_and_logs_json(redis_url: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=0)
    (tmp_path / "jobs.py").write_text(JOBS.format(topic=topic.name), "utf-8")
    options = ["--metrics-port", "20460", "--metrics-host", "0.0.0.0", "--log-format", "json", "--handlers", "2"]
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(
        [*RMQ, "worker", "jobs:client", *options], cwd=tmp_path, stderr=log, env={**os.environ, "RMQ_URL": redis_url}
    )

    def logged() -> str:
        return (tmp_path / "log").read_text("utf-8")

    try:
        with RmqClient(redis_url) as client:
            client.producer(topic).send(PriorityMessage(EVIL, 100))
            wait_until(lambda: client.inspect(topic).stats().dead == 1, 60)
        found = wait_until(lambda: re.search(r"http://0\.0\.0\.0:(\d+)/metrics", logged()), 60)
        assert found is not None
        with urllib.request.urlopen(
            f"http://127.0.0.2:{found[1]}/metrics"
        ) as answer:  # another address of this machine
            assert f'rmq_handler_seconds_count{{outcome="failed",topic="{topic.name}"}} 1.0' in answer.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        log.close()
    assert "\x1b" not in logged()
    lines = [json.loads(line) for line in logged().splitlines()]
    own = next(line for line in lines if line["logger"] == "shop")
    assert (own["message"], own["content"]) == ("at work", "\\x1b[31mred\\x07")
    failed = next(line for line in lines if "failed" in line["message"])
    assert (failed["topic"], failed["attempt"]) == (topic.name, 1)
    assert "ValueError" in failed["traceback"]


def test_each_of_several_processes_answers_prometheus(redis_url: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=0)
    jobs = JOBS.replace(", adaptive=rmq.Adaptive()", "")  # which lets no message die where all fail
    (tmp_path / "jobs.py").write_text(jobs.format(topic=topic.name), "utf-8")
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(
        [*RMQ, "worker", "jobs:client", "--processes", "2", "--metrics-port", "20560"],
        cwd=tmp_path, stderr=log, env={**os.environ, "RMQ_URL": redis_url},
    )  # fmt: skip

    def found() -> set[str]:
        return set(re.findall(r"http://127\.0\.0\.1:\d+/metrics", (tmp_path / "log").read_text("utf-8")))

    def failed(address: str) -> float:
        with urllib.request.urlopen(address) as answer:
            samples = [
                sample for family in text_string_to_metric_families(answer.read().decode()) for sample in family.samples
            ]
        named = [sample for sample in samples if sample.labels.get("topic") == topic.name]
        return sum(sample.value for sample in named if sample.name == "rmq_handler_seconds_count")

    try:
        wait_until(lambda: len(found()) == 2, 100)
        addresses = found()
        with RmqClient(redis_url) as client:
            client.producer(topic).send_many(PriorityMessage(f"m{n}", 100) for n in range(40))
            wait_until(lambda: client.inspect(topic).stats().dead == 40, 60)
        wait_until(lambda: sum(map(failed, addresses)) == 40, 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
    finally:
        process.kill()
        process.wait()
        log.close()


def test_a_host_without_a_port_and_no_host_are_refused(cli: Cli) -> None:
    ran = cli("worker", "jobs:client", "--metrics-host", "0.0.0.0", code=2)
    assert "--metrics-host '0.0.0.0' requires --metrics-port" in ran.err
    for host in ("", "no such host", "a\x00b", "x" * 300):
        ran = cli("metrics", "--host", host, "--port", "0", code=2)
        assert "Traceback" not in ran.err
        assert "listen on" in ran.err
