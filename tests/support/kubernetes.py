"""The part of Kubernetes' schemas that deploy/kubernetes uses, strict: an unknown field is an error.

By the API of Kubernetes 1.29 (apps/v1, v1, policy/v1) and of KEDA 2.14.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, TypeAdapter, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", strict=True)]
Labels = dict[StrictStr, StrictStr]
Port = Annotated[int, Field(ge=1, le=65535, strict=True)]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(m|Mi|Gi)?$", strict=True)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Metadata(Part):
    name: Name
    labels: Labels = {}


class PodMetadata(Part):
    labels: Labels


class Selector(Part):
    matchLabels: Labels


class HttpGet(Part):
    path: Annotated[str, Field(pattern="^/")]
    port: Name | Port


class TcpSocket(Part):
    port: Name | Port


class Probe(Part):
    httpGet: HttpGet | None = None
    tcpSocket: TcpSocket | None = None
    periodSeconds: Annotated[int, Field(ge=1, strict=True)] = 10
    timeoutSeconds: Annotated[int, Field(ge=1, strict=True)] = 1
    failureThreshold: Annotated[int, Field(ge=1, strict=True)] = 3

    @model_validator(mode="after")
    def one_action(self) -> Probe:
        assert (self.httpGet is None) != (self.tcpSocket is None), "a probe has one action"
        return self


class ContainerPort(Part):
    name: Name
    containerPort: Port


class SecretKey(Part):
    name: Name
    key: StrictStr


class ValueFrom(Part):
    secretKeyRef: SecretKey


class Variable(Part):
    name: Annotated[str, Field(pattern="^[A-Z_][A-Z0-9_]*$")]
    value: StrictStr | None = None
    valueFrom: ValueFrom | None = None


class Mount(Part):
    name: Name
    mountPath: Annotated[str, Field(pattern="^/")]
    readOnly: bool = False


class Capabilities(Part):
    drop: list[Literal["ALL"]]


class ContainerSecurity(Part):
    allowPrivilegeEscalation: Literal[False]
    readOnlyRootFilesystem: Literal[True]
    capabilities: Capabilities


class Amounts(Part):
    cpu: Quantity | None = None
    memory: Quantity


class Resources(Part):
    requests: Amounts
    limits: Amounts


class Container(Part):
    name: Name
    image: StrictStr
    args: list[StrictStr]
    env: list[Variable] = []
    ports: list[ContainerPort] = []
    startupProbe: Probe | None = None
    livenessProbe: Probe
    readinessProbe: Probe
    resources: Resources
    securityContext: ContainerSecurity
    volumeMounts: list[Mount] = []


class ConfigMapSource(Part):
    name: Name


class SecretSource(Part):
    secretName: Name


class Empty(Part):
    pass


class Volume(Part):
    name: Name
    configMap: ConfigMapSource | None = None
    secret: SecretSource | None = None
    emptyDir: Empty | None = None


class PodSecurity(Part):
    runAsNonRoot: Literal[True]
    runAsUser: Annotated[int, Field(ge=1, strict=True)]


class PodSpec(Part):
    terminationGracePeriodSeconds: Annotated[int, Field(ge=1, strict=True)] = 30
    enableServiceLinks: bool = True
    securityContext: PodSecurity
    containers: list[Container]
    volumes: list[Volume] = []

    @model_validator(mode="after")
    def names_refer_to_something(self) -> PodSpec:
        volumes = {volume.name for volume in self.volumes}
        for container in self.containers:
            assert {mount.name for mount in container.volumeMounts} == volumes
            ports = {port.name for port in container.ports}
            for probe in (container.startupProbe, container.livenessProbe, container.readinessProbe):
                if probe is not None:
                    action = probe.httpGet or probe.tcpSocket
                    assert action is not None
                    assert action.port in ports
        return self


class Template(Part):
    metadata: PodMetadata
    spec: PodSpec


class RollingUpdate(Part):
    maxUnavailable: StrictInt
    maxSurge: StrictInt


class Strategy(Part):
    type: Literal["RollingUpdate"]
    rollingUpdate: RollingUpdate


class DeploymentSpec(Part):
    replicas: StrictInt
    selector: Selector
    strategy: Strategy | None = None
    template: Template

    @model_validator(mode="after")
    def selects_its_pods(self) -> DeploymentSpec:
        assert self.selector.matchLabels.items() <= self.template.metadata.labels.items()
        return self


class Deployment(Part):
    apiVersion: Literal["apps/v1"]
    kind: Literal["Deployment"]
    metadata: Metadata
    spec: DeploymentSpec


class ConfigMap(Part):
    apiVersion: Literal["v1"]
    kind: Literal["ConfigMap"]
    metadata: Metadata
    data: dict[StrictStr, StrictStr]


class ServicePort(Part):
    name: Name
    port: Port
    targetPort: Name | Port


class ServiceSpec(Part):
    selector: Labels
    ports: list[ServicePort]


class Service(Part):
    apiVersion: Literal["v1"]
    kind: Literal["Service"]
    metadata: Metadata
    spec: ServiceSpec


class BudgetSpec(Part):
    maxUnavailable: StrictInt
    selector: Selector


class DisruptionBudget(Part):
    apiVersion: Literal["policy/v1"]
    kind: Literal["PodDisruptionBudget"]
    metadata: Metadata
    spec: BudgetSpec


class ScaleTarget(Part):
    name: Name


class Trigger(Part):
    type: Literal["metrics-api"]
    metadata: dict[Literal["url", "valueLocation", "targetValue"], StrictStr]


class Fallback(Part):
    failureThreshold: StrictInt
    replicas: StrictInt


class ScaledSpec(Part):
    scaleTargetRef: ScaleTarget
    minReplicaCount: StrictInt
    maxReplicaCount: StrictInt
    pollingInterval: StrictInt
    cooldownPeriod: StrictInt
    fallback: Fallback
    triggers: list[Trigger]


class ScaledObject(Part):
    apiVersion: Literal["keda.sh/v1alpha1"]
    kind: Literal["ScaledObject"]
    metadata: Metadata
    spec: ScaledSpec


Manifest = Deployment | ConfigMap | Service | DisruptionBudget | ScaledObject
_MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Annotated[Manifest, Field(discriminator="kind")])


def checked(document: Any) -> Manifest:
    """Return a manifest; raises `pydantic.ValidationError` if it does not fit its schema."""
    return _MANIFEST.validate_python(document)
