"""Prometheus loads the alerts as they are shipped; each fires and falls silent.

All of them do so in the virtual time of `promtool test rules`. Those that a stopped service or a full server sets off
do so in the running cluster, too, under shorter limits.
"""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compose import ROOT, ComposeProject, run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = "rmq-alerts.yml"
LIMIT_S = 300.0
MONITORING = ("--profile", "monitoring")

# Series, one value a minute, in promtool's notation (`1x9`: ten times 1; `0+10x9`: ten values, each 10 more), and the
# minutes when the alert is silent, when it fires, and when it is silent again.
CASES: dict[str, tuple[dict[str, str], tuple[int, int, int]]] = {
    "RmqNotMeasured": ({"rmq_up": "1x9 0x9 1x9"}, (9, 14, 25)),
    "RmqStuck": ({'rmq_oldest_due_age_seconds{topic="a"}': "0x9 600x9 0x9"}, (9, 14, 25)),
    "RmqNothingDelivered": (
        {
            'rmq_due{topic="a"}': "5x49",
            'rmq_slots_paused{topic="a"}': "0x49",
            'rmq_messages_total{topic="a",event="delivered"}': "0+10x9 90x19 90+10x19",
        },
        (9, 25, 40),
    ),
    "RmqGroupBehind": ({'rmq_group_lag{topic="a",group="g"}': "0x9 0+10x59 0x19"}, (9, 60, 80)),
    "RmqDeadGrowing": ({'rmq_dead{topic="a"}': "0x9 0+1x19 19x39"}, (9, 25, 50)),
    "RmqContentsFailAgain": (
        {'rmq_messages_total{topic="a",event="refailed"}': "0x9 0+1x29 29x29"},
        (9, 30, 55),
    ),
    "RmqSlotWithoutOwner": ({'rmq_slots_unowned{topic="a"}': "0x9 3x9 0x9"}, (9, 14, 25)),
    "RmqRedisMemory": (
        {
            'rmq_redis_memory_used_bytes{server="s"}': "10x9 90x19 10x9",
            'rmq_redis_memory_limit_bytes{server="s"}': "100x39",
        },
        (9, 25, 35),
    ),
    "RmqHandlersFail": (
        {
            'rmq_handler_seconds_count{topic="a",outcome="failed"}': "0x9 0+10x19 190x19",
            'rmq_handler_seconds_count{topic="a",outcome="acked"}': "0+10x9 90+1x19 109+10x19",
        },
        (9, 25, 45),
    ),
    "RmqHandlerHangs": ({'rmq_longest_handler_seconds{topic="a"}': "5x9 700x9 5x9"}, (9, 14, 25)),
    "RmqUnaccounted": ({'rmq_unaccounted{topic="a"}': "0x9 2x9 0x9"}, (9, 14, 25)),
}


def test_each_alert_has_a_case() -> None:
    rules: Any = yaml.safe_load((PROMETHEUS / RULES).read_text("utf-8"))
    assert CASES.keys() == {rule["alert"] for group in rules["groups"] for rule in group["rules"]}


@pytest.mark.usefixtures("engine")
def test_each_alert_fires_and_falls_silent(tmp_path: Path) -> None:
    tests = [
        {
            "interval": "1m",
            "name": alert,
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": "{}", "value": value}],
                }
                for minute, value in zip(minutes, (0, 1, 0), strict=True)
            ],
        }
        for alert, (series, minutes) in CASES.items()
    ]
    _readable(tmp_path)
    (tmp_path / RULES).write_text((PROMETHEUS / RULES).read_text("utf-8"))
    (tmp_path / "tests.yml").write_text(
        json.dumps({"rule_files": [RULES], "evaluation_interval": "1m", "tests": tests})
    )
    assert "SUCCESS" in promtool(tmp_path, "test", "rules", "/shipped/tests.yml")


@pytest.mark.usefixtures("engine")
def test_prometheus_accepts_what_is_shipped() -> None:
    assert f"{len(CASES)} rules found" in promtool(PROMETHEUS, "check", "config", "/shipped/prometheus.yml")


def promtool(folder: Path, *arguments: str) -> str:
    """Run the promtool of Compose's image on a folder, which it sees as /shipped."""
    compose: Any = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    image = compose["services"]["prometheus"]["image"]
    mount = ("--volume", f"{folder}:/shipped:ro", "--workdir", "/shipped")
    return run("docker", "run", "--rm", *mount, "--entrypoint", "promtool", image, *arguments)


def _readable(folder: Path) -> None:
    """Let the user of the image read a folder of ours."""
    folder.chmod(0o755)


class Prometheus:
    """The Prometheus of the cluster.

    Args:
        port: Its port.
    """

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str) -> Any:
        """Return the data of an answer; None while there is none."""
        try:
            with urllib.request.urlopen(f"{self._url}/{path}", timeout=60) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        alerts = self.get("alerts")
        return {alert["labels"]["alertname"] for alert in alerts["alerts"] if alert["state"] == "firing"}

    def targets(self) -> dict[str, int]:
        """Return how many targets of each job answer."""
        jobs = [each["labels"]["job"] for each in self.get("targets")["activeTargets"] if each["health"] == "up"]
        return {job: jobs.count(job) for job in jobs}


@pytest.fixture(scope="module")
def prometheus(cluster: ComposeProject) -> Iterator[Prometheus]:
    """A Prometheus beside the cluster, with the shipped alerts under shorter limits."""
    text = re.sub(r"for: \w+", "for: 2s", (PROMETHEUS / RULES).read_text("utf-8"))
    text = re.sub(r"\[\d+m\]", "[20s]", text).replace("> 300", "> 5")
    (cluster.settings / RULES).write_text(text)
    settings = (PROMETHEUS / "prometheus.yml").read_text("utf-8").replace("interval: 5s", "interval: 1s")
    (cluster.settings / "prometheus.yml").write_text(settings)
    cluster(*MONITORING, "up", "--detach", "--no-recreate", "metrics", "prometheus", slow=True)
    asked = Prometheus(cluster.ports["RMQ_PROMETHEUS_PORT"])
    wait_until(lambda: asked.get("targets") is not None, LIMIT_S, "Prometheus")
    wait_until(lambda: asked.targets() == {"rmq": 1, "rmq-workers": 2}, LIMIT_S, "all targets to answer")
    wait_until(lambda: not asked.firing(), LIMIT_S, "no alert")
    yield asked
    cluster(*MONITORING, "stop", "metrics", "prometheus", slow=True)


def test_alerts_are_loaded(prometheus: Prometheus) -> None:
    (group,) = prometheus.get("rules")["groups"]
    assert {rule["name"] for rule in group["rules"]} == CASES.keys()
    assert all(rule["health"] == "ok" for rule in group["rules"])


def test_an_exporter_that_is_gone_is_told(cluster: ComposeProject, prometheus: Prometheus) -> None:
    cluster(*MONITORING, "stop", "metrics", slow=True)
    wait_until(lambda: "RmqNotMeasured" in prometheus.firing(), LIMIT_S, "the alert")
    cluster(*MONITORING, "start", "metrics", slow=True)
    wait_until(lambda: not prometheus.firing(), LIMIT_S, "silence")


def test_workers_that_are_gone_are_told(cluster: ComposeProject, prometheus: Prometheus) -> None:
    expected = {"RmqStuck", "RmqNothingDelivered", "RmqSlotWithoutOwner"}
    cluster("stop", "worker", slow=True)
    wait_until(lambda: expected <= prometheus.firing(), LIMIT_S, "the alerts")
    cluster("start", "worker", slow=True)
    wait_until(lambda: not prometheus.firing(), LIMIT_S, "silence")


def test_a_server_that_gets_full_is_told(cluster: ComposeProject, prometheus: Prometheus) -> None:
    (server,) = cluster.containers("redis-2")
    info = run("docker", "exec", server, "redis-cli", "info", "memory")
    used = int(re.findall(r"used_memory:(\d+)", info)[0])
    run("docker", "exec", server, "redis-cli", "config", "set", "maxmemory", str(used * 110 // 100))
    try:
        wait_until(lambda: "RmqRedisMemory" in prometheus.firing(), LIMIT_S, "the alert")
    finally:
        run("docker", "exec", server, "redis-cli", "config", "set", "maxmemory", "0")
    wait_until(lambda: not prometheus.firing(), LIMIT_S, "silence")
