"""Connections to a real Redis."""

from __future__ import annotations

from rmq.wire import wire_factory


def test_connections_may_break_and_be_made_anew_without_end(redis_url: str) -> None:
    make = wire_factory(redis_url, 5.0)
    for _ in range(300):
        wire = make()
        wire.connect()
        assert wire.call("PING") == b"PONG"
        wire.close()
