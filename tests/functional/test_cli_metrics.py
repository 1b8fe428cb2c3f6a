"""`rmq metrics`, and a worker that answers Prometheus and logs JSON lines."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from rmq import PriorityMessage, RmqClient, TopicType
from tests.conftest import MakeTopic
from tests.support.cli import Cli
from tests.support.waiting import wait_until

JOBS = """
import logging, rmq
client = rmq.RmqClient()

@client.listener(rmq.Topic({topic!r}, rmq.TopicType.PRIORITY, max_retries=0), threads=4, adaptive=rmq.Adaptive())
def handle(delivery):
    logging.getLogger("shop").info("at work")
    raise ValueError(delivery.text)
"""
EVIL = "\x1b[31mred\x07"


def test_it_prints_what_prometheus_reads(cli: Cli, redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    with RmqClient(redis_url) as client:
        client.producer(topic).send(PriorityMessage("a", 100))
    families = text_string_to_metric_families(cli("metrics", "--once", "--url", redis_url).out)
    samples = [sample for family in families for sample in family.samples]
    assert [each.value for each in samples if each.name == "rmq_backlog" and each.labels["topic"] == topic.name] == [1]


def test_it_serves_until_it_is_told_to_end(cli: Cli) -> None:
    with cli.process("metrics", "--port", "0") as process:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/metrics", process.stderr.readline())
        assert found is not None
        with urllib.request.urlopen(found[0]) as answer:
            assert b"rmq_up 1.0" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


@contextmanager
def at_work(redis_url: str, folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run the client of `jobs.py` in this folder; yield the process, and the file that has its log."""
    log, to = folder / "log", Cli(redis_url)
    with (
        log.open("w+") as err,
        to.process("worker", "jobs:client", *options, cwd=folder, stdout=None, stderr=err) as it,
    ):
        yield it, log


def test_a_worker_answers_prometheus_and_logs_json(redis_url: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=0)
    (tmp_path / "jobs.py").write_text(JOBS.format(topic=topic.name), "utf-8")
    options = ["--metrics-port", "20460", "--metrics-host", "0.0.0.0", "--log-format", "json", "--handlers", "2"]
    with at_work(redis_url, tmp_path, *options) as (process, log):
        with RmqClient(redis_url) as client:
            client.producer(topic).send(PriorityMessage(EVIL, 100))
            wait_until(lambda: client.inspect(topic).stats().dead == 1, 60)
        found = wait_until(lambda: re.search(r"http://0\.0\.0\.0:(\d+)/metrics", log.read_text("utf-8")), 60)
        assert found is not None
        with urllib.request.urlopen(f"http://127.0.0.2:{found[1]}/metrics") as answer:  # another one of this machine
            assert f'rmq_handler_seconds_count{{outcome="failed",topic="{topic.name}"}} 1.0' in answer.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    logged = log.read_text("utf-8")
    assert "\x1b" not in logged
    lines = [json.loads(line) for line in logged.splitlines()]
    own = next(line for line in lines if line["logger"] == "shop")
    assert (own["message"], own["content"]) == ("at work", "\\x1b[31mred\\x07")
    failed = next(line for line in lines if "failed" in line["message"])
    assert (failed["topic"], failed["attempt"]) == (topic.name, 1)
    assert "ValueError" in failed["traceback"]


def test_each_of_several_processes_answers_prometheus(redis_url: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=0)
    jobs = JOBS.replace(", adaptive=rmq.Adaptive()", "")  # which lets no message die where all fail
    (tmp_path / "jobs.py").write_text(jobs.format(topic=topic.name), "utf-8")

    def failed(address: str) -> float:
        with urllib.request.urlopen(address) as answer:
            samples = [
                sample for family in text_string_to_metric_families(answer.read().decode()) for sample in family.samples
            ]
        named = [sample for sample in samples if sample.labels.get("topic") == topic.name]
        return sum(sample.value for sample in named if sample.name == "rmq_handler_seconds_count")

    with at_work(redis_url, tmp_path, "--processes", "2", "--metrics-port", "20560") as (process, log):

        def found() -> set[str]:
            return set(re.findall(r"http://127\.0\.0\.1:\d+/metrics", log.read_text("utf-8")))

        wait_until(lambda: len(found()) == 2, 100)
        addresses = found()
        with RmqClient(redis_url) as client:
            client.producer(topic).send_many(PriorityMessage(f"m{n}", 100) for n in range(40))
            wait_until(lambda: client.inspect(topic).stats().dead == 40, 60)
        wait_until(lambda: sum(map(failed, addresses)) == 40, 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0


def test_a_host_without_a_port_and_no_host_are_refused(cli: Cli) -> None:
    ran = cli("worker", "jobs:client", "--metrics-host", "0.0.0.0", code=2)
    assert "--metrics-host '0.0.0.0' requires --metrics-port" in ran.err
    for host in ("", "no such host", "a\x00b", "x" * 300):
        ran = cli("metrics", "--host", host, "--port", "0", code=2)
        assert "Traceback" not in ran.err
        assert "listen on" in ran.err
