"""Worker processes under faults, with traffic running: who owned what, what ran at once, what was lost.

    python -m benchmarks.chaos [--servers cluster|single] [--owners zookeeper|redis] [--json FILE] [--only NAME ...]

`cluster`: 3 Redis masters with 3 replicas and 3 ZooKeeper servers; `single`: one of each; with owners in Redis there is
no ZooKeeper. 4 worker processes, 2 topics of 64 slots. Workers write a ledger outside Redis; `tests/support/ledger.py`
finds in it what must not be. The exit code is 1 if anything was lost, ran twice at once without an excuse, or was
without an owner for too long.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.support.harness import machine
from rmq import Topic, TopicType
from tests.support import scenarios
from tests.support.link import Link
from tests.support.ownership import LEASE_S, SESSION_S, TICK_MS, Report, Rig
from tests.support.scenarios import RECOVERY_S, Measured
from tests.support.servers import RedisServer
from tests.support.topologies import RedisClusterServers
from tests.support.zookeeper import ZooKeeperEnsemble

WORKERS = ("w0", "w1", "w2", "w3")
LONG_LEASE_S = 20
"""Longer than any pause here but the longest: so that what a pause alone may not cause shows."""


@dataclass(frozen=True)
class Case:
    """A scenario and its surroundings.

    Attributes:
        name: Its name.
        scenario: What to do.
        workers: Who runs from the start.
        links: The first worker's way to ZooKeeper, where it can be cut.
        durability: Of the traffic.
        lease_s: Of the topics.
        may_lose: Whether accepted messages may be lost: asynchronous replication.
        per_second: Messages sent.
        handle_ms: How long a handler takes, from and to.
        wait_ms: How long a message waits in the backlog at least.
    """

    name: str
    scenario: Callable[[Rig], Measured]
    workers: tuple[str, ...] = WORKERS
    links: tuple[Link, ...] = ()
    durability: str = "memory"
    lease_s: int = LEASE_S
    may_lose: bool = False
    per_second: float = 150.0
    handle_ms: tuple[float, float] = (10.0, 100.0)
    wait_ms: int = 1


class Servers:
    """What a run needs, started at once."""

    def __init__(self, kind: str, owners: str, stack: ExitStack) -> None:
        several = kind == "cluster"
        number = 0 if owners == "redis" else 3 if several else 1
        self.zookeeper = stack.enter_context(ZooKeeperEnsemble(servers=number, tick_ms=TICK_MS))
        self.cluster = stack.enter_context(RedisClusterServers(masters=3, replicas=1)) if several else None
        if self.cluster:
            self.cluster.take_for_dead_after()
        self.url = self.cluster.url if self.cluster else stack.enter_context(RedisServer()).url
        self.links = tuple(stack.enter_context(Link(server.port)) for server in self.zookeeper.servers)

    def cases(self) -> Iterator[Case]:
        """Return what these servers allow."""
        yield Case("join and leave", scenarios.join_and_leave)
        yield Case("1 to 4 workers", scenarios.grow, workers=("w0",))
        yield Case("kill -9", scenarios.killed)
        for timeouts in (0.5, 2.0, 5.0):
            yield Case(f"stopped for {timeouts:g} session timeouts", scenarios.stopped(timeouts))
            yield Case(f"stopped for {timeouts:g}, long lease", scenarios.stopped(timeouts), lease_s=LONG_LEASE_S)
        if len(self.links) > 1:
            yield Case("ZooKeeper leader killed", scenarios.zookeeper_leader_killed(self.zookeeper))
        if self.links:
            yield Case("ZooKeeper away for 30 s", scenarios.quorum_lost(self.zookeeper, 30.0))
            cut = scenarios.cut_from_zookeeper(list(self.links), "w0", 4 * SESSION_S)
            yield Case("cut from ZooKeeper", cut, links=self.links)
        yield Case("cut from Redis", scenarios.cut_from_redis(4 * SESSION_S))
        if self.cluster:
            for what, lag_s in (("Redis master killed", 0.0), ("Redis master killed behind a slow replica", 0.8)):
                failover = scenarios.redis_master_killed(self.cluster, lag_s)
                fast: dict[str, Any] = {"per_second": 600.0, "handle_ms": (0.0, 2.0), "wait_ms": 3_000}
                yield Case(f"{what}, memory", failover, may_lose=True, **fast)
                yield Case(f"{what}, replicated", failover, durability="replicated", **fast)
            yield Case("slots migrated", scenarios.slots_migrated(self.cluster))


def run(case: Case, servers: Servers, folder: Path, number: int) -> Report:
    """Run one case with topics of its own."""
    types = (TopicType.RANGE_MERGE, TopicType.PRIORITY)
    lease = timedelta(seconds=case.lease_s)
    topics = [Topic(f"chaos{number}-{type_.value}", type_, slots=64, lease=lease) for type_ in types]
    options: dict[str, Any] = {"durability": case.durability, "handle_ms": case.handle_ms}
    with Rig(servers.url, servers.zookeeper.hosts, folder, topics, **options) as rig:
        for worker in case.workers:
            cut = case.links and worker == case.workers[0]
            rig.start(worker, **({"hosts": ",".join(f"127.0.0.1:{link.port}" for link in case.links)} if cut else {}))
        rig.wait_owned(timeout_s=30)
        rig.wait_can_claim(timeout_s=30)
        first_owned_s = rig.first_owned_s()
        with rig.traffic(case.per_second, case.wait_ms) as traffic:
            time.sleep(1.5)
            measured = case.scenario(rig)
            time.sleep(1.5)
        report = rig.account(case.name, traffic, timeout_s=90, lease_s=case.lease_s, **measured)
        report.owned_again_s = measured["again_s"]
        report.notes["first_owned_s"] = first_owned_s
        return report


def faults_of(report: Report, case: Case) -> list[str]:
    """Return what is wrong with a report."""
    wrong = {
        "lost": 0 if case.may_lose else report.lost,
        "unaccounted": report.unaccounted,
        "content overlaps": report.content_overlaps[0],
        "slot overlaps": report.slot_overlaps[0],
        "stale starts": report.stale_starts,
        "late outcomes accepted": report.late[1],
        "too long without an owner": report.owned_again_s > SESSION_S + RECOVERY_S,
        "too long until all was owned": report.notes["first_owned_s"] > RECOVERY_S,
    }
    return [f"{what}: {number}" for what, number in wrong.items() if number]


def main() -> None:
    """Run the cases, print and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", choices=("cluster", "single"), default="cluster")
    parser.add_argument("--owners", choices=("zookeeper", "redis"), default="zookeeper", help="what keeps the owners")
    parser.add_argument("--json", type=Path, help="where to write the reports")
    parser.add_argument("--keep", type=Path, help="where to keep ledgers and logs")
    parser.add_argument("--only", nargs="*", default=[], help="names of scenarios, or how they begin")
    parser.add_argument("--quick", action="store_true", help="one Redis, one ZooKeeper; join, leave and kill")
    options = parser.parse_args()
    if options.quick:
        options.servers, options.only = "single", options.only or ["join", "kill"]
    warnings.simplefilter("ignore")  # kazoo warns of a chroot that the workers create
    logging.disable()
    reports: list[Report] = []
    failed = False
    with ExitStack() as stack:
        kept: Path = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-chaos-")))
        servers = Servers(options.servers, options.owners, stack)
        for number, case in enumerate(servers.cases()):
            if options.only and not any(case.name.startswith(name) for name in options.only):
                continue
            folder = kept / case.name.replace(" ", "-").replace(",", "")
            folder.mkdir(parents=True, exist_ok=True)
            try:
                report = run(case, servers, folder, number)
            except AssertionError:
                traceback.print_exc()
                print(f"{case.name}: FAILED", flush=True)
                failed = True
                continue
            reports.append(report)
            wrong = faults_of(report, case)
            failed = failed or bool(wrong)
            print(f"{case.name}: {'; '.join(wrong) or 'good'}\n  {report.to_json()}", flush=True)
    if options.json:
        settings = {"servers": options.servers, "owners": options.owners, "session_s": SESSION_S}
        settings |= {"lease_s": LEASE_S, "long_lease_s": LONG_LEASE_S}
        result = {"benchmark": "chaos", "machine": machine(), "settings": settings}
        options.json.write_text(json.dumps({**result, "reports": [asdict(each) for each in reports]}, indent=1) + "\n")
    sent, lost = sum(each.sent for each in reports), sum(each.lost for each in reports)
    verdict = "not as promised" if failed else "as promised"
    print(f"{len(reports)} scenarios, {sent:,} sends, {lost} lost by masters without their replicas: {verdict}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
