"""Options in URLs, and addresses that Sentinels and clusters tell."""

from __future__ import annotations

import pytest

from rmq._io.backend import THREADS, Runtime
from rmq._servers.urls import Address, parse_address, parse_url
from rmq._transport.connections import Connections
from rmq.aio.backend import EventLoop
from rmq.errors import InvalidUrlError


@pytest.mark.parametrize("option", ["x=1", "retry_on_error=x", "credential_provider=x", "socket_timeout=x"])
@pytest.mark.parametrize("url", ["redis://h/0", "rediss://h", "unix:///s", "redis+sentinel://h/s", "redis+cluster://h"])
@pytest.mark.parametrize("runtime", [THREADS, EventLoop()])
def test_an_option_that_nobody_knows_is_refused_at_once(runtime: Runtime, url: str, option: str) -> None:
    with pytest.raises(InvalidUrlError, match="cannot be used"):
        Connections(parse_url(f"{url}?{option}"), runtime=runtime)


def test_an_option_that_redis_py_does_not_have_is_named() -> None:
    with pytest.raises(InvalidUrlError, match=r"^this Redis URL cannot be used: redis-py has no option ssl$"):
        Connections(parse_url("redis://h?ssl=1"))


@pytest.mark.parametrize("host", [b"10.0.0.1", b"::1", "redis-1.example.org", "redis_1", "a.b."])
@pytest.mark.parametrize("port", [7_000, b"7000"])
def test_an_address_that_a_server_tells(host: bytes | str, port: int | bytes) -> None:
    assert parse_address(host, port) == Address(host if isinstance(host, str) else host.decode(), 7_000)


@pytest.mark.parametrize(
    "told",
    [(b"", 1), (None, 1), (7, 1), (b"a/0?x=1", 1), (b"u:p@h", 1), (b"[::1", 1), (b"a..b", 1), (b"\xff", 1),
     (b"a" * 64, 1), (b"a." * 200, 1), (b"a\n", 1), (b"h", 0), (b"h", -1), (b"h", 65_536), (b"h", b"9" * 5_000),
     (b"h", b"1x"), (b"h", "1"), (b"h", None), (b"h", [1])],
)  # fmt: skip
def test_what_is_no_address_is_refused(told: tuple[object, object]) -> None:
    with pytest.raises(ValueError, match=r"not an address|not a valid host name|does not appear"):
        parse_address(*told)
