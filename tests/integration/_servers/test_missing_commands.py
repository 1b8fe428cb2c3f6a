"""What a server does not have, or does not let this user do, is told in words: nothing hangs, and nothing is guessed.

Each server is real. `rename-command` takes a command away from all, an ACL from one user.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.errors import ScriptFailedError, UnsafeRedisError
from tests.support.servers import RedisServer

TOPIC = Topic("shop.jobs", TopicType.PRIORITY)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def without(*commands: str) -> RedisServer:
    """Start a server that does not have some commands."""
    return RedisServer(tuple(f'rename-command {command} ""' for command in commands))


def as_user(server: RedisServer, *rights: str) -> str:
    """Make a user who may do all but what the rights take away; return the URL."""
    with server.connect() as admin:
        admin.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "~*", "&*", "+@all", *rights)
    return f"redis://narrow:pw@127.0.0.1:{server.port}"


def assert_told(client: RmqClient, told: str) -> None:
    """Check that a look and a send say what is missing."""
    producer = client.producer(TOPIC)
    for call in (client.inspect(TOPIC).stats, lambda: producer.send(PriorityMessage("a", 100))):
        with pytest.raises(ScriptFailedError, match=told):
            call()


def test_a_server_without_the_commands_of_6_2_is_refused() -> None:
    with without("ZMSCORE") as server, RmqClient(server.url) as client:
        with pytest.raises(UnsafeRedisError, match=r"has no command ZMSCORE; RMQ needs Redis 6\.2 or newer, or Valkey"):
            client.producer(TOPIC)
        with server.connect() as plain:
            assert plain.keys("*") == []


def test_the_version_that_a_server_tells_is_not_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """Without a right to INFO nothing tells the version, and all works."""
    caplog.set_level(logging.WARNING, "rmq")
    with RedisServer() as server, RmqClient(as_user(server, "-info")) as client:
        assert client.producer(TOPIC).send(PriorityMessage("a", 100)).new == 1
        assert "does not allow this user to call INFO: its maxmemory-policy was not checked" in caplog.text


@pytest.mark.parametrize("command", ["EVALSHA", "SCRIPT"])
def test_a_server_without_scripts_is_told_of(command: str) -> None:
    told = f"Redis has no command {command}; RMQ uses Lua scripts and needs EVALSHA and SCRIPT LOAD$"
    with without(command) as server, RmqClient(server.url) as client:
        assert_told(client, told)


@pytest.mark.parametrize(
    ("right", "command", "loading"),
    [("-evalsha", "evalsha", ": "), ("-script", "script", ": the script cannot be loaded: ")],
)
def test_a_right_that_is_missing_is_named(server: RedisServer, right: str, command: str, loading: str) -> None:
    told = f"{loading}NOPERM.*{command}.*; docs/operate/operations.md lists the permissions that RMQ needs$"
    with RmqClient(as_user(server, right), deadline_s=3_600) as client:
        assert_told(client, told)


def test_a_right_that_a_script_is_missing_is_told_of(server: RedisServer) -> None:
    with RmqClient(as_user(server, "-zcard")) as client:
        client.producer(TOPIC)
        with pytest.raises(ScriptFailedError, match=r"operations\.md lists the permissions that RMQ needs$"):
            client.inspect(TOPIC).stats()


def test_replicated_needs_wait() -> None:
    with without("WAIT") as server, RmqClient(server.url, durability="replicated") as client:
        with pytest.raises(UnsafeRedisError, match=r"replicated needs the command WAIT, which .* does not have; use"):
            client.producer(TOPIC)


def test_replicated_needs_the_right_to_wait(server: RedisServer) -> None:
    with RmqClient(as_user(server, "-wait"), durability="replicated") as client:
        with pytest.raises(UnsafeRedisError, match=r"this user of Redis at .* may not call; grant \+wait \(NOPERM"):
            client.producer(TOPIC)
        with server.connect() as plain:
            assert plain.keys("*") == []
