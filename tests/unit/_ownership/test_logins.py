"""A login and TLS for ZooKeeper from options and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq import DigestAuth, Tls
from rmq._ownership.values import KEY_PASSWORD, PASSWORD, encryption, login
from rmq.errors import InvalidValueError


def files(ca: str | None = None, cert: str | None = None, key: str | None = None) -> dict[str, str | None]:
    return {"--ca": ca, "--cert": cert, "--key": key}


def test_a_password_comes_from_the_environment() -> None:
    assert login(None, "--user", {PASSWORD: "secret"}) is None
    assert login("shop", "--user", {PASSWORD: "secret"}) == DigestAuth("shop", "secret")
    with pytest.raises(InvalidValueError, match=f"^--user needs a password: set the environment variable {PASSWORD}$"):
        login("shop", "--user", {})


def test_files_of_tls(tmp_path: Path) -> None:
    ca, cert, key = (str(tmp_path / name) for name in ("ca", "cert", "key"))
    for path in (ca, cert, key):
        Path(path).touch()
    environment = {KEY_PASSWORD: "secret"}
    assert encryption(files(), environment) is None
    assert encryption(files(ca, cert, key), environment) == Tls(ca, cert, key, "secret")
    assert encryption(files("system"), {}) == Tls()
    assert encryption(files(None, cert, key), {}) == Tls(None, cert, key)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (files("/nowhere"), "--ca is '/nowhere', but there is no such file"),
        (files(cert="/nowhere"), "--cert and --key must be given together"),
        (files("system", "system", "system"), "--cert is 'system', but there is no such file"),
    ],
)
def test_files_that_do_not_fit(given: dict[str, str | None], why: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{why}$"):
        encryption(given, {})
