"""docker-compose.yml and `rmq cluster up` start the same cluster, and the latter works."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmq import RmqClient, deployment, local_cluster
from rmq.java import find_java
from rmq.local_cluster import LocalClusterError
from rmq.urls import Address, Topology, parse_url
from rmq.zookeeper_server import find_classpath
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_redis_is_set_up_as_locally(compose: dict[str, Any]) -> None:
    services = compose["services"]
    names = (*deployment.MASTERS, *deployment.REPLICAS)
    assert {name for name in services if name.startswith("redis")} == set(names)
    for name in names:
        assert services[name]["command"] == ["redis-server", *deployment.redis_arguments()]
        assert services[name]["volumes"] == [f"{name}:/data"]
    addresses = [services[name]["networks"]["rmq"]["ipv4_address"] for name in names]
    assert len(set(addresses)) == len(names)


def test_the_redis_cluster_is_made_of_the_same_parts(compose: dict[str, Any]) -> None:
    parts = (deployment.MASTERS, deployment.REPLICAS)
    masters, replicas = (",".join(f"{name}:6379" for name in part) for part in parts)
    setup = compose["services"]["cluster-setup"]
    assert setup["command"] == ["python", "-m", "rmq.cluster_setup", masters, replicas]
    assert setup["depends_on"] == {
        name: {"condition": "service_healthy"} for name in (*deployment.MASTERS, *deployment.REPLICAS)
    }


def test_zookeeper_is_set_up_as_locally(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {name for name in services if name.startswith("zookeeper")} == set(deployment.ZOOKEEPERS)
    ensemble = " ".join(f"server.{i}={name}:2888:3888;2181" for i, name in enumerate(deployment.ZOOKEEPERS, 1))
    for number, name in enumerate(deployment.ZOOKEEPERS, 1):
        environment = services[name]["environment"]
        assert environment["ZOO_MY_ID"] == str(number)
        assert environment["ZOO_SERVERS"] == ensemble
        assert environment["ZOO_TICK_TIME"] == str(deployment.ZOOKEEPER_TICK_MS)
        for setting, value in deployment.ZOOKEEPER_SETTINGS.items():
            variable = "ZOO_" + re.sub(r"(?=[A-Z])", "_", setting).upper()
            assert environment[variable] == value


def test_workers_and_producer_run_as_locally(compose: dict[str, Any]) -> None:
    worker, producer = compose["services"]["worker"], compose["services"]["producer"]
    assert tuple(worker["command"]) == deployment.WORKER_COMMAND
    assert worker["deploy"]["replicas"] == deployment.WORKERS
    assert tuple(producer["command"]) == deployment.PRODUCER_COMMAND
    redis = [Address(name, 6379) for name in (*deployment.MASTERS, *deployment.REPLICAS)]
    zookeepers = [Address(name, 2181) for name in deployment.ZOOKEEPERS]
    for service in (worker, producer):
        assert service["environment"] == deployment.environment(redis, zookeepers)
        assert set(service["depends_on"]) == {"cluster-setup", *deployment.ZOOKEEPERS}
    assert parse_url(worker["environment"]["RMQ_URL"]).topology is Topology.CLUSTER


def test_images_are_pinned_and_health_is_checked(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert re.fullmatch(r"rmq:local|[a-z]+:\d+\.\d+\.\d+(-[a-z0-9]+)?", service["image"]), name
        assert name == "cluster-setup" or "healthcheck" in service, name
        assert service["image"] != "rmq:local" or service["build"] == ".", name
    mounted = [volume.partition(":")[0] for each in compose["services"].values() for volume in each.get("volumes", ())]
    assert sorted(mounted) == sorted(compose["volumes"])
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        assert not line.startswith("FROM") or re.match(r"FROM python:\d+\.\d+\.\d+-", line)


def test_the_image_gets_all_that_the_wheel_is_made_of() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert f"!{source.rstrip('*')}" in ignored, source
                assert (ROOT / source.rstrip("*")).exists(), source


# --- `rmq cluster`


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    find_java()  # `make test` brings both: without them it fails here, and says what is missing
    find_classpath()
    yield tmp_path / "cluster"
    local_cluster.down(tmp_path / "cluster")


def test_down_and_status_without_a_cluster(tmp_path: Path) -> None:
    assert local_cluster.status(tmp_path) is None
    assert local_cluster.down(tmp_path) is False
    (tmp_path / "mine").touch()
    with pytest.raises(LocalClusterError, match="nothing was deleted"):
        local_cluster.down(tmp_path, delete=True)
    assert (tmp_path / "mine").exists()


def test_a_local_cluster_works_survives_its_command_and_ends(folder: Path) -> None:
    rmq_up = local_cluster.up(folder, workers=2)
    assert rmq_up.phase == "ready"
    with pytest.raises(LocalClusterError, match="runs already"):
        local_cluster.up(folder)
    pids = {process.name: process.pid for process in rmq_up.processes}
    assert len(pids) == 3 + 3 + 3 + 2 + 1
    with RmqClient(rmq_up.environment["RMQ_URL"]) as client:

        def acked() -> int:
            if not client.topics():
                return 0
            stats = client.inspect("price-picture").stats()
            assert stats.unaccounted == 0
            return stats.total("acked")

        wait_until(lambda: acked() > 100, 40, "the workers to draw the producer's pictures")

    os.kill(pids["worker-1"], signal.SIGKILL)
    wait_until(lambda: _pid_of(folder, "worker-1") not in (0, pids["worker-1"]), 10, "a new worker")

    assert local_cluster.down(folder) is True
    for pid in pids.values():
        wait_until(lambda pid=pid: not _alive(pid), 5, f"the end of process {pid}")
    state = local_cluster.status(folder)
    assert state is not None and state.phase == "down"  # noqa: PT018

    again = local_cluster.up(folder, workers=0, producer=False)  # the data are found again
    with RmqClient(again.environment["RMQ_URL"]) as client:
        assert client.inspect("price-picture").stats().total("acked") > 100
    keeper = int((folder / "keeper.lock").read_text())
    os.kill(keeper, signal.SIGKILL)  # however it ends, all the others do, too
    for process in again.processes:
        wait_until(lambda pid=process.pid: not pid or not _alive(pid), 5, f"the end of {process.name}")
    assert local_cluster.down(folder, delete=True) is False
    assert not folder.exists()


def _pid_of(folder: Path, name: str) -> int:
    state = local_cluster.status(folder)
    assert state is not None
    return next(process.pid for process in state.processes if process.name == name)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path(f"/proc/{pid}/stat").exists() else True
