"""`rmq worker --reload`: a worker in development runs with the newest files."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from tests.support.cli import Cli
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

JOBS = Topic("jobs", TopicType.PRIORITY)
MODULE = """
from pathlib import Path
from rmq import RmqClient, Topic, TopicType

client = RmqClient()
Path("started").write_text("{version}")

@client.listener(Topic("jobs", TopicType.PRIORITY))
def handle(delivery):
    Path(delivery.text).write_text("{version}")
"""


@contextmanager
def reloading(folder: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    command, settings = ["worker", "--reload", "jobs_module:client"], {"PYTHONDONTWRITEBYTECODE": "1"}
    with (folder / "log").open("wb") as log:
        try:
            with Cli(url).process(*command, cwd=folder, env=settings, stdout=None, stderr=log) as process:
                yield process
        finally:
            print(written(folder / "log"))


def written(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


@pytest.mark.timeout(300)
def test_a_change_starts_the_worker_again_also_after_an_error(tmp_path: Path) -> None:
    module = tmp_path / "jobs_module.py"
    module.write_text(MODULE.format(version="one"))
    with RedisServer() as server, RmqClient(server.url) as client, reloading(tmp_path, server.url) as worker:
        producer = client.producer(JOBS)
        producer.send(PriorityMessage("a", 1))
        wait_until(lambda: written(tmp_path / "a") == "one", 60)
        module.write_text(MODULE.format(version="two"))
        wait_until(lambda: written(tmp_path / "started") == "two", 60)
        producer.send(PriorityMessage("b", 1))
        wait_until(lambda: written(tmp_path / "b") == "two", 60)

        module.write_text("not a program")
        wait_until(lambda: "the worker exited with code" in written(tmp_path / "log"), 60)
        producer.send(PriorityMessage("c", 1))  # waits in the topic until a worker starts again
        module.write_text(MODULE.format(version="three"))
        wait_until(lambda: written(tmp_path / "c") == "three", 60)

        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
        wait_until(lambda: client.workers() == [], 60)  # its process has ended in order, too


def test_one_process_is_reloaded_and_not_several(redis_url: str) -> None:
    ran = Cli(redis_url)("worker", "--reload", "--processes", "2", "jobs_module:client", code=2)
    assert "--reload runs one process" in ran.err.replace("\n", " ")
