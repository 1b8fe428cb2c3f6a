"""URLs of Sentinels and clusters."""

from __future__ import annotations

import pytest

from rmq.errors import InvalidUrlError
from rmq.urls import Address, Topology, parse_url


def test_sentinels() -> None:
    url = parse_url("redis+sentinel://me:s%2Fecret@h1:26380,h2,[::1]:1/service/3?ssl_ca_certs=x&sentinel_password=p")
    assert (url.topology, url.service) == (Topology.SENTINEL, "service")
    assert url.hosts == (Address("h1", 26_380), Address("h2", 26_379), Address("::1", 1))
    assert url.server_url(Address("m", 6_379)) == "redis://me:s%2Fecret@m:6379/3?ssl_ca_certs=x"
    assert url.sentinel_url(Address("h2", 26_379)) == "redis://h2:26379?ssl_ca_certs=x&password=p"
    assert "ecret" not in url.shown
    assert "password=p" not in url.shown


def test_a_cluster() -> None:
    url = parse_url("rediss+cluster://:secret@h1:7000,h2")
    assert (url.topology, url.hosts) == (Topology.CLUSTER, (Address("h1", 7_000), Address("h2", 6_379)))
    assert url.server_url(Address("::1", 7_001)) == "rediss://:secret@[::1]:7001"
    assert url.shown == "rediss+cluster://:***@h1:7000,h2"


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("redis+sentinel://h1", "names no service"),
        ("redis+sentinel://h1/service/x", "invalid database"),
        ("redis+sentinel:///service", "lacks a host"),
        ("redis+sentinel://h1:x/service", "invalid host"),
        ("redis+cluster://h1/1", "only database 0"),
        ("redis+cluster://", "lacks a host"),
    ],
)
def test_wrong_ones(url: str, match: str) -> None:
    with pytest.raises(InvalidUrlError, match=match):
        parse_url(url)
