"""Many messages in one process each for sender and listener: nothing is lost, and memory stays flat."""

from __future__ import annotations

import sys

import pytest

from benchmarks.support.flat_memory import LIMIT_MB, play


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_fifty_thousand_messages_in_flat_memory() -> None:
    figures = play(50_000, slots=8, batch=500)
    sent, consumed = figures["sender"], figures["consumer"]
    print(f"{figures['sent_per_s']} sent, {figures['consumed_per_s']} consumed a second", sent, consumed)
    assert (sent["new"], sent["merged"], consumed["handled"], figures["acked"]) == (50_000, 0, 50_000, 50_000)
    assert (set(figures["left"].values()), figures["unaccounted"]) == ({0}, 0)
    for process in (sent, consumed):
        assert process["peak_mb"] < LIMIT_MB
        assert process["growth_of_second_half_mb"] < 10
