"""The command line as processes: signals, pipes, terminals, workers, a Redis that dies."""

from __future__ import annotations

import codecs
import importlib
import logging
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pytest

from rmq import RmqClient, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.cli import Cli, bury
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

MODULE = """if True:
    import time
    from pathlib import Path
    import rmq.aio
    from rmq import RmqClient, Topic, TopicType

    client = RmqClient()
    not_a_client = 5
    asynchronous = rmq.aio.RmqClient()

    @client.listener(Topic("{topic}", TopicType.PRIORITY, slots=2))
    def handle(delivery):
        stopping = client._listeners.runners[0].stopping
        Path("begun-" + delivery.text).touch()
        while not Path("go-on").exists():
            if stopping.is_set():
                Path("stopping").touch()
            time.sleep(0.01)
        if delivery.text == "bad":
            raise ValueError("\\x1b[31mbad\\x1b[0m")
        Path("done-" + delivery.text).touch()

    def make():
        return client

    def make_nothing():
        return None

    def fail():
        raise KeyError("no configuration")

    idle = RmqClient()
"""


LIMIT_S = 60.0
"""Starting Python takes its time on a machine that is busy with other tests."""


class Terminal:
    """A terminal, and what was shown on it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.master)

    def started(self) -> None:
        """Leave the command's side to the command, so that its end shows."""
        os.close(self.slave)

    def read(self, until: str, timeout_s: float = LIMIT_S) -> str:
        """Read until a text has come, or all there is (`""`)."""
        deadline_s = time.monotonic() + timeout_s
        while not until or until not in self.text:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, self.text
            if select.select([self.master], [], [], left_s)[0]:
                try:
                    self.text += self._decoder.decode(os.read(self.master, 65_536))
                except OSError:  # the other side is closed
                    break
        return self.text

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())


def ended(process: subprocess.Popen[str], timeout_s: float = LIMIT_S) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


# --- consume


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_consume_cleanly(cli: Cli, client: RmqClient, priority: Topic, number: signal.Signals) -> None:
    cli("send", priority.name, "a", "b", "--priority", "20")
    with cli.process("consume", priority.name, "--follow", "--json") as process:
        assert process.stdout is not None
        first = [process.stdout.readline(), process.stdout.readline()]
        cli("send", priority.name, "c", "--priority", "20")
        assert '"c"' in process.stdout.readline()
        process.send_signal(number)
        assert ended(process) == (0, "", "")
    assert len(first) == 2
    stats = client.inspect(priority).stats()
    assert (stats.total("acked"), stats.in_flight) == (3, 0)


def test_a_signal_gives_back_what_is_to_be_released(cli: Cli, client: RmqClient, priority: Topic) -> None:
    cli("send", priority.name, "a", "--priority", "20")
    with cli.process("consume", priority.name, "--no-ack", "--timeout", "60") as process:
        wait_until(lambda: client.inspect(priority).stats().in_flight, LIMIT_S)
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 0
    assert client.inspect(priority).stats().backlog == 1


def test_a_reader_that_leaves_loses_nothing(cli: Cli, client: RmqClient, priority: Topic) -> None:
    cli("send", priority.name, *map(str, range(3_000)), "--priority", "20", "--body", "b" * 200)
    with cli.process("consume", priority.name, "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(LIMIT_S)
        assert process.returncode == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""
    stats = client.inspect(priority).stats()
    assert stats.in_flight == 0
    assert stats.total("released") > 0
    assert stats.backlog + stats.total("acked") == 3_000


def test_consume_fails_clearly_when_redis_is_killed(make_topic: MakeTopic) -> None:
    with RedisServer() as server:
        cli = Cli(server.url)
        cli("send", "work", "a", "--type", "priority", "--priority", "20")
        with cli.process("consume", "work", "--follow", "--json") as process:
            assert process.stdout is not None
            process.stdout.readline()
            server.kill()
            code, _, err = ended(process)
        assert code == 1
        assert err.splitlines()[-1].startswith("rmq: no answer from Redis")
        assert "Traceback" not in err


def test_a_stream_of_messages_survives_a_restart_of_redis() -> None:
    with RedisServer(["appendonly yes", "appendfsync always"]) as server:
        cli = Cli(server.url)
        cli("send", "work", "a", "--type", "priority", "--priority", "20")
        with cli.process("send", "work", "--priority", "20", stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.writelines(f"first {number}\n" for number in range(10_000))
            process.stdin.flush()
            server.kill()
            server.start()
            process.stdin.writelines(f"second {number}\n" for number in range(10_000))
            code, out, err = ended(process)
        assert (code, err) == (0, "")
        # a call whose reply was lost is repeated, and then finds its messages there
        assert sum(int(word.replace(",", "")) for word in out.split() if word[0].isdigit()) == 20_000
        assert cli("stats", "--json").json["topics"][0]["backlog"] == 20_001


# --- terminals


def test_purge_asks_on_a_terminal(cli: Cli, client: RmqClient, priority: Topic) -> None:
    cli("send", priority.name, "a", "b", "--priority", "20")
    bury(client, priority)
    for answer, code, dead in (("n", 1, 2), ("y", 0, 0), ("", 0, 0)):
        with Terminal() as terminal:
            streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.slave)
            with cli.process("dead", "purge", priority.name, **streams) as process:
                terminal.started()
                if answer:
                    assert "Permanently delete 2 dead messages" in terminal.read("[y/N]")
                    terminal.type(f"{answer}\n")
                terminal.read("")
                assert process.wait(LIMIT_S) == code
        assert client.inspect(priority).stats().dead == dead


def test_progress_shows_on_a_terminal_only(cli: Cli, priority: Topic, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(5_000)))
    args = ("send", priority.name, "--priority", "20", "--file", str(tmp_path / "lines"))

    with Terminal() as terminal:
        env = {"TERM": "xterm-256color", "NO_COLOR": ""}
        with cli.process(*args, stderr=terminal.slave, env=env) as process:
            terminal.started()
            assert "bytes" in terminal.read("/23890")
            terminal.read("")
            assert ended(process)[:2] == (0, "5,000 new, 0 merged\n")
    assert cli(*args).err == ""


def test_watch_until_ctrl_c(cli: Cli, priority: Topic) -> None:
    cli("send", priority.name, "a", "--priority", "20")
    with cli.process("stats", priority.name, "--watch", "0.1", "--json") as process:
        assert process.stdout is not None
        assert all('"backlog": 1' in process.stdout.readline() for _ in range(2))
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 0

    with Terminal() as terminal:
        args = ("stats", priority.name, "--watch", "0.1")
        with cli.process(*args, stdout=terminal.slave, env={"TERM": "xterm-256color"}) as process:
            terminal.started()
            terminal.read("acked")
            process.send_signal(signal.SIGINT)
            terminal.read("")
            assert ended(process)[0] == 0


# --- worker


@pytest.fixture
def folder(tmp_path: Path, topic_name: str) -> Path:
    """A folder with a module `jobs` whose listener consumes the topic."""
    (tmp_path / "jobs.py").write_text(MODULE.format(topic=topic_name))
    return tmp_path


@pytest.mark.parametrize("target", ["jobs:client", "jobs:make"])
def test_a_worker_finishes_what_it_began_and_returns_the_rest(
    cli: Cli, client: RmqClient, topic_name: str, folder: Path, target: str
) -> None:
    new = ("--type", "priority", "--slots", "2")
    cli("send", topic_name, "first", *new, "--priority", "30", "--slot-basis", "s")
    cli("send", topic_name, "second", "third", "--priority", "20", "--slot-basis", "s")
    with cli.process("worker", target, cwd=folder) as process:
        wait_until((folder / "begun-first").exists, LIMIT_S)
        process.terminate()
        wait_until((folder / "stopping").exists, LIMIT_S)
        wait_until(lambda: client.inspect(topic_name).stats().in_flight == 1, LIMIT_S)
        (folder / "go-on").touch()
        code, out, err = ended(process)
    assert (code, out) == (0, "")
    assert f"{target} runs on unix://" in err
    assert "has stopped" in err
    stats = client.inspect(topic_name).stats()
    assert (stats.total("acked"), stats.backlog, stats.in_flight) == (1, 2, 0)
    assert (folder / "done-first").exists()
    assert not (folder / "begun-second").exists()


def test_a_worker_does_not_wait_longer_than_it_should(
    cli: Cli, client: RmqClient, topic_name: str, folder: Path
) -> None:
    cli("send", topic_name, "first", "--type", "priority", "--slots", "2", "--priority", "30")
    with cli.process("worker", "jobs:client", "--drain", "0.2", cwd=folder) as process:
        wait_until((folder / "begun-first").exists, LIMIT_S)
        process.send_signal(signal.SIGINT)
        assert "did not finish within 0.2 s" in ended(process)[2]
    assert client.inspect(topic_name).stats().in_flight == 1


def test_what_a_handler_raises_is_logged_harmlessly(cli: Cli, client: RmqClient, topic_name: str, folder: Path) -> None:
    (folder / "go-on").touch()
    cli("send", topic_name, "bad", "--type", "priority", "--slots", "2", "--priority", "30")
    with cli.process("--url", client.url, "worker", "jobs:client", "--log-level", "warning", cwd=folder) as process:
        wait_until(lambda: client.inspect(topic_name).stats().waiting, LIMIT_S)
        process.terminate()
        code, _, err = ended(process)
    assert code == 0
    assert r"\x1b[31mbad" in err
    assert "\x1b" not in err
    assert "has stopped" not in err


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("jobs", "'jobs' must have the form module:client"),
        ("jobs:", "must have the form module:client"),
        ("../jobs:client", "must have the form module:client"),
        ("nothing:client", "no module named 'nothing' in "),
        ("jobs.below:client", "no module named 'jobs.below' in "),
        ("jobs:nothing", "module jobs has no attribute 'nothing'"),
        ("jobs:not_a_client", "jobs:not_a_client is of type int; it must be an RmqClient"),
        ("jobs:asynchronous", "jobs:asynchronous is a client of rmq.aio, but rmq worker runs only clients of rmq"),
        ("jobs:RmqClient", "jobs:RmqClient is of type type; it must be"),
        ("jobs:make_nothing", "jobs:make_nothing is of type NoneType; it must be"),
        ("jobs:fail", "jobs:fail() failed: KeyError: 'no configuration' ("),
        ("jobs:handle", "jobs:handle() failed: TypeError"),
        ("broken:client", "module broken cannot be imported: ZeroDivisionError: division by zero ("),
        ("missing:client", "module missing cannot be imported: ModuleNotFoundError: No module named 'not_there'"),
    ],
)
def test_a_target_that_is_no_client(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, problem: str
) -> None:
    (folder / "broken.py").write_text("1 / 0")
    (folder / "missing.py").write_text("import not_there")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    importlib.invalidate_caches()
    try:
        ran = cli("worker", target, code=2)
    finally:
        if module := sys.modules.pop("jobs", None):
            module.client.close()
            module.idle.close()
    assert ran.out == ""
    assert problem in ran.err
    assert ran.err.startswith("rmq: ")
    assert ran.err.count("\n") == 1


def test_a_client_without_a_listener(cli: Cli, folder: Path) -> None:
    with cli.process("worker", "jobs:idle", cwd=folder) as process:
        code, _, err = ended(process)
    assert code == 1
    assert "has no listener" in err


def test_a_topic_that_does_not_fit(cli: Cli, client: RmqClient, folder: Path, topic_name: str) -> None:
    client.producer(Topic(topic_name, TopicType.FIXED_TIME))
    with cli.process("worker", "jobs:client", cwd=folder) as process:
        code, _, err = ended(process)
    assert code == 1
    assert "can't be changed" in err
