"""The benchmark of the real setup: owners in ZooKeeper, an AOF, a replica of each node, several workers."""

from __future__ import annotations

import pytest

from benchmarks import real
from tests.support.zookeeper import ZooKeeperEnsemble


@pytest.mark.parametrize("case", [real.Case(real.ALL, workers=2), real.Case(real.ALL, nodes=2)])
def test_all_is_sent_and_handled_with_owners_an_aof_and_replicas(case: real.Case) -> None:
    with ZooKeeperEnsemble() as zookeeper, real.site(case.nodes, real.SETUPS[case.setup]) as servers:
        assert len(servers.replica_ports) == case.nodes
        figures = real.run(servers, case, (zookeeper.hosts, "/real"), 2_000)
        for master, replica in zip(servers.connect_all(), servers.replicas.connect_all(), strict=True):
            assert master.config_get("append*")["appendonly"] == "yes"
            assert (master.info("replication")["connected_slaves"], replica.info("replication")["role"]) == (1, "slave")
        totals = [
            {key.decode(): int(value) for key, value in master.hgetall(name).items() if key in (b"accepted", b"acked")}
            for master in servers.connect_all()
            for name in master.keys("meta{*")
        ]
    number = 2_000 + real.WARM_UP
    assert {key: sum(each.get(key, 0) for each in totals) for key in ("accepted", "acked")} == {
        "accepted": number,
        "acked": number,
    }
    assert min(figures[key] for key in ("rate_per_s", "server_us", "replica_cpu_us", "worker_cpu_us")) > 0
