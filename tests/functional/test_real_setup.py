"""The benchmark of the real setup: owners in ZooKeeper or Redis, an AOF, a replica of each node, several workers."""

from __future__ import annotations

import pytest

from benchmarks import real
from benchmarks.support.servers import Servers
from rmq._broker.keys import OWNERS_KEYS
from tests.support.zookeeper import ZooKeeperEnsemble


def totals(servers: Servers) -> tuple[int, int]:
    """Return how many messages were accepted and acked."""
    found = [master.hgetall(name) for master in servers.connect_all() for name in master.keys("meta{*")]
    return sum(int(each.get(b"accepted", 0)) for each in found), sum(int(each.get(b"acked", 0)) for each in found)


@pytest.mark.parametrize("case", [real.Case(real.ALL, workers=2), real.Case(real.ALL, nodes=2)])
def test_all_is_sent_and_handled_with_owners_an_aof_and_replicas(case: real.Case) -> None:
    with ZooKeeperEnsemble() as zookeeper, real.site(case.nodes, real.SETUPS[case.setup]) as servers:
        assert len(servers.replica_ports) == case.nodes
        figures = real.run(servers, case, (zookeeper.hosts, "/real"), 2_000)
        for master, replica in zip(servers.connect_all(), servers.replicas.connect_all(), strict=True):
            assert master.config_get("append*")["appendonly"] == "yes"
            assert (master.info("replication")["connected_slaves"], replica.info("replication")["role"]) == (1, "slave")
        assert totals(servers) == (2_000 + real.WARM_UP, 2_000 + real.WARM_UP)
    assert min(figures[key] for key in ("rate_per_s", "server_us", "replica_cpu_us", "worker_cpu_us")) > 0


def test_all_is_sent_and_handled_one_by_one_with_owners_in_redis() -> None:
    with real.site(1, real.SETUPS[real.IN_REDIS]) as servers:
        figures = real.run(servers, real.Case(real.IN_REDIS, workers=2, batch=None), None, 200)
        assert b"/ensemble" in servers.connect().hkeys(OWNERS_KEYS["nodes"])
        assert totals(servers) == (200 + real.WARM_UP, 200 + real.WARM_UP)
    assert figures["calls"] > 1
