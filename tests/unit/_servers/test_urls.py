from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq._servers.urls import Address, Topology, chosen_url, parse_url
from rmq.errors import InvalidUrlError


@pytest.mark.parametrize(
    ("url", "topology", "folder"),
    [
        ("embedded://", Topology.EMBEDDED, None),
        ("embedded:///var/lib/rmq", Topology.EMBEDDED, Path("/var/lib/rmq")),
        ("embedded:///a%20b", Topology.EMBEDDED, Path("/a b")),
        ("redis://localhost", Topology.STANDALONE, None),
        ("redis://:secret@[::1]:6380/2?socket_timeout=1", Topology.STANDALONE, None),
        ("rediss://user:secret@host:6380/0", Topology.STANDALONE, None),
        ("unix:///run/redis.sock?db=1", Topology.STANDALONE, None),
    ],
)
def test_urls(url: str, topology: Topology, folder: Path | None) -> None:
    parsed = parse_url(url)
    assert (parsed.url, parsed.topology, parsed.folder, parsed.hosts, parsed.service) == (url, topology, folder, (), "")


@pytest.mark.parametrize("url", [5, b"redis://:secret@h", Path("/secret")])
def test_a_url_is_a_text(url: Any) -> None:
    with pytest.raises(InvalidUrlError, match="it must be a str") as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


def test_sentinels_and_clusters() -> None:
    sentinel = parse_url("redis+sentinel://me:p%2Fw@h1,h2:5,[::1]:6/main/3?sentinel_password=spw&ssl_x=1")
    assert sentinel.topology is Topology.SENTINEL
    assert sentinel.hosts == (Address("h1", 26_379), Address("h2", 5), Address("::1", 6))
    assert sentinel.service == "main"
    assert sentinel.server_url(Address("m", 7)) == "redis://me:p%2Fw@m:7/3?ssl_x=1"
    assert sentinel.sentinel_url(Address("::1", 6)) == "redis://[::1]:6?ssl_x=1&password=spw"
    cluster = parse_url("rediss+cluster://u:pw@h1,h2:7001")
    assert cluster.topology is Topology.CLUSTER
    assert cluster.hosts == (Address("h1", 6_379), Address("h2", 7_001))
    assert cluster.server_url(Address("::1", 1)) == "rediss://u:pw@[::1]:1"


def test_without_a_url_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMQ_URL", raising=False)
    fallen_back = parse_url(None)
    assert (fallen_back.url, fallen_back.chosen, fallen_back.temporary) == ("embedded://", False, True)
    with pytest.raises(InvalidUrlError, match=r"no Redis URL is set; set RMQ_URL: redis://host:6379; or embedded://"):
        chosen_url(None)
    monkeypatch.setenv("RMQ_URL", "redis://elsewhere")
    for parse in (parse_url, chosen_url):
        assert (parse(None).url, parse(None).chosen) == ("redis://elsewhere", True)
        assert parse("redis://here").url == "redis://here"
    assert (chosen_url("embedded://").temporary, chosen_url("embedded:///a").temporary) == (True, False)


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_url_is_no_choice(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Compose makes it of `${REDIS_URL}` where that is not set."""
    monkeypatch.delenv("RMQ_URL", raising=False)
    with pytest.raises(InvalidUrlError, match="url is empty; set it to the URL of a Redis"):
        parse_url(empty)
    monkeypatch.setenv("RMQ_URL", empty)
    with pytest.raises(InvalidUrlError, match="RMQ_URL is set, but empty; set it to the URL of a Redis"):
        parse_url(None)
    assert parse_url("redis://here").url == "redis://here"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://h", "unknown scheme 'http'; known schemes are embedded://, redis://"),
        ("localhost:6379", "unknown scheme 'localhost'"),
        ("redis://h:70000", "invalid port"),
        ("redis://h:99999", "invalid port"),
        ("redis://[::1", "cannot be read"),
        ("redis:/h:6379", "lacks // after its scheme; write redis://host"),
        ("redis://h/orders", "invalid database"),
        ("unix://", "names no socket"),
        ("embedded://folder", "must be embedded:// (temporary) or embedded:///folder (kept)"),
        ("embedded:///folder?a=b", "must be embedded:// (temporary) or embedded:///folder (kept)"),
        ("redis+sentinel://h1", "names no service"),
        ("redis+sentinel://h1/main/x", "invalid database"),
        ("redis+sentinel://h1,,h2/main", "lacks a host"),
        ("redis+sentinel:///main", "lacks a host"),
        ("redis+cluster://", "lacks a host"),
        ("redis+cluster://h1:99999,h2", "invalid host"),
        ("redis://h/0#x@y", "has an @ after its host"),
        ("redis+cluster://h1/2", "only database 0"),
    ],
)
def test_what_is_no_url_of_ours(url: str, text: str) -> None:
    with pytest.raises(InvalidUrlError) as refused:
        parse_url(url)
    assert repr(url) in str(refused.value)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:secret@h:1/0", "redis://:***@h:1/0"),
        ("rediss://user:sec@ret@h", "rediss://user:***@h"),
        ("unix:///run/x.sock?db=1&password=secret", "unix:///run/x.sock?db=1&password=***"),
        (
            "redis+sentinel://me:s%2Fecret@h1,h2/m?sentinel_password=secret",
            "redis+sentinel://me:***@h1,h2/m?sentinel_password=***",
        ),
        ("rediss+cluster://:secret@h1:7000,h2", "rediss+cluster://:***@h1:7000,h2"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert parse_url(url).shown == shown


@pytest.mark.parametrize(
    "url",
    [
        "rediss//:secret@h",
        "redis://u:secret@h:x",
        "http://u:secret@h",
        "redis+sentinel://:secret@h",
        "redis://u:secret@[h",
        "redis://u:secret",
        "redis://u:secret\u2100@h",
        "redis://:secret#x@h",
        "redis://:12#secret@h",
        "redis://:12?secret@h",
        "redis://:12/secret@h",
        "redis+cluster://:secret#x@h",
        "redis+cluster://:secret?x@h",
        "redis+cluster://:secret/x@h1,h2:3",
        "redis+cluster://:secret",
        "redis+sentinel://h1:secret/service",
        "redis+cluster://:12?secret@h",
        "redis+sentinel://u:12/secret@h/service",
    ],
)
def test_nor_are_they_by_errors(url: str) -> None:
    with pytest.raises(InvalidUrlError) as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)
