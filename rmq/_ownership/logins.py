"""ZooKeeper login and TLS from options. Passwords come from the environment or from files, never from options."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rmq._io.secret_files import secret
from rmq._ownership.values import DigestAuth, Tls, check

PASSWORD = "RMQ_ZOOKEEPER_PASSWORD"  # noqa: S105 - the name of a variable
KEY_PASSWORD = "RMQ_ZOOKEEPER_KEY_PASSWORD"  # noqa: S105 - the name of a variable
SYSTEM = "system"
"""Value of the option for the authority's file that stands for the certificates that this machine trusts."""


def login(user: str | None, option: str, environment: Mapping[str, str] = os.environ) -> DigestAuth | None:
    """Return the login of a user; `None` if no user is given.

    Args:
        user: The user name.
        option: Name of the option with the user, for the error.
        environment: Environment variables, of which one has the password.

    Raises:
        InvalidValueError: The environment has no password for the user.
    """
    if user is None:
        return None
    password = secret(PASSWORD, environment)
    check(password is not None, f"{option} needs a password: set the environment variable {PASSWORD}")
    return DigestAuth(user, password or "")


def encryption(files: Mapping[str, str | None], environment: Mapping[str, str] = os.environ) -> Tls | None:
    """Return the TLS settings of a connection; `None` if no option asks for TLS.

    Args:
        files: Names and values of three options: the certificate authority's file, or `system`; the client certificate;
            its key.
        environment: Environment variables, of which one may have the password of the key.

    Raises:
        InvalidValueError: A certificate without its key, a key without its certificate, or a file that does not exist.
    """
    (ca_option, ca), (cert_option, cert), (key_option, key) = files.items()
    check((cert is None) is (key is None), f"{cert_option} and {key_option} must be given together")
    if ca is None and cert is None:
        return None
    for option, path in files.items():
        known = path is None or (option == ca_option and path == SYSTEM) or os.path.isfile(path)
        check(known, f"{option} is {path!r:.200}, but there is no such file")
    return Tls(None if ca == SYSTEM else ca, cert, key, secret(KEY_PASSWORD, environment))
