"""A standalone cluster of Spark, a master and two workers, from PySpark's own jars."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from rmq._processes.server_programs import java_home_for_spark
from tests.support.waiting import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
START_S = 120


@dataclass(frozen=True)
class Standalone:
    """The address of a master, and what its programs and ours find in their environment."""

    url: str
    environment: dict[str, str]

    def submit(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `spark-submit` in a folder, and return what became of it."""
        return subprocess.run(
            [str(SPARK_HOME / "bin/spark-submit"), "--master", self.url, "--executor-memory", "512m", *arguments],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )


def clean_environment() -> dict[str, str]:
    """Return the environment of this process without what names a Python or its packages."""
    names = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV", "COVERAGE", "RMQ")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    spark = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    return {**kept, **spark, "JAVA_HOME": str(java_home_for_spark())}


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Standalone]:
    """Yield a cluster whose two workers have a core each; their executors leave logs in `folder`."""
    environment = clean_environment()
    with ExitStack() as ends:

        def start(name: str, role: str, *arguments: str, told: str) -> str:
            log = folder / f"{name}.log"
            main = f"org.apache.spark.deploy.{role.lower()}.{role}"
            with log.open("wb") as out:
                process = subprocess.Popen(
                    [str(SPARK_HOME / "bin/spark-class"), main, "--webui-port", "0", *arguments],
                    env=environment,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            ends.callback(process.wait)
            ends.callback(process.terminate)  # it also ends the executors of a worker
            return wait_until(lambda: re.search(told, log.read_text("utf-8")), START_S, log.name)[1]

        url = start("master", "Master", "--host", "127.0.0.1", "--port", "0", told=r"Starting Spark master at (\S+)")
        for name in ("worker-1", "worker-2"):
            options = ("--cores", "1", "--memory", "600m", "--work-dir", str(folder / name))
            start(name, "Worker", *options, url, told="(Successfully registered) with master")
        yield Standalone(url, environment)
