"""The recipe of docs/guide/spark.md for a cluster without RMQ, on a standalone master with two workers.

The Python of driver and executors has neither RMQ nor pyarrow: both come with the job.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rmq import RmqClient
from tests.spark.standalone import Standalone, standalone_cluster

pytestmark = pytest.mark.spark_long

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/guide/spark.md"
PYTHON = str(Path(sys.base_prefix, "bin", "python3"))
ARCHIVES = ("--archives", "deps.tar.gz#deps", "--conf", "spark.executorEnv.PYTHONPATH=deps")
REFUSED = "Cluster deploy mode is currently not supported for python applications on standalone clusters."
NUMBER = 1_000

JOB = """
import json, os, sys
from pathlib import Path
from rmq.spark import open_session

url, report = sys.argv[1:]

def where(_rows):
    import rmq, socket
    yield os.getcwd(), os.path.abspath(rmq.__file__), "typer" in sys.modules

with open_session("packed") as spark:
    topic = {"url": url, "topic": "packed"}
    rows = spark.range(NUMBER, numPartitions=4).selectExpr("concat('item:', id) content", "id + 1 priority")
    rows.write.format("rmq").options(**topic, type="PRIORITY", slots=4).mode("append").save()
    saw = {"read": spark.read.format("rmq").options(**topic).load().count()}
    saw["where"] = sorted(set(spark.sparkContext.parallelize(range(40), 20).mapPartitions(where).collect()))
    drained = []
    stream = spark.readStream.format("rmq").options(**topic).load().writeStream.trigger(availableNow=True)
    query = stream.foreachBatch(lambda frame, _: drained.append(frame.count()))
    query = query.option("checkpointLocation", os.path.abspath("checkpoint")).start()
    query.awaitTermination()
    saw["drained"] = sum(drained)
Path(report).write_text(json.dumps(saw))
""".replace("NUMBER", str(NUMBER))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job, the packages of `rmq[spark]` in `deps`, and their archive."""
    folder = tmp_path_factory.mktemp("job")
    deps = folder / "deps"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(deps), str(ROOT)], check=True, capture_output=True, timeout=100)
    for name in sorted(needed_by("rmq", {"spark"}) - {"rmq"}):
        copy(name, deps)
    with tarfile.open(folder / "deps.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(deps, ".")
    (folder / "job.py").write_text(JOB)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.environment["PYSPARK_PYTHON"] = PYTHON
        yield cluster


def needed_by(name: str, extras: set[str]) -> set[str]:
    """Return the names of what is installed with a distribution and its extras."""
    found = {name}
    for text in distribution(name).requires or []:
        needed = Requirement(text)
        if not needed.marker or any(needed.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            found |= needed_by(needed.name, needed.extras)
    return found


def copy(name: str, folder: Path) -> None:
    """Install a distribution in a folder as it stands here: the tests need no index of packages."""
    for file in distribution(name).files or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(str(file.locate())).read_bytes())


def test_the_packages_come_with_the_job(cluster: Standalone, job: Path, spark_client: RmqClient) -> None:
    cluster.environment["PYTHONPATH"] = "deps"
    ran = cluster.submit(job, *ARCHIVES, "job.py", spark_client.url, str(job / "report"))
    assert ran.returncode == 0, ran.stderr[-5_000:]
    saw = json.loads((job / "report").read_text())
    assert (saw["read"], saw["drained"]) == (NUMBER, NUMBER)
    workers = {folder.split("/")[-3] for folder, *_ in saw["where"]}
    assert workers == {"worker-1", "worker-2"}
    assert [(file == f"{folder}/deps/rmq/__init__.py", typer) for folder, file, typer in saw["where"]] == [
        (True, False)
    ] * len(saw["where"])
    stats = spark_client.inspect("packed").stats()
    assert (stats.backlog, stats.in_flight, stats.dead, stats.total("acked")) == (0, 0, 0, NUMBER)


def test_a_standalone_master_refuses_python_in_cluster_mode(cluster: Standalone, job: Path) -> None:
    ran = cluster.submit(job, "--deploy-mode", "cluster", *ARCHIVES, "job.py")
    assert ran.returncode == 1
    assert REFUSED in ran.stdout + ran.stderr


def test_the_page_says_so() -> None:
    page = " ".join(PAGE.read_text("utf-8").replace("\\\n", " ").split())
    assert " ".join(ARCHIVES) in page
    assert REFUSED in page
    assert "PYTHONPATH=deps PYSPARK_PYTHON=python3" in page
