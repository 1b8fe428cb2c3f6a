"""Workers reach ZooKeeper over TLS, and say why where they do not."""

from __future__ import annotations

import gc
import logging
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from spark_shop.audience import AudienceSettings, ZooKeeperAccess, check
from spark_shop.order_lines import slice_path

from rmq import Coordinator, DigestAuth, PriorityMessage, RmqClient, Tls, TopicType
from rmq._ownership.values import PASSWORD as PASSWORD_VARIABLE
from rmq._processes.zookeeper import ZooKeeperServer
from rmq.errors import CoordinationError, FencedError, InvalidValueError
from tests.conftest import MakeTopic
from tests.integration.spark.test_spark_driver import Query
from tests.support.cli import Cli
from tests.support.waiting import wait_until
from tests.support.zookeeper import free_ports

PASSWORD = "secret-of-a-store"

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Certificates:
    """A certificate authority's certificate, and one signed by it, with its key."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.ca, self.cert, self.key, self.store = (folder / name for name in ("ca.pem", "cert.pem", "key.pem", "p12"))
        ca_key, request, names = folder / "ca.key", folder / "request.pem", folder / "names"
        new_key = ("-newkey", "rsa:2048", "-nodes", "-keyout")
        openssl("req", "-x509", *new_key, str(ca_key), "-out", str(self.ca), "-days", "2", "-subj", "/CN=ca")
        openssl("req", *new_key, str(self.key), "-out", str(request), "-subj", "/CN=localhost")
        names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        signed = ("-CA", str(self.ca), "-CAkey", str(ca_key), "-CAcreateserial", "-days", "2", "-extfile", str(names))
        openssl("x509", "-req", "-in", str(request), "-out", str(self.cert), *signed)
        chain = ("-inkey", str(self.key), "-in", str(self.cert), "-certfile", str(self.ca))
        openssl("pkcs12", "-export", *chain, "-out", str(self.store), "-passout", f"pass:{PASSWORD}")

    @property
    def tls(self) -> Tls:
        return Tls(str(self.ca), str(self.cert), str(self.key))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "good")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[str]:
    """A server that asks clients for a certificate; the address of its TLS port."""
    plain, secure = free_ports(2)
    settings = {
        "secureClientPort": str(secure),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(certificates.store),
        "ssl.keyStore.password": PASSWORD,
        "ssl.keyStore.type": "PKCS12",
        "ssl.trustStore.location": str(certificates.ca),
        "ssl.trustStore.type": "PEM",
    }
    server = ZooKeeperServer(tmp_path_factory.mktemp("zk"), plain, settings, tick_ms=500)
    server.start()
    try:
        server.wait_ready()
        yield f"127.0.0.1:{secure}"
    finally:
        server.stop()


def drain(worker: Coordinator) -> None:
    for key in worker.revoking():
        worker.drained(*key)


def test_a_worker_owns_slots_over_tls(server: str, certificates: Certificates) -> None:
    with Coordinator(server, chroot="/owns", tls=certificates.tls) as worker:
        worker.on_change = lambda: drain(worker)  # else its end waits for that
        worker.register_topic("t", '{"slots":2,"version":4,"min_reader":4}')
        worker.consume("t", 2)
        wait_until(lambda: len(worker.owned()) == 2)


@pytest.mark.filterwarnings("ignore:.*SSLSocket")  # kazoo leaves it to the collector
def test_a_foreign_certificate_is_named_as_the_cause(server: str, tmp_path: Path) -> None:
    foreign = Certificates(tmp_path / "foreign")
    with pytest.raises(CoordinationError, match="certificate verify failed") as refused:
        Coordinator(server, tls=foreign.tls).start(4.0)
    assert server in str(refused.value)
    del refused
    gc.collect()


def test_a_server_that_is_not_there_is_named() -> None:
    (port,) = free_ports(1)
    with pytest.raises(CoordinationError, match=f"127.0.0.1:{port}: .*refused"):
        Coordinator(f"127.0.0.1:{port}").start(3.0)


def test_adopting_with_login_and_tls(
    server: str,
    certificates: Certificates,
    redis_url: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, rmq = make_topic(TopicType.PRIORITY, slots=2), Cli(redis_url)
    auth = DigestAuth("shop", "pass word")
    coordinator = Coordinator(server, chroot="/login", auth=auth, tls=certificates.tls)
    with RmqClient(redis_url, zookeeper=coordinator) as client:
        client.listener(topic)(print)
        client.start()
        wait_until(lambda: all(slot.epoch for slot in client.inspect(topic).stats().slots))
    there = ("--zookeeper", server, "--chroot", "/login", "--zookeeper-ca", str(certificates.ca))
    there += ("--zookeeper-cert", str(certificates.cert), "--zookeeper-key", str(certificates.key))
    assert "RMQ_ZOOKEEPER_PASSWORD" in rmq("adopt", topic.name, *there, "--zookeeper-user", "shop", code=2).err
    monkeypatch.setenv("RMQ_ZOOKEEPER_PASSWORD", "pass word")
    shown = rmq("adopt", topic.name, *there, "--zookeeper-user", "shop")
    assert "restored from a backup" in shown.err
    assert "must be given together" in rmq("adopt", topic.name, *there[:-2], code=2).err


def test_a_query_owns_slots_with_login_and_tls_and_no_password_is_told(
    server: str,
    certificates: Certificates,
    redis_url: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    topic = make_topic(TopicType.PRIORITY, slots=2)
    with RmqClient(redis_url) as client:
        client.producer(topic).send_many(PriorityMessage(f"m{number}", 100) for number in range(10))
    options = {
        "zookeeper": server,
        "zookeeperChroot": "/query",
        "zookeeperUser": "shop",
        "zookeeperCa": str(certificates.ca),
        "zookeeperCert": str(certificates.cert),
        "zookeeperKey": str(certificates.key),
    }
    query = Query(redis_url, topic, **options)
    try:
        with pytest.raises(InvalidValueError, match="zookeeperUser needs a password: set the environment variable"):
            query.plan()
        monkeypatch.setenv(PASSWORD_VARIABLE, "pass word")
        assert query.plan() == 10
        assert len(query.read()) == 10
        query.plan()  # acks
    finally:
        query.close()
    assert "Sending request(xid=" in caplog.text
    assert "pass word" not in f"{caplog.text} {query._options!r}"


def test_an_audience_is_selected_with_login_and_tls(
    server: str,
    certificates: Certificates,
    redis_url: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As far as it goes without Spark: to the workers that own the topic's slots."""
    topic = make_topic(TopicType.RANGE_MERGE, slots=2)
    settings = AudienceSettings(str(slice_path()), str(tmp_path), redis_url, topic=topic.name, slots=2)
    monkeypatch.setenv(PASSWORD_VARIABLE, "pass word")
    files = [str(file) for file in (certificates.ca, certificates.cert, certificates.key)]
    owned = replace(settings, zookeeper=ZooKeeperAccess(server, "/audience", "shop", *files))
    check(owned)
    assert owned.zookeeper is not None
    with RmqClient(redis_url, zookeeper=owned.zookeeper.coordinator()) as client:
        client.listener(topic)(print)
        client.start()
        wait_until(lambda: all(slot.epoch for slot in client.inspect(topic).stats().slots))
        check(owned)
        with pytest.raises(FencedError, match="zookeeper is not set"):
            check(settings)
    monkeypatch.delenv(PASSWORD_VARIABLE)
    with pytest.raises(InvalidValueError, match="zookeeper_user needs a password: set the environment variable"):
        ZooKeeperAccess(server, user="shop", ca=files[0])
