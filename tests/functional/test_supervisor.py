"""Several worker processes under one supervisor: started, restarted, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from rmq import ImmediateRetry, PriorityMessage, RmqClient, Topic, TopicType
from rmq._processes.supervisor import LONGEST_PAUSE_S, STEADY_S, Child, Supervisor
from rmq.errors import InvalidValueError, RmqError
from tests.conftest import MakeTopic
from tests.support.cli import Cli
from tests.support.waiting import wait_until

JOBS = """
import os, rmq
client = rmq.RmqClient()

@rmq.listener(rmq.Topic({topic!r}, rmq.TopicType.PRIORITY, slots=4))
def handle(delivery):
    with open({ledger!r}, "a") as ledger:
        print(os.getpid(), delivery.text, file=ledger)
    if delivery.text == "poison":
        os._exit(9)

client.add(*rmq.scan(__name__))
"""

SHOWN: dict[str, Any] = {"stdout": None, "stderr": None}
"""A process writes where the tests do."""


def test_every_quick_end_doubles_the_pause() -> None:
    child = Child(0)
    pauses = []
    for _ in range(10):
        pauses.append(child.ended(child.started_s + 1))
    assert pauses == [0.5, 1, 2, 4, 8, 16, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert child.start_at_s == 1 + LONGEST_PAUSE_S
    assert child.ended(child.started_s + STEADY_S) == 0.5


def test_the_number_of_processes_has_a_bound() -> None:
    for processes in (0, 1_001):
        with pytest.raises(InvalidValueError):
            Supervisor(["true"], processes, 1)


def test_it_needs_the_main_thread() -> None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            Supervisor(["true"], 1, 1).run()
        except RmqError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def run_until(supervisor: Supervisor, condition: Callable[[], object], signals: int = 1) -> int:
    """Run it in this thread; send SIGTERM to ourselves once the condition holds."""

    def stop() -> None:
        try:
            wait_until(condition)
        finally:
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.3)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        return supervisor.run()
    finally:
        thread.join()


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_one_that_ends_is_restarted_and_all_end_together(tmp_path: Path) -> None:
    ledger = tmp_path / "starts"
    note = f"import time; ledger = open({str(ledger)!r}, 'a+'); ledger.write('x'); ledger.seek(0)"
    supervisor = Supervisor(python(f"{note}; time.sleep(0 if len(ledger.read()) < 3 else 99)"), 2, 5)
    started = time.monotonic()
    code = run_until(supervisor, lambda: ledger.exists() and len(ledger.read_text()) >= 4)
    assert code == 0
    assert supervisor.pids == []
    assert time.monotonic() - started > 0.5


def test_one_that_hangs_after_it_was_ready_is_killed_and_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rmq._processes.service_manager.MOST_MISSED", 1)
    starts = tmp_path / "starts"
    ready = "from rmq._processes.service_manager import ServiceManager; ServiceManager().report(rmq.Health(True))"
    supervisor = Supervisor(
        python(f"import time, rmq; open({str(starts)!r}, 'a').write('x'); {ready}; time.sleep(99)"), 1, 5
    )
    assert run_until(supervisor, lambda: starts.exists() and len(starts.read_text()) >= 2) == 0
    assert len(starts.read_text()) >= 2
    assert "no longer feeds its watchdog (status: ready); killing it" in caplog.text
    assert "was killed by SIGKILL; restarting it in 0.5 s" in caplog.text


@pytest.mark.parametrize("signals", [1, 2])
def test_one_that_does_not_end_is_killed(signals: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._processes.supervisor.GRACE_S", 0.2 if signals == 1 else 60.0)
    deaf = tmp_path / "deaf"
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    supervisor = Supervisor(python(f"{ignore}; open({str(deaf)!r}, 'w'); time.sleep(99)"), 1, 0.1)
    assert run_until(supervisor, deaf.exists, signals) == 1
    assert supervisor.pids == []


def test_a_hopeless_start_ends_all() -> None:
    assert Supervisor(python("raise SystemExit(2)"), 2, 5).run() == 2


@contextmanager
def supervised(redis_url: str, topic: Topic, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    ledger = folder / "ledger"
    (folder / "jobs.py").write_text(JOBS.format(topic=topic.name, ledger=str(ledger)))
    elsewhere, options = Cli("redis://127.0.0.1:1"), ["--processes", "2", "--threads", "2", "--idle", "economy"]
    with elsewhere.process("--url", redis_url, "worker", "jobs:client", *options, cwd=folder, **SHOWN) as process:
        yield process, ledger


def children(process: subprocess.Popen[str]) -> set[int]:
    return {child.pid for child in psutil.Process(process.pid).children()}


def alive(pids: set[int]) -> bool:
    found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return any(process.status() != psutil.STATUS_ZOMBIE for process in found)


def handled(ledger: Path) -> dict[str, int]:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return {text: int(pid) for pid, text in (line.split() for line in lines)}


def test_workers_survive_a_poison_message_and_stop_cleanly(
    client: RmqClient, redis_url: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, lease="4s", max_retries=0)
    producer = client.producer(topic)
    with supervised(redis_url, topic, tmp_path) as (process, ledger):
        wait_until(lambda: len(children(process)) == 2)
        producer.send(PriorityMessage("poison", 1_000))
        wait_until(lambda: "poison" in handled(ledger))
        poisoned = handled(ledger)["poison"]
        wait_until(lambda: len(children(process)) == 2 and poisoned not in children(process))
        producer.send_many(PriorityMessage(f"m{number}", 1_000) for number in range(20))
        wait_until(lambda: len(handled(ledger)) == 21)
        wait_until(lambda: client.inspect(topic).stats().dead == 1)
        pids = children(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not alive(pids)
    assert client.inspect(topic).stats().in_flight == 0


def test_workers_stop_when_their_supervisor_is_killed(
    redis_url: str, make_topic: MakeTopic, tmp_path: Path, client: RmqClient
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    client.producer(topic).send(PriorityMessage("m", 1_000))
    with supervised(redis_url, topic, tmp_path) as (process, ledger):
        wait_until(lambda: "m" in handled(ledger))
        pids = children(process)
        process.kill()
        process.wait()
        wait_until(lambda: not alive(pids))


HANGS = """
import time
from pathlib import Path
from rmq import RmqClient, Topic, TopicType

client = RmqClient()

@client.listener(Topic({topic!r}, TopicType.PRIORITY), threads=2, timeout="300ms")
def handle(delivery):
    if delivery.content == b"hang" and not Path("hung").exists():
        Path("hung").touch()
        while True:
            time.sleep(60)
"""


def test_a_worker_ends_with_a_code_of_its_own_when_a_handler_hangs(
    cli: Cli, client: RmqClient, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(TopicType.PRIORITY, lease="1s", retry=ImmediateRetry())
    (tmp_path / "jobs.py").write_text(HANGS.format(topic=topic.name))
    worker = ["worker", "jobs:client", "--exit-when-hung"]
    producer = client.producer(topic)
    producer.send(PriorityMessage("hang", 1_000))
    with cli.process(*worker, cwd=tmp_path, **SHOWN) as process:
        wait_until((tmp_path / "hung").exists)
        assert process.wait(60) == 75
    (tmp_path / "hung").unlink()
    with cli.process(*worker, "--processes", "1", cwd=tmp_path, **SHOWN) as process:
        wait_until(lambda: client.inspect(topic).stats().total("acked") == 1, 120)  # by the next process
        assert (tmp_path / "hung").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
