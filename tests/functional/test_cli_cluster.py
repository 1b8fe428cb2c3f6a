"""`rmq cluster` and `rmq bench`: what they show, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.support import harness
from rmq import RmqClient
from rmq.cli.commands import demo
from tests.support.cli import Cli
from tests.support.waiting import wait_until


def test_a_cluster_comes_is_shown_and_goes(cli: Cli, tmp_path: Path) -> None:
    folder = str(tmp_path / "c")
    assert "has no cluster" in cli("cluster", "status", "--folder", folder, code=2).err
    try:
        started = cli("cluster", "up", "--folder", folder, "--workers", "0", "--no-producer", "--json").json
        assert started["phase"] == "ready"
        names = [process["name"] for process in started["processes"]]
        assert names == [*(f"redis-{n}" for n in range(1, 7)), *(f"zookeeper-{n}" for n in range(1, 4))]
        with RmqClient(started["environment"]["RMQ_URL"]) as client:
            assert client.topics() == []
        shown = cli("cluster", "status", "--folder", folder).out
        assert "export RMQ_URL=redis+cluster://" in shown
        assert "redis-1" in shown
    finally:
        ended = cli("cluster", "down", "--folder", folder, "--delete").out
    assert ended.strip() == "stopped"
    assert cli("cluster", "down", "--folder", folder, "--json").json == {"was_running": False, "deleted": False}


def test_a_cluster_without_zookeepers_keeps_owners_in_redis(cli: Cli, tmp_path: Path) -> None:
    folder = str(tmp_path / "c")
    try:
        options = ("--folder", folder, "--workers", "2", "--owners", "redis")
        started = cli("cluster", "up", *options, "--json").json
        names = [process["name"] for process in started["processes"]]
        assert names == ["producer", *(f"redis-{n}" for n in range(1, 7)), "worker-1", "worker-2"]
        assert started["environment"].keys() == {"RMQ_URL"}
        with RmqClient(started["environment"]["RMQ_URL"]) as client:

            def owned() -> bool:
                workers = client.workers()
                return sorted(len(each.listeners[0].slots) for each in workers) == [32, 32]

            wait_until(owned, 120)
            wait_until(lambda: client.inspect("price-picture").stats().total("acked"), 120)
    finally:
        assert cli("cluster", "down", "--folder", folder, "--delete").out.strip() == "stopped"


def test_benchmarks_are_listed_and_run(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = {row["benchmark"]: row["measures"] for row in cli("bench", "--json").lines}
    assert {"cost", "throughput", "latency"} <= set(listed)
    assert all(listed.values())
    assert "unknown benchmark 'speed'" in cli("bench", "speed", code=2).err
    monkeypatch.setattr(harness, "FIRST_LOOKS", tmp_path)  # not over what was measured
    cli("bench", "journeys", "--quick", "--", "--repeats", "1")
    assert (tmp_path / "journeys.json").exists()


def test_benchmarks_need_a_checkout(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo.rmq, "__file__", str(tmp_path / "rmq" / "__init__.py"))
    assert "clone the repository" in cli("bench", code=2).err
