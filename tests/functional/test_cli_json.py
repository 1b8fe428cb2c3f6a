"""`--json` on every command: stdout has JSON and nothing else, one document or one line for each message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq import PriorityMessage, Retention, RmqClient, StreamMessage, Topic, TopicType
from tests.support.cli import Cli, bury
from tests.support.servers import RedisServer
from tests.unit.cli.test_help import COMMANDS

SERVICES = {
    "worker": "its log lines: test_cli_metrics.py and test_cli_settings.py",
    "metrics": "prints its address; with --once below",
    "dashboard": "prints its address: test_cli_processes.py",
    "demo": "test_demo.py",
    "cluster up": "test_cli_cluster.py",
    "cluster down": "test_cli_cluster.py",
    "cluster status": "test_cli_cluster.py",
}
"""Commands that run until they are stopped, or start other processes, and what tests their output."""

RUNS = {
    "send": "jobs late --priority 10",
    "consume": "jobs --max 1",
    "status": "",
    "stats": "jobs clicks",
    "peek": "jobs",
    "reschedule": "jobs --priority 40 late",
    "reprioritise": "jobs late 50",
    "promote": "jobs late",
    "find": "jobs late",
    "search": "jobs",
    "pause": "jobs",
    "resume": "jobs",
    "cancel": "jobs late",
    "audit": "jobs",
    "workers": "",
    "metrics": "--once",
    "adopt": "jobs",
    "doctor": "",
    "bench": "",
    "dead list": "jobs",
    "dead redrive": "jobs --limit 1",
    "dead purge": "jobs --yes",
    "purge": "jobs --yes",
    "stream groups": "clicks",
    "stream add-group": "clicks mail",
    "stream consumers": "clicks billing",
    "stream pending": "clicks billing",
    "stream move-group": "clicks mail all",
    "stream remove-consumer": "clicks billing gone",
    "stream range": "clicks",
    "stream tail": "clicks --from 1h --timeout 0.1",
    "stream delete": "clicks 1-1",
    "stream trim": "clicks",
    "stream remove-group": "clicks mail",
    "schedules put": "nightly jobs close --priority 20 --every 1h",
    "schedules list": "",
    "schedules run-now": "nightly",
    "schedules remove": "nightly",
    "topics list": "",
    "topics create": "orders --type fixed-time",
    "topics show": "orders",
    "topics change": "orders --lease 2m",
    "topics diff": "shop_of_json",
    "topics apply": "shop_of_json",
    "topics delete": "orders",
}
"""Each command with arguments, in an order in which each finds something."""

MAY_FAIL = {"status", "doctor", "stream delete", "topics diff", "dead redrive"}
"""Commands whose exit code says what they have found."""


def test_every_command_is_run() -> None:
    names = {name for name, each in COMMANDS.items() if not getattr(each, "commands", None)}
    assert {name for name in names if not name.startswith("spark ")} == RUNS.keys() | SERVICES.keys()


def test_all_of_stdout_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("shop_of_json.py").write_text("import rmq\nORDERS = rmq.Topic('orders', rmq.TopicType.FIXED_TIME)\n")
    with RedisServer() as server, RmqClient(server.url) as client:
        jobs = Topic("jobs", TopicType.PRIORITY, max_retries=0)
        clicks = Topic("clicks", TopicType.STREAM, retention=Retention(max_length=1_000))
        client.producer(jobs).send_many(PriorityMessage(f"{'long' * 60}:{number}", 20) for number in range(6))
        bury(client, jobs, 3)
        client.producer(clicks).send_many(StreamMessage(f"click:{number}") for number in range(9))
        with client.consumer(clicks, group="billing", start="all", name="gone") as consumer:
            assert consumer.poll(3)
            cli = Cli(server.url)
            for name, arguments in RUNS.items():
                ran = cli.ran([*name.split(), *arguments.split(), "--json"])
                assert ran.code == 0 or name in MAY_FAIL, (name, ran)
                found = [json.loads(line) for line in ran.out.splitlines()]
                assert found, (name, ran)
                assert "…" not in ran.out
                assert "\\u2026" not in ran.out
