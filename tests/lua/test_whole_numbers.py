"""Numbers go to commands as digits: Redis 7.2 writes 300000000 as 3e+8 where a script hands it over as a number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha1

import pytest

from rmq import Fixed, Merge, Sum, TopicType
from rmq.spark import calls as spark_calls
from rmq.spark.calls import Driver, Reading
from tests.conftest import MakeSlot
from tests.lua.every_case import EXAMPLES
from tests.support.core import Connections, Record, Script, ScriptLibrary, parse_url, write_record
from tests.support.slots import READ_FAKE_CLOCK, SlotUnderTest, scripts_under_test

STRICT = """
local redis = (function(real)
  local stored = { HINCRBY = true, HSET = true, ZADD = true, XADD = true, XCLAIM = true, SET = true, EXPIRE = true,
    PEXPIRE = true }
  local function check(name, ...)
    for i = 1, select('#', ...) do
      local value = select(i, ...)
      if type(value) == 'number' and (stored[name] or value >= 1e8) then
        error('RMQ_NUMBER ' .. name .. ' gets a number: ' .. value, 0)
      end
    end
  end
  local function checked(how)
    return function(name, ...)
      check(name, ...)
      return how(name, ...)
    end
  end
  return setmetatable({ call = checked(real.call), pcall = checked(real.pcall) }, { __index = real })
end)(redis)
"""
"""A `redis` that refuses what servers since 7.2 write in another way than those before."""


class StrictScripts(ScriptLibrary):
    """The scripts with the `redis` above."""

    def _build(self, name: str, text: str) -> Script:
        script = super()._build(name, text)
        full = STRICT + script.text
        return replace(script, text=full, sha=sha1(full.encode(), usedforsecurity=False).hexdigest())


def strict() -> StrictScripts:
    return scripts_under_test(StrictScripts, READ_FAKE_CLOCK)  # pyright: ignore[reportReturnType]


@pytest.fixture
def connections(redis_url: str) -> Iterator[Connections]:
    made = Connections(parse_url(redis_url), scripts=strict())
    yield made
    made.close()


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "keeper"])
def test_what_a_script_stores_is_no_number(name: str, make_slot: MakeSlot, connections: Connections) -> None:
    _, make = EXAMPLES[name].made(make_slot)
    found = connections.run(make())
    assert not any(isinstance(each, Exception) for each in (found if isinstance(found, list) else [found]))


@pytest.mark.parametrize("merge", [None, Merge(Sum(), window=Fixed("1ms"))])
def test_what_a_query_stores_is_no_number(make_slot: MakeSlot, connections: Connections, merge: Merge | None) -> None:
    slot = make_slot(TopicType.RANGE_MERGE, checked=False, merge=merge)
    body = None if merge is None else write_record(Record(1, 0, 0, 1, "S", b""))
    slot.send((b"a", 1, body), (b"b", 1, body))
    slot.advance(10)
    for generation in (1_800_000_000, 1_900_000_000):
        driver = Driver("q1", generation)
        connections.run(spark_calls.enter(slot.topic, "q1"))
        connections.run(spark_calls.read(slot.topic, Reading(driver, 1, 10, 10, True), 0, 0, 10))
        connections.run(spark_calls.settle(slot.topic, 0, driver, 1, 0, "renew"))
    assert slot.client.hget(f"spark:q1{{{slot.topic.name}_0}}", "generation") == b"1900000000"
    connections.run(spark_calls.settle(slot.topic, 0, driver, 1, 0, "ack"))
    connections.run(spark_calls.forget(slot.topic, 0, driver, 2, 0))


@pytest.mark.parametrize("weight", [100_000_000, 300_000_000, 300_000_001, 2**53 - 2])
def test_weights_are_counted_exactly(make_slot: MakeSlot, connections: Connections, weight: int) -> None:
    slot: SlotUnderTest = make_slot(merge=Merge(Sum(), window=Fixed("1m")))
    slot.connections = connections
    record = write_record(Record(weight, 0, 0, 1, "S", b""))
    slot.send((b"x", 60_000, record))
    slot.send((b"x", 60_000, write_record(Record(1, 0, 0, 1, "S", b""))))
    totals = slot.state().totals
    assert (totals["accepted"], totals["merged"]) == (weight + 1, weight)
