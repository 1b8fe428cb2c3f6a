"""Processes that a handler forks: a signal ends them, and never the worker whose handler it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.cli import Cli
from tests.support.waiting import wait_until

MODULE = """if True:
    import asyncio, multiprocessing, os, signal, sys, time
    from pathlib import Path
    from rmq import RmqClient, Topic, TopicType, aio

    FORK = multiprocessing.get_context("fork")

    def wait_for_ever():
        while True:
            time.sleep(60)

    def process():
        child = FORK.Process(target=wait_for_ever)
        child.start()
        child.terminate()
        child.join(30)
        code = child.exitcode
        child.kill()
        return code

    def pool():
        workers = FORK.Pool(2)
        pids = [each.pid for each in workers._pool]
        workers.terminate()
        workers.join()
        return [each.exitcode for each in workers._pool] if pids else "none"

    def fork():
        pid = os.fork()
        if not pid:
            wait_for_ever()
        os.kill(pid, signal.SIGTERM)
        return -os.WTERMSIG(ended(pid))

    def leave(how):
        pid = os.fork()
        if not pid:
            how()
        return pid if not pid else os.waitstatus_to_exitcode(ended(pid))

    def ended(pid):
        until_s = time.monotonic() + 30
        while time.monotonic() < until_s:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]

    def fail():
        raise ValueError("of the child")

    def exit():
        print("of the child", flush=False)
        sys.exit(5)

    ACTIONS = {
        "process": process, "pool": pool, "fork": fork,
        "returns": lambda: leave(lambda: None), "raises": lambda: leave(fail), "exits": lambda: leave(exit),
    }

    def handle(delivery):
        Path(delivery.text).write_text(repr(ACTIONS[delivery.text]()))
        Path("done-" + delivery.text).touch()

    async def handle_soon(delivery):
        handle(delivery)

    async def handle_in_thread(delivery):
        await asyncio.to_thread(handle, delivery)

    if __name__ == "__main__":
        side, topic = sys.argv[1], Topic(sys.argv[2], TopicType.PRIORITY)
        if side == "threads":
            client = RmqClient()
            client.listener(topic)(handle)
            left = client.run()
        else:
            client = aio.RmqClient()
            client.listener(topic)(handle_soon if side == "asyncio" else handle_in_thread)
            left = asyncio.run(client.run())
        print("left", len(left), flush=True)
"""

CLIENT = (
    MODULE
    + """
    client = RmqClient()
    client.listener(Topic("{topic}", TopicType.PRIORITY))(handle)
"""
)

URL_FORMS = ["threads", "asyncio", "asyncio-threads", "worker", "processes"]
BY_SIGNAL = {"process": "-15", "fork": "-15"}
BY_LEAVING = {"returns": "0", "raises": "1", "exits": "5"}


@contextmanager
def at_work(way: str, cli: Cli, topic: Topic, folder: Path) -> Iterator[subprocess.Popen[str]]:
    options: dict[str, Any] = {"cwd": folder, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if way in ("worker", "processes"):
        (folder / "forking.py").write_text(CLIENT.replace("{topic}", topic.name))
        args = ["--processes", "1"] if way == "processes" else []
        with cli.process("worker", "forking:client", *args, cwd=folder) as process:
            yield process
    else:
        (folder / "forking.py").write_text(MODULE)
        env = {**os.environ, **cli.env}
        with subprocess.Popen([sys.executable, "forking.py", way, topic.name], env=env, **options) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.mark.parametrize("way", URL_FORMS)
def test_a_signal_ends_what_a_handler_has_forked_and_not_the_worker(
    way: str, cli: Cli, redis_url: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(TopicType.PRIORITY)
    expected = BY_SIGNAL if way == "asyncio-threads" else BY_SIGNAL | BY_LEAVING  # else it leaves a pool's thread
    with RmqClient(redis_url) as client, at_work(way, cli, topic, tmp_path) as process:
        for action in [*expected, "pool"]:
            client.producer(topic).send(PriorityMessage(action, 1))
            wait_until(lambda action=action: (tmp_path / f"done-{action}").exists() or process.poll() is not None, 100)
        assert process.poll() is None, process.communicate()
        assert {action: (tmp_path / action).read_text() for action in expected} == expected
        assert set((tmp_path / "pool").read_text()) <= set("[-15, 0]")
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert errors.count("ValueError: of the child") == ("raises" in expected)
        assert output.count("of the child") == ("exits" in expected)
        if way not in ("worker", "processes"):
            assert output.endswith("left 0\n")
        stats = client.inspect(topic).stats()
        assert (stats.total("acked"), stats.in_flight, stats.backlog) == (len(expected) + 1, 0, 0)
