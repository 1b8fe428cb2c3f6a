"""Worker processes are replaced under load, as systemd and Kubernetes do it: nothing is lost, no handler is cut."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from rmq import Health, PriorityMessage, RmqClient, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.cli import REPOSITORY, Cli
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import wait_until

DEPLOY = REPOSITORY / "deploy"

JOBS = """
import os, time
from pathlib import Path
from rmq import RmqClient, Topic, TopicType

client = RmqClient()
ledger = os.open("ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

@client.listener(Topic({topic!r}, TopicType.PRIORITY, slots=4), threads=2)
def handle(delivery):
    os.write(ledger, f"begin {{os.getpid()}} {{delivery.text}}\\n".encode())
    if delivery.text.startswith("slow"):
        while not Path("finish").exists():
            time.sleep(0.01)
    os.write(ledger, f"end {{os.getpid()}} {{delivery.text}}\\n".encode())
"""


class Answer(NamedTuple):
    status: int
    text: str


def get(port: int, path: str, host: str | None = None) -> Answer | None:
    """Ask as a kubelet does; `None` without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        reply = connection.getresponse()
        return Answer(reply.status, reply.read().decode())
    except OSError:
        return None
    finally:
        connection.close()


class Worker:
    """A worker process with a health endpoint."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def status(self, path: str) -> int | None:
        answer = get(self.port, path)
        return None if answer is None else answer.status


@contextmanager
def started(cli: Cli, folder: Path, *options: str) -> Iterator[Worker]:
    """Start a worker with options, or by the recipe whose settings are in the folder."""
    port = free_port()
    config = folder / "rmq-recipe.toml"
    if config.exists():  # all is as in the recipe, but for the program and the ports of this machine
        env = {"RMQ_CONFIG": str(config), "RMQ_WORKER_TARGET": "jobs:client", "RMQ_WORKER_HEALTH_PORT": str(port)}
        env |= {"RMQ_WORKER_METRICS_PORT": str(free_port())}
        env |= {"RMQ_WORKER_HEALTH_HOST": "127.0.0.1", "RMQ_WORKER_METRICS_HOST": "127.0.0.1"}
    else:
        env, options = {}, (*options, "--health-port", str(port), "jobs:client")
    with (folder / "log").open("a") as log:
        with cli.process("worker", *options, cwd=folder, stdout=log, stderr=log, env=env) as process:
            yield Worker(process, port)


def by_unit(folder: Path) -> int:
    """Take the settings of the systemd unit; return the seconds until systemd kills."""
    unit = (DEPLOY / "systemd" / "rmq-worker@.service").read_text()
    shutil.copy(DEPLOY / "systemd" / "rmq.toml", folder / "rmq-recipe.toml")
    return int(unit.split("TimeoutStopSec=")[1].split()[0])


def by_manifest(folder: Path) -> int:
    """Take the settings of the Kubernetes manifest; return the seconds until a kubelet kills."""
    config, deployment, _ = yaml.safe_load_all((DEPLOY / "kubernetes" / "worker.yaml").read_text())
    (folder / "rmq-recipe.toml").write_text(config["data"]["rmq.toml"])
    return deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    return make_topic(TopicType.PRIORITY, slots=4)


@pytest.fixture
def folder(tmp_path: Path, topic: Topic) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS.format(topic=topic.name))
    (tmp_path / "ledger").touch()
    return tmp_path


def ledger(folder: Path, kind: str) -> Counter[str]:
    return Counter(line.split()[2] for line in (folder / "ledger").read_text().splitlines() if line.startswith(kind))


class Load(threading.Thread):
    """Sends messages until it is stopped."""

    def __init__(self, client: RmqClient, topic: Topic) -> None:
        super().__init__(daemon=True)
        self.sent: set[str] = set()
        self._producer, self._ended = client.producer(topic), threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.002):
            name = f"quick:{len(self.sent)}"
            self._producer.send(PriorityMessage(name, 100))
            self.sent.add(name)

    def stop(self) -> None:
        self._ended.set()
        self.join()


@pytest.mark.parametrize("recipe", [by_unit, by_manifest, None])
def test_workers_are_replaced_under_load(
    cli: Cli, client: RmqClient, topic: Topic, folder: Path, recipe: Callable[[Path], int] | None
) -> None:
    options, grace_s = ([], recipe(folder)) if recipe else (["--processes=2", "--drain=40"], 45)
    load = Load(client, topic)
    with ExitStack() as workers:
        old = workers.enter_context(started(cli, folder, *options))
        wait_until(lambda: old.status("/readyz") == 200)
        assert get(old.port, "/livez") == Answer(200, "ok\n")
        load.start()
        for number in range(2):
            client.producer(topic).send(PriorityMessage(f"slow:{number}", 1000))
            wait_until(lambda: ledger(folder, "begin")[f"slow:{number}"])  # noqa: B023
            new = workers.enter_context(started(cli, folder, *options))
            wait_until(lambda: new.status("/readyz") == 200)  # noqa: B023 - only now is the old one asked to end
            old.process.send_signal(signal.SIGTERM)
            wait_until(lambda: old.status("/readyz") == 503)  # noqa: B023
            assert old.status("/livez") == 200
            assert not ledger(folder, "end")[f"slow:{number}"]
            sent = len(load.sent)
            wait_until(lambda: len(ledger(folder, "end")) > sent)  # noqa: B023 - the new one works meanwhile
            assert old.process.poll() is None
            (folder / "finish").touch()
            assert old.process.wait(grace_s) == 0  # it is not killed
            assert ledger(folder, "end")[f"slow:{number}"] == 1
            (folder / "finish").unlink()
            old = new
        load.stop()
        (folder / "finish").touch()
        expected = {*load.sent, "slow:0", "slow:1"}
        wait_until(lambda: ledger(folder, "end").keys() == expected)
        old.process.send_signal(signal.SIGTERM)
        assert old.process.wait(50) == 0
    assert ledger(folder, "begin") == ledger(folder, "end") == Counter(expected)
    stats = client.inspect(topic).stats()
    assert (stats.backlog, stats.in_flight, stats.waiting, stats.dead) == (0, 0, 0, 0)


def test_a_worker_without_redis_is_alive_but_not_ready(tmp_path: Path) -> None:
    with RedisServer() as server:
        (tmp_path / "jobs.py").write_text(JOBS.format(topic="jobs"))
        with started(Cli(server.url), tmp_path) as worker:
            wait_until(lambda: worker.status("/readyz") == 200)
            server.kill()
            wait_until(lambda: worker.status("/readyz") == 503)
            assert get(worker.port, "/readyz") == Answer(503, "Redis has not accepted this worker's last report\n")
            assert worker.status("/livez") == 200
            server.start()
            wait_until(lambda: worker.status("/readyz") == 200)
            assert worker.process.poll() is None


@pytest.mark.parametrize("options", [[], ["--processes=2"]])
def test_systemd_hears_of_the_start_the_watchdog_and_the_stop(cli: Cli, folder: Path, options: list[str]) -> None:
    path = folder / "notify"
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        systemd.settimeout(50)

        def hear(line: str) -> None:
            heard.clear()
            while line not in heard:
                heard.extend(systemd.recv(4096).decode().splitlines())

        env = {"NOTIFY_SOCKET": str(path)}
        with cli.process("worker", *options, "jobs:client", cwd=folder, env=env) as process:
            hear("READY=1")
            assert "STATUS=ready" in heard
            assert f"X_PID={process.pid}" in heard
            hear("WATCHDOG=1")
            hear("WATCHDOG=1")
            assert "READY=1" not in heard
            process.send_signal(signal.SIGTERM)
            hear("STOPPING=1")
            process.communicate(timeout=50)
            assert process.returncode == 0


def test_a_process_that_dies_makes_its_group_unready(cli: Cli, folder: Path, topic: Topic) -> None:
    with started(cli, folder, "--processes=2") as worker:
        wait_until(lambda: worker.status("/readyz") == 200)
        children = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        wait_until(lambda: (get(worker.port, "/readyz") or Answer(0, "")).text == "process 1 of 2: is starting\n")
        wait_until(lambda: worker.status("/readyz") == 200)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(50) == 0


def test_other_requests_are_refused(cli: Cli, folder: Path) -> None:
    with started(cli, folder) as worker:
        wait_until(lambda: worker.status("/readyz") == 200)
        assert get(worker.port, "/") == Answer(404, "not found; the paths are /livez and /readyz\n")
        refused = get(worker.port, "/readyz", host="evil.example")
        assert refused is not None
        assert refused.status == 421


def test_without_listeners_a_client_is_not_ready(client: RmqClient) -> None:
    assert client.health() == Health(True, ("no listener is running",))
    assert not client.health().ready


def test_a_host_needs_a_port(cli: Cli, folder: Path) -> None:
    assert (
        "--health-host '0.0.0.0' requires --health-port"
        in cli("worker", "jobs:client", "--health-host", "0.0.0.0", code=2).err
    )
