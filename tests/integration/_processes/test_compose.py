"""docker-compose.yml and `rmq cluster up` start the same cluster, and the latter works."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from rmq import Consumer, PriorityMessage, RmqClient, Topic, TopicType
from rmq._processes import local_cluster
from rmq._processes.local_cluster import LocalClusterError, State
from rmq._processes.server_programs import find_java
from rmq._processes.zookeeper import JUTE_MAXBUFFER, find_classpath
from rmq.demo import price_stream
from tests.support.core import Address, Topology, parse_url
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
METRICS_OF_WORKERS = ("--metrics-port", "9461", "--metrics-host", "0.0.0.0")
TOPIC = Topic("moved", TopicType.PRIORITY, slots=4)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_redis_is_set_up_as_locally(compose: dict[str, Any]) -> None:
    services = compose["services"]
    names = (*local_cluster.MASTERS, *local_cluster.REPLICAS)
    assert {name for name in services if name.startswith("redis")} == set(names)
    for name in names:
        assert services[name]["command"] == ["redis-server", *local_cluster.redis_arguments()]
        assert services[name]["volumes"] == [f"{name}:/data"]
        assert services[name]["healthcheck"]["test"] == ["CMD-SHELL", "redis-cli ping | grep -q PONG"]


@pytest.mark.parametrize("chosen", [None, "10.77.0"])
def test_fixed_addresses_are_dealt_out_to_nobody_else(chosen: str | None) -> None:
    def put_in(match: re.Match[str]) -> str:
        return chosen or match[1]

    text = re.sub(r"\$\{RMQ_SUBNET:-([^}]*)\}", put_in, (ROOT / "docker-compose.yml").read_text())
    compose = yaml.safe_load(text)
    (network,) = compose["networks"]["rmq"]["ipam"]["config"]
    subnet, dealt_out = (ipaddress.ip_network(network[name]) for name in ("subnet", "ip_range"))
    networks = [service["networks"] for service in compose["services"].values()]
    fixed = [ipaddress.ip_address(each["rmq"]["ipv4_address"]) for each in networks if isinstance(each, dict)]
    assert len(set(fixed)) == len(fixed) == 6
    assert all(address in subnet and address not in dealt_out for address in fixed)


def test_the_redis_cluster_is_made_of_the_same_parts(compose: dict[str, Any]) -> None:
    parts = (local_cluster.MASTERS, local_cluster.REPLICAS)
    masters, replicas = (",".join(f"{name}:6379" for name in part) for part in parts)
    setup = compose["services"]["cluster-setup"]
    assert setup["command"] == ["python", "-m", "rmq._processes.redis_cluster", masters, replicas]
    assert setup["depends_on"] == {
        name: {"condition": "service_healthy"} for name in (*local_cluster.MASTERS, *local_cluster.REPLICAS)
    }


def test_zookeeper_is_set_up_as_locally(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {name for name in services if name.startswith("zookeeper")} == set(local_cluster.ZOOKEEPERS)
    ensemble = " ".join(f"server.{i}={name}:2888:3888;2181" for i, name in enumerate(local_cluster.ZOOKEEPERS, 1))
    for number, name in enumerate(local_cluster.ZOOKEEPERS, 1):
        environment = services[name]["environment"]
        assert environment["ZOO_MY_ID"] == str(number)
        assert environment["ZOO_SERVERS"] == ensemble
        assert environment["ZOO_TICK_TIME"] == str(local_cluster.ZOOKEEPER_TICK_MS)
        assert environment["JVMFLAGS"] == f"-Djute.maxbuffer={JUTE_MAXBUFFER}"
        for setting, value in local_cluster.ZOOKEEPER_SETTINGS.items():
            autopurge = setting.startswith("autopurge")  # the image's names for these have fewer underscores
            words = setting.replace(".", "_") if autopurge else re.sub(r"(?=[A-Z])", "_", setting)
            assert environment["ZOO_" + words.upper()] == value


def test_workers_and_producer_run_as_locally(compose: dict[str, Any]) -> None:
    worker, producer = compose["services"]["worker"], compose["services"]["producer"]
    assert tuple(worker["command"]) == (*local_cluster.WORKER_COMMAND, *METRICS_OF_WORKERS)
    assert worker["deploy"]["replicas"] == local_cluster.WORKERS
    assert tuple(producer["command"]) == local_cluster.PRODUCER_COMMAND
    redis = [Address(name, 6379) for name in (*local_cluster.MASTERS, *local_cluster.REPLICAS)]
    zookeepers = [Address(name, 2181) for name in local_cluster.ZOOKEEPERS]
    for service in (worker, producer):
        assert service["environment"] == local_cluster.environment_of(redis, zookeepers)
        assert set(service["depends_on"]) == {"cluster-setup", *local_cluster.ZOOKEEPERS}
    assert parse_url(worker["environment"]["RMQ_URL"]).topology is Topology.CLUSTER


def test_images_are_pinned_and_health_is_checked(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert re.fullmatch(r"rmq(-spark)?:local|[a-z/]+:v?\d+\.\d+\.\d+(-[a-z0-9]+)?", service["image"]), name
        assert name == "cluster-setup" or "healthcheck" in service, name
        assert service["image"] != "rmq:local" or service["build"] == ".", name
        assert service["image"] != "rmq-spark:local" or service["build"] == {"context": ".", "target": "spark"}, name
    mounted = [volume.partition(":")[0] for each in compose["services"].values() for volume in each.get("volumes", ())]
    assert sorted(name for name in mounted if not name.startswith("./")) == sorted(compose["volumes"])
    assert all((ROOT / name).is_dir() for name in mounted if name.startswith("./"))
    stages: set[str] = set()
    for image, stage in re.findall(r"^FROM (\S+) AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        assert image in stages or re.match(r"python:\d+\.\d+\.\d+-", image)
        stages.add(stage)
    assert stage == "rmq"  # the default


def test_what_runs_rmq_has_no_rights_and_writes_nothing(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if service["image"].startswith("rmq"):
            assert service["read_only"] is True, name
            # Java loads native code from /tmp
            assert service["tmpfs"] == ["/tmp:exec" if service["image"] == "rmq-spark:local" else "/tmp"], name
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name


def test_spark_runs_as_a_cluster_with_bounds(compose: dict[str, Any]) -> None:
    services = {name: each for name, each in compose["services"].items() if each["image"] == "rmq-spark:local"}
    assert services.keys() == {"spark-master", "spark-worker", "spark-job"}
    assert all(each["profiles"] == ["spark"] and each["mem_limit"] for each in services.values())
    for name in ("spark-worker", "spark-job"):
        assert services[name]["command"][-1] == "spark://spark-master:7077"
    job, worker = services["spark-job"], compose["services"]["worker"]
    assert job["command"][:3] == ["python", "-m", price_stream.__name__]
    assert job["environment"] == worker["environment"]


def test_ports_are_published_to_this_machine_alone(compose: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert published.keys() == {"dashboard", "prometheus"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_prometheus_asks_what_runs(compose: dict[str, Any]) -> None:
    settings = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    assert all((ROOT / "deploy" / "prometheus" / name).exists() for name in settings["rule_files"])
    topics, workers = settings["scrape_configs"]
    assert topics["static_configs"] == [{"targets": ["metrics:9460"]}]
    assert compose["services"]["metrics"]["command"] == ["rmq", "metrics", "--host", "0.0.0.0"]
    (asked,) = workers["dns_sd_configs"]
    assert (asked["names"], str(asked["port"])) == (["worker"], METRICS_OF_WORKERS[1])


def test_the_image_gets_all_that_the_wheel_is_made_of() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copies = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    assert set(wheel["only-include"]) <= {source for line in copies for source in line.split()[1:-1]}
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


@pytest.mark.slow
def test_a_local_cluster_works_survives_its_command_and_ends(folder: Path) -> None:
    rmq_up = local_cluster.up(folder, workers=2)
    assert rmq_up.phase == "ready"
    with pytest.raises(LocalClusterError, match="already running"):
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

        wait_until(lambda: acked() > 100, message="the workers to draw the producer's pictures")

    os.kill(pids["worker-1"], signal.SIGKILL)
    wait_until(lambda: _pid_of(folder, "worker-1") not in (0, pids["worker-1"]), message="a new worker")

    assert local_cluster.down(folder) is True
    for pid in pids.values():
        wait_until(lambda pid=pid: not _alive(pid), message=f"the end of process {pid}")
    state = local_cluster.status(folder)
    assert state is not None and state.phase == "down"  # noqa: PT018

    again = local_cluster.up(folder, workers=0, producer=False)  # the data are found again
    with RmqClient(again.environment["RMQ_URL"]) as client:
        assert client.inspect("price-picture").stats().total("acked") > 100
    keeper = int((folder / "keeper.lock").read_text())
    os.kill(keeper, signal.SIGKILL)  # however it ends, all the others do, too
    for process in again.processes:
        wait_until(lambda pid=process.pid: not pid or not _alive(pid), message=f"the end of {process.name}")
    assert local_cluster.down(folder, delete=True) is False
    assert not folder.exists()


@pytest.mark.slow
def test_a_start_that_was_killed_is_completed_by_the_next(folder: Path) -> None:
    folder.mkdir()
    command = [sys.executable, "-c", "import sys; from rmq.cli import main; main()", "cluster", "up"]
    with subprocess.Popen([*command, "--folder", folder, "--workers", "0", "--no-producer"], cwd=ROOT) as first:
        wait_until(lambda: _redis_runs(folder), message="the first Redis")
        os.kill(int((folder / "keeper.lock").read_text()), signal.SIGKILL)
        first.kill()
    wait_until(lambda: not local_cluster.runs(folder))
    _assert_whole(local_cluster.up(folder, workers=0, producer=False))


@pytest.mark.slow
def test_a_cluster_moves_to_other_ports_with_its_data(folder: Path) -> None:
    before = local_cluster.up(folder, workers=0, producer=False)
    with RmqClient(before.environment["RMQ_URL"], durability="replicated") as client:
        client.producer(TOPIC).send_many(PriorityMessage(f"item:{number}", 100) for number in range(50))
    local_cluster.down(folder)
    first_port = min(before.ports.values()) - 100
    after = local_cluster.up(folder, workers=0, producer=False, first_port=first_port)
    assert min(after.ports.values()) == first_port
    _assert_whole(after)
    with RmqClient(after.environment["RMQ_URL"]) as client, client.consumer(TOPIC) as consumer:
        found: set[str] = set()
        wait_until(lambda: found.update(_acked(consumer)) or len(found) == 50, message="all messages")


def _acked(consumer: Consumer) -> list[str]:
    deliveries = consumer.poll(100, timeout=0.5)
    for delivery in deliveries:
        delivery.ack()
    return [delivery.text for delivery in deliveries]


def _redis_runs(folder: Path) -> bool:
    state = local_cluster.status(folder)
    return state is not None and any(each.pid and each.name.startswith("redis") for each in state.processes)


def _assert_whole(state: State) -> None:
    """Look at each node: all know all, all hash slots are served, each master has its replica."""
    replicas = 0
    for name in (*local_cluster.MASTERS, *local_cluster.REPLICAS):
        with redis.Redis(port=state.ports[name]) as client:
            info: Any = client.cluster("INFO")
            assert (info["cluster_state"], info["cluster_slots_ok"]) == ("ok", "16384")
            assert info["cluster_known_nodes"] == "6"
            replicas += int(client.info("replication")["connected_slaves"])
    assert replicas == len(local_cluster.REPLICAS)


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
