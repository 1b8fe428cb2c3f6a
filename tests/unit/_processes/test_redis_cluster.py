"""What a Redis Cluster lacks, from what its nodes say."""

from __future__ import annotations

from rmq._processes.redis_cluster import NodeView, missing_parts, next_steps, parse_node
from rmq._servers.urls import Address

FIRST, SECOND = Address("10.0.0.1", 7001), Address("10.0.0.2", 7002)
OK = "cluster_state:ok\r\ncluster_slots_ok:16384\r\ncluster_my_epoch:1\r\n"
FAILING = "cluster_state:fail\r\ncluster_slots_ok:16384\r\n"


def line(node: str, address: Address, flags: str, slots: str = "", link: str = "connected", master: str = "-") -> str:
    return f"{node} {address}@1{address.port},name {flags} {master} 0 0 1 {link} {slots}\n"


def pair(
    info: str = OK, replication: str = "slave0:state=online\r\n", seen: str = "slave", link: str = "connected"
) -> dict[Address, NodeView]:
    """A master with its replica, each with its view."""
    first = line("a", FIRST, "myself,master", "0-16383") + line("b", SECOND, seen, link=link, master="a")
    second = line("a", FIRST, "master", "0-16383") + line("b", SECOND, "myself,slave", master="a")
    return {FIRST: parse_node(first, info, replication), SECOND: parse_node(second, OK, "master_link_status:up\r\n")}


def test_a_line_is_understood() -> None:
    view = parse_node(
        line("a", FIRST, "myself,master", "0-3 5 [7->-b]") + line("c", SECOND, "handshake"), OK, "role:master\r\n"
    )
    assert set(view.peers) == {"a"}  # one that is only being met is not known yet
    assert (view.me.address, view.me.slots, view.me.master) == (FIRST, {0, 1, 2, 3, 5}, "")


def test_a_complete_cluster_lacks_nothing() -> None:
    assert missing_parts(pair(), 1) == ""
    assert next_steps(pair(), [FIRST]) == []


def test_whatever_lacks_is_named() -> None:
    assert "cluster_state" in missing_parts(pair(info=FAILING), 1)
    assert "0 of 16384 hash slots" in missing_parts(pair(info="cluster_state:ok\r\ncluster_slots_ok:0"), 1)
    assert "does not reach all" in missing_parts(pair(seen="slave,fail?"), 1)
    assert "does not reach all" in missing_parts(pair(link="disconnected"), 1)
    assert missing_parts(pair(replication="slave0:state=wait_bgsave"), 1) == "0 of 1 replicas have their master's data"
    assert "sees 1 of 2 replicas" in missing_parts(pair(), 2)
    single = {FIRST: parse_node(line("a", FIRST, "myself,master", "0-16383"), OK, "")}
    assert "knows 1 of 2 nodes" in missing_parts(single | {SECOND: pair()[SECOND]}, 1)


def test_hash_slots_that_anybody_holds_are_given_to_nobody_else() -> None:
    views = {
        FIRST: parse_node(line("a", FIRST, "myself,master", "0-99"), OK, ""),
        SECOND: parse_node(line("b", SECOND, "myself,master", "100-8191 16000-16383"), OK, ""),
    }
    steps = next_steps(views, [FIRST, SECOND])
    given = {step.address: step.command[2:] for step in steps if "ADDSLOTS" in step.command}
    assert given == {SECOND: tuple(range(8192, 16000))}


def test_who_moved_is_met_at_its_new_place_by_those_that_lost_it() -> None:
    views = pair(link="disconnected")
    moved = Address("10.0.0.9", 7009)
    views = {FIRST: views[FIRST], moved: views[SECOND]}
    assert [(step.address, step.command) for step in next_steps(views, [FIRST])] == [
        (FIRST, ("CLUSTER", "MEET", "10.0.0.9", 7009))
    ]
