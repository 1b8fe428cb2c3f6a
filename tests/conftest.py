"""What all tests share: a real Redis for each pytest worker, topics of their own, a look at what is left."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator
from itertools import count
from uuid import uuid4

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings

from rmq import Coordinator, Topic, TopicType
from tests.support.containers import RedisContainer, redis_image
from tests.support.core import Connections, parse_url
from tests.support.servers import RedisServer
from tests.support.slots import SlotUnderTest, check_topic, forget_topic, scripts_under_test
from tests.support.spark_classes import jvm_options
from tests.support.unmeasured import Measuring
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperEnsemble

__all__ = ["wait_until"]

PROFILE_VARIABLE = "RMQ_HYPOTHESIS_PROFILE"

_quiet = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "print_blob": True}
settings.register_profile("default", **_quiet)
settings.register_profile("ci", derandomize=True, **_quiet)
settings.register_profile("long", max_examples=5_000, **_quiet)
# for planted bugs: the first failure is enough
settings.register_profile(
    "mutants", phases=(Phase.explicit, Phase.generate), derandomize=True, report_multiple_bugs=False, **_quiet
)
settings.load_profile(os.environ.get(PROFILE_VARIABLE) or "default")

os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm_options())

_numbers = count(1)
_measuring = Measuring()

MakeTopic = Callable[..., Topic]
MakeSlot = Callable[..., SlotUnderTest]
Coordinate = Callable[..., Coordinator]


def pytest_collection() -> None:
    """Collect without coverage."""
    _measuring.collecting()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Turn coverage on or off for a test, its fixtures and its processes."""
    with _measuring.testing(item.path):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write captured logs in UTF-8: pytest's workers end where a test has logged half of a surrogate pair."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def root_logger_as_it_was() -> Iterator[None]:
    """Commands run in this process set up logging to a standard error that ends with their test."""
    root = logging.getLogger()
    level, before = root.level, set(root.handlers)
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - before:
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer | RedisContainer]:
    """A real Redis, one for each pytest worker. Not to be stopped: make a `RedisServer` of your own for that."""
    image = redis_image()
    with RedisServer(unix_socket=True) if image is None else RedisContainer(image) as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer | RedisContainer) -> str:
    """URL of the shared Redis: its unix socket, the quicker way, where it has one."""
    return f"unix://{redis_server.socket_path}" if redis_server.socket_path else redis_server.url


@pytest.fixture(scope="session")
def connections(redis_url: str) -> Iterator[Connections]:
    """Connections to the shared Redis with the scripts as they are shipped."""
    connections = Connections(parse_url(redis_url), scripts=scripts_under_test())
    yield connections
    connections.close()


@pytest.fixture(scope="session")
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A plain client of the shared Redis."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperEnsemble]:
    """A ZooKeeper, one for each pytest worker. Not to be stopped: make a `ZooKeeperEnsemble` of your own for that."""
    with ZooKeeperEnsemble(tick_ms=500, settings={"maxSessionTimeout": "600000"}) as servers:
        yield servers


@pytest.fixture
def coordinate(zookeeper: ZooKeeperEnsemble) -> Coordinate:
    """Make coordinators of one cluster, below a chroot that no other test has: `coordinate(**options)`."""
    chroot = f"/test-{uuid4().hex}"
    return lambda **options: Coordinator(**{"hosts": zookeeper.hosts, "chroot": chroot, **options})


@pytest.fixture
def make_topic(request: pytest.FixtureRequest, redis_client: redis.Redis) -> Iterator[MakeTopic]:
    """Make topics with names of their own: `make_topic(type, **settings)`.

    After the test each is checked: only its slots' keys, accounts that are right, no orphans; then it is deleted.
    `checked=False` leaves the check out, for a test that spoils its keys on purpose.
    """
    made: list[str] = []
    unchecked: set[str] = set()

    def make(type: TopicType, *, checked: bool = True, **definition: object) -> Topic:
        topic = Topic(f"t{os.getpid()}-{next(_numbers)}-{request.node.originalname[:60]}", type, **definition)  # pyright: ignore[reportArgumentType]
        made.append(topic.name)
        if not checked:
            unchecked.add(topic.name)
        return topic

    yield make
    try:
        for name in made:
            if name not in unchecked:
                check_topic(redis_client, name)
    finally:
        for name in made:
            forget_topic(redis_client, name)


@pytest.fixture
def topic_name(make_topic: MakeTopic) -> str:
    """A topic name that no other test has; checked and deleted like those of `make_topic`."""
    return make_topic(TopicType.RANGE_MERGE).name


@pytest.fixture
def make_slot(make_topic: MakeTopic, redis_url: str) -> Iterator[MakeSlot]:
    """Make slots under test, with a fake clock: `make_slot(type, **settings)`; checked as `make_topic` says.

    Scores of PRIORITY are plain priorities, unless a test says otherwise.
    """
    made: list[SlotUnderTest] = []

    def make(type: TopicType = TopicType.RANGE_MERGE, **definition: object) -> SlotUnderTest:
        if type is TopicType.PRIORITY:
            definition.setdefault("ties", "any")
        made.append(SlotUnderTest(redis_url, make_topic(type, **definition)))
        return made[-1]

    yield make
    for slot in made:
        slot.close()
