"""The unit in `deploy/systemd` under a real systemd: started, replaced under load, its hung process killed."""

from __future__ import annotations

import shutil
import signal
import sysconfig
from collections import Counter
from pathlib import Path

import pytest
import redis

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from tests.functional.test_rollover import DEPLOY, Load
from tests.support.cli import REPOSITORY
from tests.support.servers import RedisServer
from tests.support.systemd import POSSIBLE, booted
from tests.support.waiting import wait_until

TOPIC = Topic("jobs", TopicType.PRIORITY, slots=4)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not POSSIBLE, reason="needs root, systemd and dbus")]

JOBS = """
import time
import redis
from rmq import RmqClient, Topic, TopicType

plain = redis.Redis(port={port})
client = RmqClient()

@client.listener(Topic("jobs", TopicType.PRIORITY, slots=4), threads=2)
def handle(delivery):
    plain.rpush("begin", delivery.content)
    while delivery.text.startswith("slow") and not plain.exists("finish"):
        time.sleep(0.01)
    plain.rpush("end", delivery.content)
"""

COMMAND = f"""#!/bin/sh
export LD_LIBRARY_PATH=/opt/python/lib PYTHONPATH={REPOSITORY}:{sysconfig.get_path("purelib")}
exec /opt/python/bin/python3 -c 'from rmq.cli import main; main()' "$@"
"""


def place(files: Path, port: int) -> None:
    """Install the service as docs/operate/deployment.md says; only its watchdog is quicker."""
    for path, text in {
        "srv/shop/.venv/bin/rmq": COMMAND,
        "srv/shop/shop/jobs.py": JOBS.format(port=port),
        "etc/rmq/url": f"redis://127.0.0.1:{port}\n",
        "etc/systemd/system/rmq-worker@.service.d/test.conf": "[Service]\nWatchdogSec=3\n",
    }.items():
        (files / path).parent.mkdir(parents=True, exist_ok=True)
        (files / path).write_text(text)
    (files / "srv/shop/.venv/bin/rmq").chmod(0o755)
    (files / "etc/rmq/url").chmod(0o600)
    shutil.copy(DEPLOY / "systemd" / "rmq.toml", files / "etc/rmq")
    shutil.copy(DEPLOY / "systemd" / "rmq-worker@.service", files / "etc/systemd/system")


def test_the_unit_under_load(tmp_path: Path) -> None:
    with RedisServer() as server, RmqClient(server.url) as client, redis.Redis(port=server.port) as plain:
        place(tmp_path / "files", server.port)
        with booted(tmp_path) as systemd:

            def pid(number: int) -> int:
                return int(systemd.show(f"rmq-worker@{number}", "MainPID"))

            def handled(kind: str) -> Counter[str]:
                return Counter(content.decode() for content in plain.lrange(kind, 0, -1))  # pyright: ignore

            systemd.run("systemctl", "start", "rmq-worker@1", "rmq-worker@2")  # returns when they are ready
            assert len([worker for worker in client.workers() if not worker.stale]) == 2
            assert systemd.show("rmq-worker@1", "StatusText") == "ready"
            load = Load(client, TOPIC)
            load.start()
            for number in (1, 2):
                before = pid(number)
                client.producer(TOPIC).send_many(PriorityMessage(f"slow:{number}:{n}", 1_000) for n in range(3))
                wait_until(lambda: sum(name.startswith(f"slow:{number}") for name in handled("begin")) == 3)  # noqa: B023
                systemd.run("systemctl", "restart", "--no-block", f"rmq-worker@{number}")
                wait_until(lambda: systemd.show(f"rmq-worker@{number}", "SubState") == "stop-sigterm")  # noqa: B023
                plain.set("finish", 1)
                wait_until(lambda: pid(number) not in (0, before))  # noqa: B023
                wait_until(lambda: systemd.show(f"rmq-worker@{number}", "ActiveState") == "active")  # noqa: B023
                plain.delete("finish")
                assert handled("end").keys() >= {f"slow:{number}:{n}" for n in range(3)}
                assert systemd.show(f"rmq-worker@{number}", "Result") == "success"
            load.stop()
            wait_until(lambda: len(handled("end")) == len(load.sent) + 6)
            assert handled("begin") == handled("end") == Counter(handled("end").keys())

            hung = pid(1)
            systemd.run("kill", f"-{signal.SIGSTOP.name.removeprefix('SIG')}", str(hung))
            wait_until(lambda: systemd.show("rmq-worker@1", "NRestarts") == "1")
            wait_until(lambda: systemd.show("rmq-worker@1", "ActiveState") == "active")
            assert pid(1) != hung
            assert "watchdog" in systemd.run("journalctl", "--unit=rmq-worker@1", "--no-pager").lower()
            assert systemd.run("stat", "--format=%u", f"/proc/{pid(1)}") != "0"
            systemd.run("systemctl", "stop", "rmq-worker@1", "rmq-worker@2")
            assert systemd.show("rmq-worker@2", "Result") == "success"
        stats = client.inspect(TOPIC).stats()
        assert (stats.backlog, stats.in_flight, stats.waiting, stats.dead) == (0, 0, 0, 0)
