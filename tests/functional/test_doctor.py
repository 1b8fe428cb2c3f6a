"""`rmq doctor`: what it finds in a deployment, and what it says to do."""

from __future__ import annotations

import re
import time
from typing import Any

import redis

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from rmq.views.doctor import Check, State, judge_clocks, judge_server, read_clocks
from tests.support.cli import Cli
from tests.support.core import TOPICS_KEY, TopicDeletion
from tests.support.servers import RedisServer

PLAIN = {"role": "master", "redis_version": "7.2.0", "maxmemory_policy": "noeviction", "maxmemory": "1000000"}


def checks(cli: Cli, code: int = 0) -> dict[str, list[dict[str, Any]]]:
    document = cli("doctor", "--json", code=code).json
    assert document["healthy"] is (code == 0)
    found: dict[str, list[dict[str, Any]]] = {}
    for each in document["checks"]:
        found.setdefault(each["state"], []).append(each)
    return found


def states(found: list[Check]) -> list[tuple[State, str]]:
    return [(each.state, each.text) for each in found]


def test_settings_of_a_server_are_judged() -> None:
    def judge(save: str | None = "", **settings: str) -> list[tuple[State, str]]:
        return states(list(judge_server("redis:6379", PLAIN | settings, save)))

    assert judge(aof_enabled="1") == [(State.OK, "Redis 7.2.0, maxmemory-policy noeviction, AOF")]
    assert judge("3600 1") == [(State.OK, "Redis 7.2.0, maxmemory-policy noeviction, RDB snapshots")]
    assert judge() == [(State.WARNING, "has no persistence: a restart loses all messages")]
    assert judge(aof_enabled="1", maxmemory="0") == [(State.WARNING, "has no maxmemory")]
    [(state, text)] = judge(aof_enabled="1", maxmemory_policy="volatile-lru")
    assert state is State.WARNING
    assert text.startswith("has maxmemory-policy volatile-lru")


def test_clocks_are_compared_as_closely_as_they_can_be_read() -> None:
    assert [each for each, _ in states(list(judge_clocks({"a": (0.2, 0.1), "b": (-0.1, 0.1)})))] == [State.OK]
    [(state, text)] = states(list(judge_clocks({"a": (-90.0, 0.1)})))
    assert (state, text[:43]) == (State.WARNING, "Redis' clock is 90.0 s behind this machine'")
    assert [each for each, _ in states(list(judge_clocks({"a": (-2.0, 4.0)})))] == [State.OK]  # a slow network
    found = states(list(judge_clocks({"a": (0.6, 0.0), "b": (-0.6, 0.0)})))
    assert found == [(State.WARNING, "the servers' clocks differ by 1.2 s: due times depend on the server of the slot")]


def test_clocks_are_read_once_whichever_servers_answer() -> None:
    masters = iter(["old", "new", "newest"])  # a failover between any two commands

    def ask(*command: str) -> dict[str, Any]:
        assert command == ("TIME",)
        return {next(masters): [b"1800000000", b"500000"]}

    began_s = time.time()
    [(address, (ahead_s, doubt_s))] = read_clocks(ask).items()
    assert (address, next(masters)) == ("old", "new")
    assert began_s - 0.001 <= 1_800_000_000.5 - ahead_s <= time.time() + 0.001
    assert doubt_s >= 0


def test_a_good_deployment_and_what_goes_wrong_in_it() -> None:
    with RedisServer(["appendonly yes", "maxmemory 100mb"]) as server, RmqClient(server.url) as client:
        cli = Cli(server.url)
        found = checks(cli)
        assert "server" in found["ok"][0]["subject"]
        assert found["unknown"][0]["text"] == "not checked: there is no topic yet"
        topic = Topic("shop.jobs", TopicType.PRIORITY)
        producer = client.producer(topic)
        assert "failed" not in checks(cli)
        ran = cli("doctor")
        assert ran.out.splitlines()[0].startswith("RMQ ")
        assert "ok        definitions: 1 topic, all readable" in ran.out

        with redis.Redis.from_url(server.url) as raw:
            raw.hset(TOPICS_KEY, "shop.bad", b"{\x1b[31m")
            failed = checks(cli, 1)["failed"]
            assert [each["subject"] for each in failed] == ["definition shop.bad"]
            assert "\x1b" not in cli("doctor", code=1).out
            raw.hdel(TOPICS_KEY, "shop.bad")
            client.producer(Topic("shop.old", TopicType.PRIORITY))
            deletion = TopicDeletion(client._connections, client._known, "shop.old", None)
            deletion._begun("ann", force=False)  # and breaks off here
            [deleting] = checks(cli)["warning"]
            assert deleting["subject"] == "shop.old"
            assert re.match(r"its deletion was begun at 2.* by ann; .*`rmq topics delete shop.old` ", deleting["text"])
            assert "shop.old: its deletion was begun at 2" in cli("status").out
            client.delete_topic("shop.old")
            assert "warning" not in checks(cli)
            producer.send(PriorityMessage("a", 1))
            raw.config_set("maxmemory-policy", "allkeys-lru")
            [refused] = checks(cli, 1)["failed"]
            assert "maxmemory-policy allkeys-lru" in refused["text"]


def test_rights_are_checked_with_a_topic_that_has_a_backlog() -> None:
    with RedisServer() as server, RmqClient(server.url) as client:
        client.producer(Topic("shop.orders", TopicType.STREAM))
        [unknown] = [each for each in checks(Cli(server.url))["unknown"] if each["subject"] == "rights"]
        assert unknown["text"] == "not checked: there is no topic except STREAM topics"


def test_rights_that_a_user_lacks_are_named() -> None:
    with RedisServer() as server, RmqClient(server.url) as client, redis.Redis.from_url(server.url) as raw:
        client.producer(Topic("shop.jobs", TopicType.PRIORITY))
        try:
            raw.execute_command("ACL", "DRYRUN", "default", "PING")
        except redis.ResponseError:
            assert checks(Cli(server.url))["unknown"][0]["text"].startswith("not checked: ACL DRYRUN needs Redis 7.0")
            return
        assert any(each["subject"] == "rights of user default" for each in checks(Cli(server.url))["ok"])
        raw.execute_command("ACL", "SETUSER", "rmq", "on", ">secret", "~*", "&*", "+@all", "-xadd", "-publish")
        failed = checks(Cli(f"{server.url}?username=rmq&password=secret"), 1)["failed"]
        assert {each["text"].split()[0] for each in failed} == {"XADD", "PUBLISH"}
        assert "docs/operate/operations.md" in failed[0]["advice"]


def test_a_redis_that_does_not_answer_fails() -> None:
    [failed] = checks(Cli("redis://127.0.0.1:1"), 1)["failed"]
    assert failed["text"].startswith("no answer from Redis")
    assert "check the URL" in failed["advice"]
