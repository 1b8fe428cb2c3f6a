"""How calls that may be repeated are numbered."""

from __future__ import annotations

from rmq._transport.rpc_ids import OPEN_CALLS, RpcId, RpcIdAllocator, named_rpc_id


def test_a_call_that_stays_open_keeps_few_numbers_of_its_lane() -> None:
    rpc_ids = RpcIdAllocator()
    stuck = rpc_ids.draw("orders", 3)
    drawn = [rpc_ids.draw("orders", 3)._replace(token=None) for _ in range(10 * OPEN_CALLS)]
    spans = [rpc_id.number - rpc_id.floor for rpc_id in drawn]
    assert max(spans) < OPEN_CALLS, "the server keeps the replies of all numbers from the floor on"
    assert {rpc_id.lane for rpc_id in drawn} != {stuck.lane}
    assert len({rpc_id.lane for rpc_id in drawn}) == 2, "one lane is stuck, the other one goes on"
    assert len({(rpc_id.lane, rpc_id.number) for rpc_id in [*drawn, stuck]}) == len(drawn) + 1


def test_open_calls_have_numbers_of_their_own_whoever_ends_first() -> None:
    rpc_ids, open_turns = RpcIdAllocator(), list[RpcId]()
    for number in range(300):
        open_turns.append(rpc_ids.draw("orders", 3))
        if number % 3 == 0:
            del open_turns[number % len(open_turns)]
    assert len({(rpc_id.lane, rpc_id.number) for rpc_id in open_turns}) == len(open_turns)
    assert all(0 <= rpc_id.number - rpc_id.floor < OPEN_CALLS for rpc_id in open_turns)


def test_each_slot_has_lanes_of_its_own() -> None:
    rpc_ids = RpcIdAllocator()
    drawn = [rpc_ids.draw(topic, slot) for topic in ("a", "b") for slot in range(3) for _ in range(2)]
    assert [rpc_id.number for rpc_id in drawn] == [1, 2] * 6
    assert len({rpc_id.lane for rpc_id in drawn}) == 6


def test_a_name_has_lanes_of_few_numbers_each_and_no_other_name_has_them() -> None:
    names = ("a", "0:a", "a:0", "1:a", "=0:a")
    rpc_ids = [named_rpc_id(name, number) for name in names for number in range(1, 3 * OPEN_CALLS + 1)]
    assert len({(rpc_id.lane, rpc_id.number) for rpc_id in rpc_ids}) == len(rpc_ids)
    lanes = {rpc_id.lane for rpc_id in rpc_ids}
    assert len(lanes) == 3 * len(names)
    assert all(lane.startswith("=") for lane in lanes)
