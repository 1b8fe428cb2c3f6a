"""The demo as its users start it: in a process of its own, with the embedded Redis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from rmq import RmqClient
from rmq.demo.jobs import newest_prices, parts_of
from rmq.demo.orders import read_orders
from rmq.demo.pictures import read_prices
from tests.support.cli import Cli
from tests.support.servers import RedisServer

RUN = "import sys; from rmq.demo.show import run; sys.exit(run(url=sys.argv[1] or None, seconds=3, json_output={json}))"


def start(url: str = "", *, as_json: bool = True, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN.format(json=as_json), url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={name: value for name, value in os.environ.items() if name != "RMQ_URL"} | variables,
        start_new_session=True,
    )


def at_work() -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start one that sends and handles; return it, and what it has started."""
    demo = start(as_json=False)
    assert demo.stdout is not None
    while "lines; sent" not in demo.stdout.readline():
        pass
    return demo, psutil.Process(demo.pid).children(recursive=True)


def check(summary: dict[str, object]) -> None:
    assert summary["ok"] is True
    assert summary["order_lines"] == 4_940
    topics = summary["topics"]
    assert isinstance(topics, dict)
    assert len(topics) == 4
    for topic in topics.values():
        assert topic["accepted"] - topic["merged"] == topic["acked"] + topic["dead"] + topic["cancelled"]
        assert topic["backlog"] == topic["in_flight"] == topic["waiting"] == topic["left"] == topic["missing"] == 0
        assert topic["delivered"] > 0
        assert topic["retried"] > 0
    assert topics["demo.price-picture"]["accepted"] == 1_404
    assert topics["demo.price-picture"]["merged"] > 0
    assert topics["demo.customer-picture"]["accepted"] == 2_429
    assert topics["demo.close-order"]["cancelled"] > 0
    assert topics["demo.takings"]["accepted"] == 4_940
    assert topics["demo.takings"]["merged"] > 4_000
    assert topics["demo.takings"]["dead"] == 0
    assert summary["takings_pence"] == {"booked": 8_141_778, "by_the_orders": 8_141_778}


def check_pictures(summary: dict[str, Any], folder: Path) -> None:
    """Count and read the pictures, without trusting the demo's own checks."""
    newest = newest_prices(read_orders())
    found = read_prices(folder / "pictures")
    assert len(found) > 1_900
    assert {content: pence for content, pence in found.items() if pence != newest[parts_of(content)[0]]} == {}
    for name, saved in summary["pictures"].items():
        topic = summary["topics"][name]
        assert saved["drawn"] == topic["acked"] == saved["asked"] - saved["saved"] - topic["dead"]
        assert saved["saved"] == topic["merged"] > 0
    # On a slow machine a handler takes so long that a claim has one message, and the claims compare nothing.
    late_ms = [tier["mean_ms"] for tier in summary["lateness_by_tier"].values()]
    assert len(late_ms) == 3
    assert late_ms == sorted(late_ms), "larger customers wait less"
    with Image.open(summary["contact_sheet"]) as sheet:
        assert sheet.width > 1_000
        assert sheet.height > 900


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_the_accounts_are_right_with_an_embedded_redis() -> None:
    demo = start()
    out, err = demo.communicate(timeout=80)
    assert demo.returncode == 0, err
    summary = json.loads(out)
    check(summary)
    assert any("MissingPhotoError" in message["error"] for message in summary["dead"])


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_the_command_line_passes_its_options_on_and_can_be_repeated(tmp_path: Path) -> None:
    with RedisServer() as server:
        options = ["--seconds", "2", "--json", "--url", server.url, "--pictures", str(tmp_path)]
        with Cli("redis://127.0.0.1:1").process("demo", *options) as demo:
            out, err = demo.communicate(timeout=80)
        assert demo.returncode == 0, err
        summary = json.loads(out)
        check(summary)
        assert summary["seconds"] == 2
        check_pictures(summary, tmp_path)
        with RmqClient(server.url) as client:
            assert client.inspect("demo.close-order").stats().total("acked") > 0
        again = start(server.url, as_json=False, PYTHONIOENCODING="ascii")
        out, err = again.communicate(timeout=70)
        assert again.returncode == 0, err
        assert "Nothing was lost" in out
        assert max(map(len, out.splitlines())) < 160


@pytest.mark.timeout(90)
def test_ctrl_c_ends_it_and_leaves_nothing_behind() -> None:
    demo, started = at_work()
    assert len(started) >= 2
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130, err
    assert "Traceback" not in err
    assert not psutil.wait_procs(started, timeout=40)[1]


@pytest.mark.timeout(90)
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the workers by their command lines")
def test_a_worker_that_dies_is_reported() -> None:
    demo, started = at_work()
    worker = next(each for each in started if "rmq.demo.worker" in each.cmdline())
    worker.kill()
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert "a worker of the demo ended with code -9" in err
    assert not psutil.wait_procs(started, timeout=40)[1]


@pytest.mark.timeout(90)
def test_workers_end_when_the_demo_is_killed() -> None:
    demo, workers = at_work()
    demo.kill()
    demo.communicate(timeout=20)
    assert not psutil.wait_procs(workers, timeout=40)[1]
