"""A login and TLS for ZooKeeper as options name them. Passwords come from the environment, and are in no option."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rmq._ownership.values import DigestAuth, Tls, check

PASSWORD = "RMQ_ZOOKEEPER_PASSWORD"  # noqa: S105 - the name of a variable
KEY_PASSWORD = "RMQ_ZOOKEEPER_KEY_PASSWORD"  # noqa: S105 - the name of a variable
SYSTEM = "system"
"""In place of a file: the certificates that this machine trusts."""


def login(user: str | None, option: str, environment: Mapping[str, str] = os.environ) -> DigestAuth | None:
    """Return the login of a user; `None` without one.

    Args:
        user: Its name.
        option: The name of the option that has it, for the error.
        environment: Has the password.

    Raises:
        InvalidValueError: The environment has no password.
    """
    if user is None:
        return None
    password = environment.get(PASSWORD)
    check(password is not None, f"{option} needs the password in the variable {PASSWORD}")
    return DigestAuth(user, password or "")


def encryption(files: Mapping[str, str | None], environment: Mapping[str, str] = os.environ) -> Tls | None:
    """Return how a connection is encrypted; `None` without an option for it.

    Args:
        files: Names of three options and their values: the certificates that sign the servers', or `system`; our
            certificate; our key.
        environment: Has the password of the key, if it has one.

    Raises:
        InvalidValueError: A certificate without its key, or the other way round; or there is no such file.
    """
    (ca_option, ca), (cert_option, cert), (key_option, key) = files.items()
    check((cert is None) is (key is None), f"{cert_option} and {key_option} go together")
    if ca is None and cert is None:
        return None
    for option, path in files.items():
        known = path is None or (option == ca_option and path == SYSTEM) or os.path.isfile(path)
        check(known, f"{option} is {path!r:.200}, and there is no such file")
    return Tls(None if ca == SYSTEM else ca, cert, key, environment.get(KEY_PASSWORD))
