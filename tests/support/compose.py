"""Docker Compose with the repository's file, under a project, a network and ports of its own.

`python -m tests.support.compose` says which command of Compose v2 there is, or why none, and ends with 1 then.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_SOCKET = Path("/var/run/docker.sock")

_QUICK_S, _SLOW_S = 180.0, 900.0


class DockerError(Exception):
    """A command of Docker failed, or there is no engine. The text says what it printed."""


def find_engine() -> tuple[str, ...]:
    """Return the command of Compose v2 for the engine that DOCKER_HOST names, else the one on the default socket.

    Raises:
        DockerError: There is no engine, or no Compose v2.
    """
    if not os.environ.get("DOCKER_HOST") and not DEFAULT_SOCKET.exists():
        raise DockerError(f"no Docker engine: DOCKER_HOST is not set, and there is no {DEFAULT_SOCKET}")
    if shutil.which("docker") is None:
        raise DockerError("no Docker: the command `docker` is not on the PATH")
    run("docker", "version")
    found: list[str] = []
    for command in (("docker", "compose"), ("docker-compose",)):
        try:
            version = run(*command, "version", "--short").strip().removeprefix("v")
        except (DockerError, FileNotFoundError):
            continue
        major = version.partition(".")[0]
        if major.isdigit() and int(major) >= 2:
            return command
        found.append(version)
    raise DockerError(f"no Compose v2: found {', '.join(found) or 'none'}")


def run(*command: str, text: str | None = None, timeout_s: float = _QUICK_S, env: dict[str, str] | None = None) -> str:
    """Run a command, and return what it printed.

    Raises:
        DockerError: It failed, or did not end in time.
    """
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            env=None if env is None else {**os.environ, **env},
        )
    except subprocess.TimeoutExpired:
        raise DockerError(f"{' '.join(command)} did not end within {timeout_s:g} s") from None
    if done.returncode:
        raise DockerError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


class ComposeProject:
    """The cluster of docker-compose.yml beside whatever else runs: nothing is shared but the images.

    Args:
        compose: Command of Compose.
        folder: Where the override file is written.
        override: Services as in a Compose file: what differs from the repository's.

    Attributes:
        name: Name of the project.
        settings: Folder that Prometheus takes for /etc/prometheus.
        ports: Ports of 127.0.0.1, by the variable of docker-compose.yml that chooses them.
    """

    def __init__(self, compose: Sequence[str], folder: Path, override: dict[str, Any]) -> None:
        self.name = f"rmq-test-{os.getpid()}"
        self.ports = {name: free_port() for name in ("RMQ_DASHBOARD_PORT", "RMQ_PROMETHEUS_PORT")}
        self.settings = folder / "prometheus"
        self.settings.mkdir(mode=0o755)
        mounted = {"prometheus": {"volumes": [f"{self.settings}:/etc/prometheus:ro"]}}
        path = folder / "override.json"  # JSON is YAML
        path.write_text(json.dumps({"services": {**mounted, **override}}), "utf-8")
        self._environment = {"RMQ_SUBNET": _free_subnet(), **{name: str(port) for name, port in self.ports.items()}}
        files = ("--file", str(ROOT / "docker-compose.yml"), "--file", str(path))
        self._command = (*compose, "--project-name", self.name, "--project-directory", str(ROOT), *files)

    def __call__(self, *arguments: str, text: str | None = None, slow: bool = False) -> str:
        """Run a command of Compose, and return what it printed."""
        timeout_s = _SLOW_S if slow else _QUICK_S
        return run(*self._command, *arguments, text=text, timeout_s=timeout_s, env=self._environment)

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of Compose with pipes for its input and output."""
        return subprocess.Popen(
            [*self._command, *arguments],
            cwd=ROOT,
            env={**os.environ, **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def containers(self, service: str = "", *, all: bool = False) -> list[str]:
        """Return the ids of the running containers of a service, or of all.

        Args:
            service: Its name; empty for all services.
            all: Those that do not run, too.
        """
        # by name, too: an image that Compose builds hands its labels down to every container of it
        named = ("--filter", f"name=^{self.name}-", *(["--all"] if all else []))
        return self._labelled("ps", *named, service=service)

    def volumes(self) -> list[str]:
        """Return the names of the project's volumes."""
        return self._labelled("volume", "ls")

    def networks(self) -> list[str]:
        """Return the ids of the project's networks."""
        return self._labelled("network", "ls")

    def healthy(self, service: str) -> int:
        """Return how many containers of a service say that they are well."""
        found = [
            run("docker", "inspect", "--format", "{{.State.Health.Status}}", id) for id in self.containers(service)
        ]
        return sum(state.strip() == "healthy" for state in found)

    def _labelled(self, *command: str, service: str = "") -> list[str]:
        labels = [f"label=com.docker.compose.project={self.name}"]
        if service:
            labels.append(f"label=com.docker.compose.service={service}")
        filters = [part for label in labels for part in ("--filter", label)]
        return run("docker", *command, "--quiet", *filters).split()


def _free_subnet() -> str:
    """Return the first three numbers of a network that no network of the engine has."""
    ids = run("docker", "network", "ls", "--quiet").split()
    taken = run("docker", "network", "inspect", "--format", "{{json .IPAM.Config}}", *ids)
    numbers = [(os.getpid() + step) % 250 for step in range(250)]
    return next(found for number in numbers if (found := f"10.213.{number}") not in taken)


if __name__ == "__main__":
    try:
        print(" ".join(find_engine()))
    except DockerError as error:
        sys.exit(str(error))
