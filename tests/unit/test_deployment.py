"""The recipes in deploy/ fit their schemas, each other, and what the command line takes."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from typer.main import get_command

from rmq.cli.app import app
from rmq.cli.console import settable
from rmq.cli.settings_file import SERVICES, read_settings
from tests.support.kubernetes import ConfigMap, Deployment, Manifest, ScaledObject, Service, checked

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "rmq-worker@.service"
FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
STOP_S = 5
"""Seconds that a worker may take beyond its drain time."""


def manifests() -> list[Manifest]:
    return [checked(each) for file in FILES for each in yaml.safe_load_all(file.read_text("utf-8"))]


def commands() -> dict[str, Any]:
    known: Any = get_command(app)
    return known.commands


def settings_of(path: Path) -> dict[str, Any]:
    read_settings(path, {name: settable(commands()[name]) for name in SERVICES})  # raises at what is unknown
    return tomllib.loads(path.read_text("utf-8"))["worker"]


def test_manifests_fit_their_schemas_and_each_other(tmp_path: Path) -> None:
    found = manifests()
    deployments = {each.metadata.name: each for each in found if isinstance(each, Deployment)}
    assert deployments.keys() == {"rmq-worker", "rmq-metrics", "rmq-dashboard"}
    for each in deployments.values():
        (container,) = each.spec.template.spec.containers
        assert container.args[0] == "rmq"
        command = commands()[container.args[1]]
        with command.make_context("rmq", [*container.args[2:], *(["a:b"] if command.name == "worker" else [])]):
            pass  # raises at an option that the command does not have
        if any(isinstance(one, Service) and one.metadata.name == each.metadata.name for one in found):
            assert not each.spec.template.spec.enableServiceLinks
    services = {each.metadata.name: each for each in found if isinstance(each, Service)}
    for name, service in services.items():
        labels = deployments[name].spec.template.metadata.labels
        assert service.spec.selector.items() <= labels.items()
        ports = {port.name for port in deployments[name].spec.template.spec.containers[0].ports}
        assert {port.targetPort for port in service.spec.ports} <= ports
    for each in found:
        if isinstance(each, ScaledObject):
            assert each.spec.scaleTargetRef.name in deployments
            assert each.spec.triggers[0].metadata["url"].startswith("http://rmq-metrics:9460/scale/")


def test_the_schema_refuses_what_is_misspelt() -> None:
    worker = next(
        each
        for each in yaml.safe_load_all((DEPLOY / "kubernetes/worker.yaml").read_text())
        if each["kind"] == "Deployment"
    )
    checked(worker)
    pod = worker["spec"]["template"]["spec"]
    pod["terminationGraceSeconds"] = pod.pop("terminationGracePeriodSeconds")
    with pytest.raises(ValidationError, match="terminationGraceSeconds"):
        checked(worker)


def test_pods_have_more_grace_than_their_workers_need(tmp_path: Path) -> None:
    config = next(each for each in manifests() if isinstance(each, ConfigMap))
    (tmp_path / "rmq.toml").write_text(config.data["rmq.toml"])
    settings = settings_of(tmp_path / "rmq.toml")
    worker = next(each for each in manifests() if isinstance(each, Deployment) and each.metadata.name == "rmq-worker")
    pod = worker.spec.template.spec
    assert pod.terminationGracePeriodSeconds > settings["drain"] + STOP_S
    ports = {port.name: port.containerPort for port in pod.containers[0].ports}
    assert ports == {"health": settings["health-port"], "metrics": settings["metrics-port"]}
    assert settings["health-host"] == settings["metrics-host"] == "0.0.0.0"
    probes = [pod.containers[0].livenessProbe.httpGet, pod.containers[0].readinessProbe.httpGet]
    assert [probe and probe.path for probe in probes] == ["/livez", "/readyz"]


def test_the_unit_has_more_grace_than_its_worker_needs() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    unit.read(UNIT)
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) > settings_of(DEPLOY / "systemd" / "rmq.toml")["drain"] + STOP_S
    assert (service["Type"], service["KillMode"], service["KillSignal"]) == ("notify", "mixed", "SIGTERM")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/srv/shop/.venv/bin/rmq", sys.executable))
    ran = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
