"""The definitions of topics: read within bounds, written only over what was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support.slots import scripts_under_test

KEY = "t-topics"


@pytest.fixture
def server(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    redis_client.delete(KEY)
    yield redis_client
    redis_client.delete(KEY)


def run(server: redis.Redis, name: str, *args: object) -> Any:
    return server.eval(scripts_under_test()[name].text, 1, KEY, *map(str, args))


def test_a_definition_is_written_only_over_the_one_that_was_read(server: redis.Redis) -> None:
    assert run(server, "registry_define", "a", "", "new") == b"0"
    server.hset(KEY, "a", "one")
    assert run(server, "registry_define", "a", "", "two") == b"0"
    assert run(server, "registry_define", "a", "one", "three") == b"1"
    assert run(server, "registry_define", "a", "one", "four") == b"0"
    assert server.hgetall(KEY) == {b"a": b"three"}


def test_the_same_text_is_written_again_for_a_wait_behind_it(server: redis.Redis) -> None:
    server.hset(KEY, "a", "one")
    before = server.info("persistence")["rdb_changes_since_last_save"]
    assert run(server, "registry_define", "a", "one", "one") == b"1"
    assert server.info("persistence")["rdb_changes_since_last_save"] > before


def test_what_is_read_has_a_bound(server: redis.Redis) -> None:
    server.hset(KEY, mapping={"short": "12345", "long": "123456", "empty": ""})
    assert run(server, "registry_read", 5, "short", "long", "absent", "empty") == [b"12345", 6, None, b""]
    assert run(server, "registry_read", 5, "absent", "absent", "short") == [None, None, b"12345"]
    assert run(server, "registry_read", 5) == []


@pytest.mark.parametrize("script", ["registry_read", "registry_define"])
def test_a_key_of_a_foreign_type_stays_as_it_is(server: redis.Redis, script: str) -> None:
    server.set(KEY, "foreign")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        run(server, script, 5, "", "text")
    assert server.get(KEY) == b"foreign"


@pytest.mark.parametrize(
    ("script", "commands"), [("registry_read", "hstrlen hget"), ("registry_define", "hget hset hdel")]
)
def test_only_the_declared_key_is_touched(server: redis.Redis, script: str, commands: str) -> None:
    # pitfall 18
    rights = ["-@all", "+eval", *(f"+{name}" for name in commands.split())]
    server.execute_command("ACL", "SETUSER", "narrow-registry", "reset", "on", "nopass", f"~{KEY}", *rights)
    options: dict[str, Any] = {
        **server.connection_pool.connection_kwargs,
        "username": "narrow-registry",
        "password": "x",
    }
    pool = redis.ConnectionPool(connection_class=server.connection_pool.connection_class, **options)
    try:
        with redis.Redis(connection_pool=pool) as narrow:
            narrow.eval(scripts_under_test()[script].text, 1, KEY, "5", "", "text")
    finally:
        server.execute_command("ACL", "DELUSER", "narrow-registry")
