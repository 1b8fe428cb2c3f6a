"""Credential providers of redis-py, as clouds have them: asked at each connection, and allowed to fail for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from rmq import InvalidUrlError, PriorityMessage, RedisUnavailableError, RmqClient, Topic, TopicType, aio
from rmq.errors import InvalidValueError
from tests.support.servers import RedisServer
from tests.support.topologies import RedisClusterServers

JOBS = Topic("jobs", TopicType.PRIORITY)


class Tokens(redis.CredentialProvider):
    """Hands out a token that the test replaces, and may fail."""

    def __init__(self, token: str = "one", fails: int = 0) -> None:
        self.token, self.fails, self.asked = token, fails, 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        if self.asked <= self.fails:
            raise OSError("the token service is away")
        return "app", self.token


class AsyncTokens(Tokens):
    """The same without blocking."""

    async def get_credentials_async(self) -> tuple[str, str]:
        await asyncio.sleep(0)
        return self.get_credentials()

    def get_credentials(self) -> tuple[str, str]:
        asyncio.get_running_loop()  # fails in a thread
        return super().get_credentials()


def allow(url: str, *rules: str) -> None:
    with redis.Redis.from_url(url) as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", "~*", "&*", "+@all", *rules)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        allow(running.url, ">one")
        yield running


def test_a_provider_is_asked_at_each_connection(server: RedisServer) -> None:
    tokens = Tokens(fails=2)
    with RmqClient(server.url, credentials=tokens) as client, redis.Redis.from_url(server.url) as admin:
        producer = client.producer(JOBS)
        assert producer.send(PriorityMessage("a", 1)).new == 1
        assert tokens.asked > 2, "asked again after it failed"
        allow(server.url, "resetpass", ">two")
        tokens.token = "two"
        assert admin.client_kill_filter(user="app") >= 1
        assert producer.send(PriorityMessage("b", 1)).new == 1
        assert admin.acl_whoami() == "default"
        assert {each["user"] for each in admin.client_list()} == {"default", "app"}


def test_a_token_that_the_server_refuses_and_a_provider_that_fails_are_errors(server: RedisServer) -> None:
    with (
        RmqClient(server.url, credentials=Tokens("old"), deadline_s=0.1) as client,
        pytest.raises(RedisUnavailableError, match=r"refuses this client: .*WRONGPASS"),
    ):
        client.producer(JOBS)
    with (
        RmqClient(server.url, credentials=Tokens(fails=10**6), deadline_s=0.1) as client,
        pytest.raises(RedisUnavailableError, match="credential provider raised OSError: the token service is away"),
    ):
        client.producer(JOBS)


class OwnBase:
    """A provider that does not inherit from redis-py's."""

    def get_credentials(self) -> tuple[str, str]:
        return "app", "one"


PROVIDERS = {"sync": Tokens(), "fails once": Tokens(fails=1), "async": AsyncTokens(), "own base": OwnBase()}


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)
def test_asyncio_asks_without_blocking(server: RedisServer, provider: Any) -> None:
    async def main() -> None:
        async with aio.RmqClient(server.url, credentials=provider) as client:
            assert (await (await client.producer(JOBS)).send(PriorityMessage("a", 1))).new == 1

    asyncio.run(main())
    with redis.Redis.from_url(server.url) as admin:
        assert admin.hexists("rmq:topics", "jobs")


def test_the_servers_of_a_cluster_get_credentials(cluster: RedisClusterServers) -> None:
    topic = Topic("with-credentials", TopicType.PRIORITY, slots=16)
    for server in cluster.servers:
        allow(server.url, ">one")
    with RmqClient(cluster.url, credentials=Tokens()) as client:
        sent = client.producer(topic).send_many(PriorityMessage(f"m{number}", 1) for number in range(100))
        assert sent.new == 100
        for server in cluster.servers:
            with redis.Redis.from_url(server.url) as admin:
                assert "app" in {each["user"] for each in admin.client_list()}


@pytest.mark.parametrize(
    "url", ["redis://:secret@localhost", "redis://app@localhost", "redis://localhost?password=secret"]
)
def test_a_url_with_a_password_and_credentials_are_refused_together(url: str) -> None:
    with pytest.raises(InvalidValueError, match="has a login, and credentials is set") as refused:
        RmqClient(url, credentials=Tokens())
    assert "secret" not in str(refused.value)


def test_what_is_no_provider_or_has_no_users_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"credentials is 'token'; it must be a redis\.CredentialProvider"):
        RmqClient("redis://localhost", credentials="token")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidValueError, match="an embedded Redis has no users"):
        RmqClient("embedded://", credentials=Tokens())
    with pytest.raises(InvalidUrlError, match="credential_provider"):
        RmqClient("redis://localhost?credential_provider=x")
